// Removal of files of models: what goes, what that frees, and the deed. `kvasir rm` and `kvasir gc` share it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hub/cache.h"

namespace kvasir::cli {

struct Removal {
  std::vector<std::filesystem::path> files;  // links first, then what they lead to
  std::vector<std::filesystem::path>
      folders;                               // to be removed when they are empty afterwards, innermost first
  std::vector<std::filesystem::path> trees;  // removed whole
  std::filesystem::path refs;                // below it, those that name one of `commits` go
  std::set<std::string> commits;
  std::set<std::filesystem::path> shared;  // files that stay, because another model uses them
};

// All files below `folder`: links with the blob that each leads to, others with themselves.
std::map<std::filesystem::path, std::filesystem::path> links_below(const std::filesystem::path& folder);

// What the removal of a file frees: nothing of a link, or of a file that has another name elsewhere.
uint64_t size_of(const std::filesystem::path& path);
uint64_t bytes_of(const std::set<std::filesystem::path>& files);
uint64_t freed_bytes(const Removal& removal);

// Why it cannot be told which blobs of a repository are in use, naming the path: something of it cannot be
// read, or lies there that is no folder, file or link straight to one of its own blobs. Empty if it can.
std::string why_unclear(const hub::HubCache& cache, const std::string& repo);
// Why a folder cannot be read to its last file. Empty if it can.
std::string why_unread(const std::filesystem::path& folder);

// Links of the whole cache that lead out of the folder of its root that they lie in.
struct CacheLinks {
  struct Folder {
    // The link, and a place that it leads by or to: of a chain of links all are here. No link is in `to`
    // but its last name.
    std::vector<std::pair<std::filesystem::path, std::filesystem::path>> leaving;
    std::string unread;  // why there may be more of them
  };
  std::map<std::filesystem::path, Folder> folders;  // by the name in the cache's root
};
// Throws Error when the root cannot be read.
CacheLinks cache_links(const hub::HubCache& cache);
// Why content of a repository may be in use by another folder of the cache, naming the link. Empty if not.
std::string why_used_elsewhere(const hub::HubCache& cache, const std::string& repo, const CacheLinks& links);

// Takes the locks of all blobs of a repository. False when another process holds one: a download that is
// running holds that of the blob that it writes.
bool lock_blobs(const hub::HubCache& cache, const std::string& repo, std::vector<hub::FileLock>& locks);

// Throws Error naming the file that cannot be removed.
void carry_out(const Removal& removal);

}  // namespace kvasir::cli
