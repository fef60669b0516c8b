// A file that is written in pieces and appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/partial_files.h"

namespace kvasir {

// Writes to <path>.partial-<process>-<random>; commit() syncs it and renames it into place. Destroyed without
// commit, or when a signal ends the process, it leaves nothing behind; what a killed process left, the next
// writer of the same path removes. A link stays: what it names is written. A stream (write_target in
// partial_files.h) gets the bytes as they come. Throws Error{resource_exhausted} when the disk is full,
// Error{not_found} (file_error.h) for other failures, naming the file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write_zeros(uint64_t count);
  // Bytes in the place of others that were written before: a header that says what follows it. Not of a
  // stream.
  void rewrite(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t written() const { return written_; }
  // The first half of commit(), after which nothing can be written: files that belong together are sealed one
  // after the other and then committed, so that none is there unless all could be written.
  void seal();
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  WriteTarget target_;
  std::filesystem::path partial_;  // empty: a stream
  PartialFile registered_;
  enum class State : uint8_t { open, sealed, committed } state_ = State::open;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace kvasir
