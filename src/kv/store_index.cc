#include "kv/store_index.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace kvasir::kv {
namespace {

// Bumped when the columns change: an index with another version is replaced.
constexpr int kIndexVersion = 2;

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    if (sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr) != SQLITE_OK)
      throw_error(ErrorCode::internal, "KV store index: {}", sqlite3_errmsg(db));
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(statement_); }
  Statement& bind(int at, std::string_view text) {
    sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(int at, int64_t value) {
    sqlite3_bind_int64(statement_, at, value);
    return *this;
  }
  Statement& bind(int at, std::span<const int32_t> values) {
    sqlite3_bind_blob64(statement_, at, values.data(), values.size_bytes(), SQLITE_TRANSIENT);
    return *this;
  }
  bool step() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE)
      throw_error(ErrorCode::internal, "KV store index: {}", sqlite3_errstr(code));
    return code == SQLITE_ROW;
  }
  int64_t integer(int column) { return sqlite3_column_int64(statement_, column); }
  std::string text(int column) {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr
               ? std::string()
               : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }
  std::vector<int32_t> tokens(int column) {
    const void* blob = sqlite3_column_blob(statement_, column);
    std::vector<int32_t> values(static_cast<size_t>(sqlite3_column_bytes(statement_, column)) / 4);
    if (!values.empty()) std::memcpy(values.data(), blob, values.size() * 4);
    return values;
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

StoreEntry entry_of(const std::filesystem::path& path, KvkHeader header) {
  StoreEntry entry;
  entry.path = path;
  entry.ns = header.identity.ns;
  entry.name = header.name;
  entry.created_ms = header.created_ms;
  entry.trimmable = header.trimmable();
  entry.attachments = !header.attachments.empty();
  entry.min_reusable = header.min_reusable;
  entry.tokens = std::move(header.tokens);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  entry.bytes = error ? 0 : size;
  entry.used_ms = modified_ms(path);
  return entry;
}

int64_t modified_ms(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return int64_t{status.st_mtim.tv_sec} * 1000 + status.st_mtim.tv_nsec / 1000000;
}

void set_modified_ms(const std::filesystem::path& path, int64_t milliseconds) {
  struct timespec times[2] = {};
  times[0].tv_nsec = UTIME_OMIT;
  times[1].tv_sec = milliseconds / 1000;
  times[1].tv_nsec = milliseconds % 1000 * 1000000;
  ::utimensat(AT_FDCWD, path.c_str(), times, 0);
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StoreIndex::StoreIndex(const std::filesystem::path& dir) {
  if (!dir.empty()) {
    const std::string file = (dir / "index.sqlite3").string();
    if (open(file)) return;
    // Of no use: derived data, so it is written anew from the files.
    close();
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) ::unlink((file + suffix).c_str());
    if (open(file)) return;
    close();
  }
  in_memory_ = true;
  KVASIR_CHECK(open(":memory:"));
}

StoreIndex::~StoreIndex() {
  close();
}

void StoreIndex::close() {
  if (db_ != nullptr) sqlite3_close(db_);
  db_ = nullptr;
}

void StoreIndex::execute(const char* sql) {
  char* message = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &message) != SQLITE_OK) {
    const std::string text = message == nullptr ? "unknown error" : message;
    sqlite3_free(message);
    throw_error(ErrorCode::internal, "KV store index: {}", text);
  }
}

