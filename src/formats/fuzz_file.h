// Fuzz targets only: the input as a file, since readers map files.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace kvasir::formats {

class FuzzFile {
 public:
  explicit FuzzFile(const char* name)
      : path_(std::filesystem::temp_directory_path() / (std::to_string(::getpid()) + "_" + name)) {}
  ~FuzzFile() { std::remove(path_.c_str()); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void write(const uint8_t* data, size_t size) const {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
  }

  // Reads two places in a way that the compiler keeps.
  template <typename T>
  static void touch(const T& a, const T& b) {
    static volatile T sink;
    sink = a;
    sink = b;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvasir::formats
