// GGUF files, versions 2 and 3, single and split (spec: formats.md 4.1, 4.2).
//
// open() reads and validates the whole header (metadata and tensor infos of every part) before any tensor
// data is touched. Strings and arrays stay where they are, in the mapping: everything returned here is a view
// that lives as long as the GgufFile. Errors: Error{corrupt_file} for a file that breaks the format,
// Error{unsupported} for versions and tensor types that this build does not read, Error{not_found} for
// missing parts, keys and tensors; each names the file and the key or tensor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "formats/limits.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

// Types of metadata values, with the file's numbers.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view name(GgufType type);

// One metadata value. For an array, `type` is the elements' type.
struct GgufValue {
  std::string_view key;
  GgufType type = GgufType::u8;
  bool is_array = false;
  uint64_t count = 1;  // elements; 1 for a scalar
  const std::byte* data =
      nullptr;  // first element as stored: unaligned, little endian; strings with their length before them
  uint64_t bytes = 0;  // of all elements as stored
};

struct GgufTensor {
  std::string_view name;
  StorageFormat format = StorageFormat::f32;
  uint32_t part = 0;        // index of the file that holds it
  uint32_t dimensions = 0;  // 0 to 4
  std::array<int64_t, 4> ne = {
      1, 1, 1, 1};      // ne[0] is the innermost (a linear weight's in features); HF shape = reversed
  uint64_t offset = 0;  // of its first byte, from the beginning of its file
  uint64_t bytes = 0;
};

// The ggml number of a storage format and back. Nothing for formats that GGUF lacks / numbers that are not
// read.
std::optional<uint32_t> ggml_type_of(StorageFormat format);
std::optional<StorageFormat> storage_format_of_ggml_type(uint32_t type);

class GgufFile {
 public:
  // Opens a single file, or part 1 of a split model together with the other parts beside it.
  static GgufFile open(const std::filesystem::path& path, const ReadLimits& limits = {});

  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;

  const std::string& path() const { return parts_.front().file.path(); }
  uint32_t version() const { return version_; }
  size_t parts() const { return parts_.size(); }
  const MappedFile& part(size_t index) const { return parts_[index].file; }
  // Bytes before the tensor data of a part: what a digest of the header covers.
  std::span<const std::byte> header(size_t index) const;

  // Metadata in file order (of part 1), and by key.
  std::span<const GgufValue> metadata() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;

  // Typed access. find_* returns nothing for an absent key and throws for one of another type; the plain form
  // throws Error{not_found} for an absent key. Any integer type serves as a count (not negative) or an
  // integer; f32 and f64 as a real.
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<uint64_t> find_count(std::string_view key) const;
  std::optional<int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_real(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  uint64_t count(std::string_view key) const;
  double real(std::string_view key) const;

  // Arrays. Integers of any width; reals also from integer arrays (tokenizer scores may be i32). Empty arrays
  // are present.
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;
  std::optional<std::vector<float>> find_reals(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;
  std::optional<std::span<const uint8_t>> find_bytes(std::string_view key) const;  // u8 or i8 array
  // One count per layer, from an array of exactly `layers` counts or from one scalar for all.
  std::optional<std::vector<uint64_t>> find_counts_per_layer(std::string_view key, uint64_t layers) const;

  // Tensors in file order (part 1 first), and by name.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;
  const GgufTensor& tensor(std::string_view name) const;  // throws Error{not_found} naming file and tensor

  // The stored bytes. The first call counts as opening that part's data (data_opens()).
  std::span<const std::byte> data(const GgufTensor& tensor) const;
  // The tensor as a matrix [ne1 * ne2 * ne3, ne0].
  WeightSource weight(const GgufTensor& tensor) const;
  // How many times tensor data was handed out: 0 while only headers were used.
  uint64_t data_opens() const { return data_opens_->load(); }

 private:
  friend class GgufParser;
  struct Part {
    MappedFile file;
    uint64_t data_begin = 0;
  };
  GgufFile() = default;

  [[noreturn]] void wrong_type(const GgufValue& value, std::string_view expected) const;
  [[noreturn]] void missing(std::string_view key) const;

  std::vector<Part> parts_;
  std::vector<GgufValue> metadata_;
  std::vector<uint32_t> keys_by_name_;  // indices into metadata_, sorted by key
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> tensors_by_name_;
  uint32_t version_ = 0;
  std::unique_ptr<std::atomic<uint64_t>> data_opens_ = std::make_unique<std::atomic<uint64_t>>(0);
};

}  // namespace kvasir::formats