bool StoreIndex::open(const std::string& file) {
  if (sqlite3_open_v2(file.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                      nullptr) != SQLITE_OK)
    return false;
  sqlite3_busy_timeout(db_, 10000);  // another process on the same store
  try {
    // Losing the last changes with the machine costs a scan of headers, so the index need not be synced.
    execute("PRAGMA synchronous=OFF");
    execute("BEGIN IMMEDIATE");
    const auto version = [&] {
      Statement statement(db_, "PRAGMA user_version");
      return statement.step() ? statement.integer(0) : 0;
    }();
    if (version != kIndexVersion) {
      execute("DROP TABLE IF EXISTS entries");
      execute(
          "CREATE TABLE entries(path TEXT PRIMARY KEY, folder TEXT NOT NULL, ns TEXT NOT NULL, name TEXT NOT "
          "NULL, bytes INTEGER NOT NULL, "
          "used INTEGER NOT NULL, created INTEGER NOT NULL, trimmable INTEGER NOT NULL, min_reusable INTEGER "
          "NOT NULL, tokens BLOB NOT NULL, attachments INTEGER NOT NULL)");
      execute("CREATE INDEX by_folder ON entries(folder, used)");
      execute(fmt::format("PRAGMA user_version={}", kIndexVersion).c_str());
    }
    execute("COMMIT");
    // A damaged table shows here rather than in the middle of a request.
    Statement check(db_, "PRAGMA quick_check(1)");
    return check.step() && check.text(0) == "ok";
  } catch (const Error&) {
    return false;
  }
}

int64_t StoreIndex::data_version() {
  Statement statement(db_, "PRAGMA data_version");  // changes when another connection has written
  return statement.step() ? statement.integer(0) : 0;
}

const std::vector<StoreEntry>& StoreIndex::entries(const std::filesystem::path& folder) {
  const int64_t version = data_version();
  if (version == cached_version_ && folder == cached_folder_) return cached_;
  cached_.clear();
  Statement statement(db_,
                      "SELECT path, ns, name, bytes, used, created, trimmable, min_reusable, tokens, "
                      "attachments FROM entries WHERE folder = ? ORDER BY used, path");
  statement.bind(1, folder.native());
  while (statement.step()) {
    StoreEntry& entry = cached_.emplace_back();
    entry.path = statement.text(0);
    entry.ns = statement.text(1);
    entry.name = statement.text(2);
    entry.bytes = static_cast<uint64_t>(statement.integer(3));
    entry.used_ms = statement.integer(4);
    entry.created_ms = statement.integer(5);
    entry.trimmable = statement.integer(6) != 0;
    entry.min_reusable = static_cast<int32_t>(statement.integer(7));
    entry.tokens = statement.tokens(8);
    entry.attachments = statement.integer(9) != 0;
  }
  cached_folder_ = folder;
  cached_version_ = version;
  return cached_;
}

// A copy of what the file says.
void StoreIndex::to_memory() {
  sqlite3* file = std::exchange(db_, nullptr);
  in_memory_ = true;
  KVASIR_CHECK(open(":memory:"));
  if (sqlite3_backup* copy = sqlite3_backup_init(db_, "main", file, "main")) {
    sqlite3_backup_step(copy, -1);
    sqlite3_backup_finish(copy);
  }
  sqlite3_close(file);
}

template <typename Change>
void StoreIndex::change(const Change& make) {
  cached_version_ = -1;
  try {
    make();
  } catch (const Error&) {
    if (in_memory_) throw;
    to_memory();
    make();
  }
}

void StoreIndex::insert(const std::filesystem::path& folder, const StoreEntry& entry) {
  change([&] {
    Statement statement(db_, "INSERT OR REPLACE INTO entries VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    statement.bind(1, entry.path.native()).bind(2, folder.native()).bind(3, entry.ns).bind(4, entry.name);
    statement.bind(5, static_cast<int64_t>(entry.bytes))
        .bind(6, entry.used_ms)
        .bind(7, entry.created_ms)
        .bind(8, int64_t{entry.trimmable});
    statement.bind(9, int64_t{entry.min_reusable})
        .bind(10, entry.tokens)
        .bind(11, int64_t{entry.attachments});
    statement.step();
  });
}

void StoreIndex::erase(const std::filesystem::path& path) {
  change([&] {
    Statement statement(db_, "DELETE FROM entries WHERE path = ?");
    statement.bind(1, path.native());
    statement.step();
  });
}

void StoreIndex::touch(const std::filesystem::path& path, int64_t used_ms) {
  change([&] {
    Statement statement(db_, "UPDATE entries SET used = ? WHERE path = ?");
    statement.bind(1, used_ms).bind(2, path.native());
    statement.step();
  });
}

}  // namespace kvasir::kv
