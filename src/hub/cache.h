// The Hugging Face cache on disk, in the layout that Python's huggingface_hub reads and writes:
//
//   <hub>/models--<org>--<name>/blobs/<digest>                content, or <digest>.incomplete: a prefix of it
//                              /blobs/<digest>.incomplete-<n> bytes from the n-th on, fetched ahead of others
//                              /snapshots/<commit>/<path>     relative link to ../../blobs/<digest>
//                              /refs/<revision>               text: the commit
//   <hub>/.locks/models--<org>--<name>/<digest>.lock          held with flock while the blob is written
//
// A blob appears under its name only when it is whole and verified; a ref names a commit only when everything
// that was asked for is there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::hub {

// An exclusive flock on a file, released with its owner. The file stays, as huggingface_hub leaves it.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { release(); }

  // False when another process (or another FileLock of this one) holds it. Throws Error for everything else.
  bool try_acquire(const std::filesystem::path& path);
  bool held() const { return fd_ >= 0; }
  void release();

 private:
  int fd_ = -1;
};

class HubCache {
 public:
  explicit HubCache(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path repo_folder(std::string_view repo) const;
  std::filesystem::path blob(std::string_view repo, std::string_view digest) const;
  std::filesystem::path incomplete(std::string_view repo, std::string_view digest) const;
  // Of a blob that is not whole: bytes that are there, and their removal.
  uint64_t incomplete_bytes(std::string_view repo, std::string_view digest) const;
  void remove_incomplete(std::string_view repo, std::string_view digest) const;
  // All files of blobs that are not whole, whoever fetches them, sorted.
  std::vector<std::filesystem::path> incomplete_files(std::string_view repo) const;
  std::filesystem::path lock_file(std::string_view repo, std::string_view digest) const;
  std::filesystem::path snapshot(std::string_view repo, std::string_view commit) const;

  // "org/name" of a folder "models--org--name"; nothing for any other name.
  static std::optional<std::string> repo_of_folder(std::string_view folder_name);

  std::optional<std::string> read_ref(std::string_view repo, std::string_view revision) const;
  // Whole or not at all; does nothing when it says so already, or when `revision` is the commit itself.
  void write_ref(std::string_view repo, std::string_view revision, std::string_view commit) const;
  // CACHEDIR.TAG, by which backup tools know a cache.
  void tag() const;
  // Makes (or replaces) the snapshot's link to a blob.
  void link(std::string_view repo, std::string_view commit, std::string_view path,
            std::string_view digest) const;

  // The snapshot folder of a revision: what refs/<revision> names, or `revision` itself where it is a commit.
  // An empty revision: main, else the newest snapshot. Nothing when there is none.
  std::optional<std::filesystem::path> find_snapshot(std::string_view repo, std::string_view revision) const;
  // Commits with a snapshot folder, newest first.
  std::vector<std::string> snapshots(std::string_view repo) const;
  // Repositories in the cache, sorted.
  std::vector<std::string> repos() const;

 private:
  std::filesystem::path root_;
};

// Runs of bytes that were fetched ahead of those before them, beside `partial` ("<digest>.incomplete"), by
// their first byte.
std::map<uint64_t, std::filesystem::path> pieces_beside(const std::filesystem::path& partial);

// Bytes of runs that lie beyond `end`, each counted once. `runs`: by their first byte; `size` of what is
// there.
template <typename Runs, typename Size>
uint64_t bytes_beyond(uint64_t end, const Runs& runs, const Size& size) {
  uint64_t bytes = 0;
  for (const auto& [begin, run] : runs) {
    const uint64_t run_end = begin + size(run);
    if (run_end <= end) continue;
    bytes += run_end - std::max(begin, end);
    end = run_end;
  }
  return bytes;
}

// Folder and its parents; throws Error naming it when it cannot be made.
void make_folder(const std::filesystem::path& folder);

}  // namespace kvasir::hub
