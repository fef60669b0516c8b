// A blob in the making: <digest>.incomplete, which is at every moment a prefix of the content (never a file
// with holes), so that a process that is killed leaves what the next one can go on from, and so that tools
// which take up such files by their size alone take up the right thing.
//
// Bytes that come before those in front of them wait beside it, in <digest>.incomplete-<first byte>, and are
// moved when their turn comes: they too outlive the process.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "hub/digest.h"

namespace kvasir::hub {

class BlobWriter {
 public:
  // `partial` is created, or taken up where it ends (what it holds is hashed first; `progress` gets the bytes
  // done and may return false to stop: Error{cancelled}), with the pieces beside it. A longer file than
  // `size` is begun anew.
  BlobWriter(std::filesystem::path partial, std::string digest, uint64_t size,
             const std::function<bool(uint64_t)>& progress = {});
  BlobWriter(const BlobWriter&) = delete;
  BlobWriter& operator=(const BlobWriter&) = delete;

  uint64_t written() const { return written_; }  // of the prefix
  uint64_t ahead() const;                        // bytes beyond it that are here
  // The first bytes from `at` on, `at` not before written(), that are not here: [begin, end).
  struct Gap {
    uint64_t begin = 0, end = 0;
  };
  Gap gap(uint64_t at) const;

  // Appends, and then what waited for it. Throws Error{resource_exhausted} when the disk is full; what was
  // written before stays.
  void append(std::span<const std::byte> bytes);
  // Bytes from `at` on of a run that begins at `run` and comes in order: appended when all before is here,
  // else put into its piece.
  void put(uint64_t run, uint64_t at, std::span<const std::byte> bytes);
  // Throws the content away and begins anew.
  void restart();
  // Throws away all beyond the prefix.
  void drop_ahead();
  // Of a whole file: syncs it and renames it to `final_path` when the digest is right. False (and the partial
  // is gone) when it is not.
  bool finish(const std::filesystem::path& final_path);

 private:
  struct Piece {
    std::filesystem::path path;
    uint64_t size = 0;
  };
  void take_up_pieces();
  void extend(std::span<const std::byte> bytes);
  void move_pieces();
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
  std::map<uint64_t, Piece> pieces_;  // by their first byte
};

}  // namespace kvasir::hub
