// How a store lies in its folder: names and places of its files, and its locks. For store*.cc.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

#include "kv/kvk_header.h"

namespace kvasir::kv {

// A lock among processes, by a file of the store. Where it cannot be had (a folder that may only be read, a
// file system without locks) the work goes on without.
class StoreLock {
 public:
  StoreLock(const std::filesystem::path& dir, const char* file, int operation) {
    fd_ = ::open((dir / file).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    held_ = fd_ >= 0 && ::flock(fd_, operation) == 0;
  }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;
  ~StoreLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool held() const { return held_; }

 private:
  int fd_ = -1;
  bool held_ = false;
};

// Held shared while a draft exists, and exclusively by whoever looks for drafts that nobody writes any more.
inline constexpr char kDraftLock[] = ".lock";
// Held exclusively, for a moment, while a new entry takes the place of others: two that each saw the other
// would both be gone.
inline constexpr char kReplaceLock[] = ".replace.lock";

// Saved conversations can be told by the file's name alone, so that even a damaged one is never deleted by
// us.
inline constexpr std::string_view kSavedPrefix = "saved-";
bool is_saved(const std::filesystem::path& path);
// A file that new_entry_path named for a cached prefix. No other is ever removed because of what it holds.
bool is_prefix_file(const std::filesystem::path& path);
// "[saved-]<32 hex>.kvk.<process>.tmp": the draft of a file that new_entry_path named.
bool is_draft(const std::filesystem::path& path);
// Whether something of that name is there, readable or not.
bool is_there(const std::filesystem::path& path);
// What is below `dir`, a bounded number of levels deep. Folders that a store makes may be symbolic links to
// where they were moved; other links are not followed. `visit` gets regular files, and whatever else is
// called *.kvk; `failed` a folder that cannot be read. What vanishes meanwhile is neither.
void visit_files(const std::filesystem::path& dir, int depth,
                 const std::function<void(const std::filesystem::path&)>& visit,
                 const std::function<void(const std::filesystem::path&, const std::error_code&)>& failed);
// Where a file lies against what its header says; empty: they agree, or the folder is none of a store's.
std::string misplaced(const std::filesystem::path& path, const KvkHeader& header);
// The first field in which a file's identity is another one; empty: none.
std::string differing_field(const StoreIdentity& file, const StoreIdentity& expected);
// The folder of a model and its settings in the store `dir`, and in it that of the identity's namespace.
std::filesystem::path model_folder(const std::filesystem::path& dir, const StoreIdentity& identity);
std::filesystem::path entry_folder(const std::filesystem::path& dir, const StoreIdentity& identity);
// A new file's place under the store `dir`, its folders made.
std::filesystem::path new_entry_path(const std::filesystem::path& dir, const StoreIdentity& identity,
                                     bool saved);

}  // namespace kvasir::kv
