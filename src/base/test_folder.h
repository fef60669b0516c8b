// For tests and benchmarks: a folder of their own under the system's temporary folder, which goes when they
// do.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace kvasir {

class TestFolder {
 public:
  explicit TestFolder(const std::string& room) {
    std::string pattern = (std::filesystem::temp_directory_path() / ("kvasir-" + room + "-XXXXXX")).string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw std::filesystem::filesystem_error("mkdtemp", pattern,
                                              std::error_code(errno, std::generic_category()));
    path_ = pattern;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvasir
