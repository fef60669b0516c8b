// A float32 matrix in NumPy's .npy format (versions 1 to 3, C order), mapped: rows are read where they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/mapped_file.h"

namespace kvasir::cli {

class NpyReader {
 public:
  // Throws Error{not_found}, Error{corrupt_file} (no .npy, or cut short) or Error{unsupported} (another
  // dtype, order or number of axes).
  explicit NpyReader(const std::filesystem::path& path);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  std::span<const float> row(int64_t index) const;  // [columns]

 private:
  MappedFile file_;
  int64_t rows_ = 0, columns_ = 0;
  size_t data_ = 0;  // where the values begin; a multiple of 4 in every file that NumPy writes
};

}  // namespace kvasir::cli
