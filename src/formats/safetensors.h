// safetensors files, single and sharded with an index (spec: formats.md 1).
//
// Opening reads and validates headers only; tensors are views into the mapping that live as long as the file
// object. Errors: Error{corrupt_file} for what breaks the format, Error{not_found} for missing shards and
// tensors, Error{unsupported} for dtypes and checkpoints that this build does not read; each names the file
// and the tensor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "formats/limits.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

enum class SafetensorsDtype : uint8_t {
  f4,
  f6_e2m3,
  f6_e3m2,
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
  c64,
};

struct SafetensorsDtypeInfo {
  SafetensorsDtype dtype;
  std::string_view name;                // as the header spells it
  unsigned bits;                        // of one element
  std::optional<StorageFormat> format;  // none: known for its size only
};
const SafetensorsDtypeInfo& info(SafetensorsDtype dtype);
std::optional<SafetensorsDtype> safetensors_dtype_from_name(std::string_view name);
std::optional<SafetensorsDtype> safetensors_dtype_of(StorageFormat format);  // plain formats only

struct SafetensorsTensor {
  std::string_view name;
  SafetensorsDtype dtype = SafetensorsDtype::f32;
  uint32_t file = 0;               // index of the shard that holds it
  std::span<const int64_t> shape;  // outermost first; empty for a scalar
  uint64_t offset = 0;             // of its first byte, from the beginning of its file
  uint64_t bytes = 0;
};

struct SafetensorsOptions {
  // Accept holes between tensors and bytes after the last (as MLX does). Overlap is never accepted.
  bool lenient = false;
  ReadLimits limits = {};
};

// One file.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path, const SafetensorsOptions& options = {});

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::string& path() const { return file_.path(); }
  std::span<const std::byte> header() const { return file_.bytes().first(data_begin_); }
  // __metadata__, in file order.
  std::span<const std::pair<std::string, std::string>> metadata() const { return metadata_; }

  std::span<const SafetensorsTensor> tensors() const { return tensors_; }  // in the order of the data
  const SafetensorsTensor* find(std::string_view name) const;
  std::span<const std::byte> data(const SafetensorsTensor& tensor) const;
  const MappedFile& mapping() const { return file_; }

 private:
  friend class SafetensorsParser;
  SafetensorsFile() = default;

  MappedFile file_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<uint32_t> by_name_;
  std::vector<int64_t> dimensions_;    // of all shapes
  std::deque<std::string> own_names_;  // those written with escapes; the others are views into the mapping
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// A model's weights: the files named by model.safetensors.index.json, else model.safetensors, else all
// model*.safetensors.
class SafetensorsModel {
 public:
  static SafetensorsModel open_folder(const std::filesystem::path& folder,
                                      const SafetensorsOptions& options = {});
  // The given files, which may not share a tensor name.
  static SafetensorsModel open_files(std::span<const std::filesystem::path> paths,
                                     const SafetensorsOptions& options = {});

  size_t files() const { return files_.size(); }
  const SafetensorsFile& file(size_t index) const { return files_[index]; }
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  const SafetensorsTensor* find(std::string_view name) const;
  const SafetensorsTensor& tensor(std::string_view name) const;  // throws Error{not_found}

  std::span<const std::byte> data(const SafetensorsTensor& tensor) const;
  // The tensor as a matrix [product of the other dimensions, last dimension]. Throws Error{unsupported}
  // naming tensor and dtype for a dtype without a storage format.
  WeightSource weight(const SafetensorsTensor& tensor) const;
  uint64_t data_opens() const { return data_opens_->load(); }  // how many times data was handed out

  std::span<const std::string> warnings() const { return warnings_; }

 private:
  SafetensorsModel() = default;
  void index_tensors();

  std::vector<SafetensorsFile> files_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<uint32_t> by_name_;
  std::vector<std::string> warnings_;
  std::unique_ptr<std::atomic<uint64_t>> data_opens_ = std::make_unique<std::atomic<uint64_t>>(0);
};

}  // namespace kvasir::formats
