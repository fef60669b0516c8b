// A blob in the making: <digest>.incomplete, which is at every moment a prefix of the content (never a file
// with holes), so that a process that is killed leaves what the next one can go on from, and so that tools
// which take up such files by their size alone take up the right thing.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "hub/digest.h"

namespace kvasir::hub {

class BlobWriter {
 public:
  // `partial` is created, or taken up where it ends (what it holds is hashed first; `progress` gets the bytes
  // done and may return false to stop: Error{cancelled}). A longer file than `size` is begun anew.
  BlobWriter(std::filesystem::path partial, std::string digest, uint64_t size,
             const std::function<bool(uint64_t)>& progress = {});
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  uint64_t written() const { return written_; }
  // Appends. Throws Error{resource_exhausted} when the disk is full; what was written before stays.
  void append(std::span<const std::byte> bytes);
  // Throws the content away and begins anew.
  void restart();
  // Of a whole file: syncs it and renames it to `final_path` when the digest is right. False (and the partial
  // is gone) when it is not.
  bool finish(const std::filesystem::path& final_path);

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path partial_;
  std::string expected_;
  uint64_t size_;
  ContentDigest digest_;
  struct File {
    int fd = -1;
    ~File();
  } file_;
  uint64_t written_ = 0;
};

}  // namespace kvasir::hub
