// Fuzz targets and mutation tests only: the input as a file, since readers map files.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace kvasir::formats {

// Lives in memory, and has a path that this process can open.
class FuzzFile {
 public:
  explicit FuzzFile(const char* name) : fd_(::memfd_create(name, MFD_CLOEXEC)) {
    if (fd_ < 0) std::abort();
  }
  ~FuzzFile() { ::close(fd_); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

  void write(const uint8_t* data, size_t size) const {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }

  // Reads two places in a way that the compiler keeps.
  template <typename T>
  static void touch(const T& a, const T& b) {
    static volatile T sink;
    sink = a;
    sink = b;
    (void)sink;
  }

 private:
  int fd_;
};

}  // namespace kvasir::formats
