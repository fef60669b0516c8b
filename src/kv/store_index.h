// The SQLite index of a store's files: derived, rebuilt when it is of no use, and kept in memory from the
// moment when its file cannot be written (a full disk): nothing that the files hold depends on it. Private to
// kv/.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kv/store.h"

namespace kvasir::kv {

class StoreIndex {
 public:
  // `dir`/index.sqlite3; in memory when that file can be neither read nor replaced, or `dir` is empty.
  explicit StoreIndex(const std::filesystem::path& dir);
  ~StoreIndex();
  StoreIndex(const StoreIndex&) = delete;
  StoreIndex& operator=(const StoreIndex&) = delete;

  bool in_memory() const { return in_memory_; }
  // Entries of one identity's folder, the path as given to insert, least recently used first. Cached until
  // this or another process changes the index.
  const std::vector<StoreEntry>& entries(const std::filesystem::path& folder);
  void insert(const std::filesystem::path& folder, const StoreEntry& entry);
  void erase(const std::filesystem::path& path);
  void touch(const std::filesystem::path& path, int64_t used_ms);

 private:
  bool open(const std::string& file);
  void execute(const char* sql);
  void close();
  int64_t data_version();
  void to_memory();
  template <typename Change>
  void change(const Change& make);

  sqlite3* db_ = nullptr;
  bool in_memory_ = false;
  std::filesystem::path cached_folder_;
  int64_t cached_version_ = -1;
  std::vector<StoreEntry> cached_;
};

StoreEntry entry_of(const std::filesystem::path& path, KvkHeader header);
int64_t modified_ms(const std::filesystem::path& path);  // 0 when the file is gone
void set_modified_ms(const std::filesystem::path& path, int64_t milliseconds);
int64_t now_ms();

}  // namespace kvasir::kv
