// What a repository holds at a commit, parsed from the hub's JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::hub {

struct RemoteFile {
  std::string path;    // inside the repository, safe (is_safe_path)
  uint64_t size = 0;   // bytes
  std::string digest;  // SHA-256 of the content (large files), or git's SHA-1 of "blob <size>\0" + content
  bool is_large() const { return digest.size() == 64; }
  std::string_view name() const;  // the last part of the path
};

struct Listing {
  std::string repo;               // as asked for
  std::string revision;           // as asked for
  std::string commit;             // 40 hexadecimal digits
  std::vector<RemoteFile> files;  // sorted by path

  const RemoteFile* find(std::string_view path) const;
};

// Limits on what a hub may claim.
inline constexpr size_t kMaxFiles = 1'000'000;
inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 46;  // 64 TiB

// The commit of GET /api/models/{repo}/revision/{rev}. Throws Error{corrupt_file} naming `where`.
std::string parse_commit(std::string_view json, const std::string& where);

// Appends the files of one page of GET /api/models/{repo}/tree/{commit}?recursive=true. Throws
// Error{corrupt_file} for anything malformed, and for a file name that could leave the folder it belongs to.
void parse_tree_page(std::string_view json, const std::string& where, std::vector<RemoteFile>* files);

}  // namespace kvasir::hub
