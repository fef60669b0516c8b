// A file that is written in pieces and appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace kvasir {

// Writes to <path>.partial-<pid>; commit() syncs it and renames it into place. Destroyed without commit, it
// leaves nothing behind. Throws Error{resource_exhausted} when the disk is full, Error{invalid_input} for
// other failures, naming the file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write_zeros(uint64_t count);
  uint64_t written() const { return written_; }
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string partial_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace kvasir
