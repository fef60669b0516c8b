// Writing of GGUF files (version 3): the same bytes for the same input, complete or not there at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "formats/tensor_writer.h"

namespace kvasir::formats {

class GgufWriter {
 public:
  // Metadata, written in the order of the calls. A key may be set once. general.quantization_version is added
  // by write().
  void set_string(std::string_view key, std::string_view value);
  void set_u16(std::string_view key, uint16_t value);
  void set_u32(std::string_view key, uint32_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_u64(std::string_view key, uint64_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_strings(std::string_view key, const std::vector<std::string>& values);
  void set_i32s(std::string_view key, const std::vector<int32_t>& values);
  void set_u32s(std::string_view key, const std::vector<uint32_t>& values);
  void set_f32s(std::string_view key, const std::vector<float>& values);
  void set_bools(std::string_view key, const std::vector<bool>& values);
  void set_bytes(std::string_view key, std::span<const uint8_t> values);

  // `ne` innermost first, at most 4. Throws Error{invalid_input} for names, shapes and formats that GGUF
  // cannot hold.
  void add_tensor(std::string name, StorageFormat format, std::vector<int64_t> ne, TensorProducer produce);

  // Throws Error{internal} when a producer gives another number of bytes than its shape needs, and what
  // AtomicFile throws.
  void write(const std::filesystem::path& path) const;

 private:
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<int64_t> ne;
    uint64_t bytes;
    TensorProducer produce;
  };
  void key(std::string_view key, GgufType type);
  void array(std::string_view key, GgufType type, uint64_t count);
  template <typename T>
  void put(T value);
  void put_string(std::string_view text);

  std::string metadata_;
  std::set<std::string, std::less<>> keys_;
  std::set<std::string, std::less<>> names_;
  std::vector<Tensor> tensors_;
};

}  // namespace kvasir::formats
