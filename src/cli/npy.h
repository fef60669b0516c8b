// NumPy's .npy format, version 1.0, little-endian float32, C order: written as a stream, put in place when
// complete. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/partial_files.h"

namespace kvasir::cli {

class NpyWriter {
 public:
  // Shape [rows, columns]. Throws Error when the file cannot be made.
  NpyWriter(std::filesystem::path path, int64_t rows, int64_t columns);
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;
  ~NpyWriter();  // without finish(): the partial file is removed

  void write(std::span<const float> values);
  void finish();  // syncs and renames; throws when fewer or more values than the shape's were written

 private:
  [[noreturn]] void fail(const char* what);
  std::filesystem::path path_;
  WriteTarget target_;
  std::filesystem::path partial_;  // empty: a stream
  PartialFile registered_;
  std::FILE* file_ = nullptr;
  int64_t expected_;
  int64_t written_ = 0;
};

}  // namespace kvasir::cli
