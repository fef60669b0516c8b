#include "kv/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file_error.h"
#include "kv/kvk_header.h"
#include "kv/store_index.h"
#include "kv/tokens.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;

// A lock among processes, by a file of the store. Where it cannot be had (a folder that may only be read, a
// file system without locks) the work goes on without.
class StoreLock {
 public:
  StoreLock(const fs::path& dir, const char* file, int operation) {
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
constexpr char kDraftLock[] = ".lock";
// Held exclusively, for a moment, while a new entry takes the place of others: two that each saw the other
// would both be gone.
constexpr char kReplaceLock[] = ".replace.lock";

std::string hash_name(std::string_view text) {
  return hex64(XXH64(text.data(), text.size(), 0));
}

std::string folder_name(const StoreIdentity& identity) {
  return identity.fingerprint() + "-" + hash_name(identity.scheme_key);
}

std::string ns_name(std::string_view ns) {
  return ns.empty() ? "base" : hash_name(ns);
}

// Saved conversations can be told by the file's name alone, so that even a damaged one is never deleted by
// us.
constexpr std::string_view kSavedPrefix = "saved-";
bool is_saved(const fs::path& path) {
  return path.filename().native().starts_with(kSavedPrefix);
}

fs::path fresh_path(const fs::path& folder, bool saved) {
  std::random_device random;
  uint64_t high = 0, low = 0;
  for (int i = 0; i < 2; ++i) {
    high = high << 32 | random();
    low = low << 32 | random();
  }
  return folder / fmt::format("{}{}{}.kvk", saved ? kSavedPrefix : "", hex64(high), hex64(low));
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The folders that a store makes: of a model and settings, and in it of a namespace.
bool is_entry_folder(std::string_view name) {
  return name.size() == 33 && is_hex(name.substr(0, 16), 16) && name[16] == '-' &&
         is_hex(name.substr(17), 16);
}

// A file that fresh_path named for a cached prefix. No other is ever removed because of what it holds.
bool is_prefix_file(const fs::path& path) {
  return path.extension() == ".kvk" && is_hex(path.stem().native(), 32);
}

// "[saved-]<32 hex>.kvk.<process>.tmp": the draft of a file that fresh_path named.
bool is_draft(const fs::path& path) {
  const fs::path file = path.filename();
  std::string_view name = file.native();
  if (name.starts_with(kSavedPrefix)) name.remove_prefix(kSavedPrefix.size());
  constexpr std::string_view kMiddle = ".kvk.", kEnd = ".tmp";
  if (name.size() <= 32 + kMiddle.size() + kEnd.size() || !is_hex(name.substr(0, 32), 32)) return false;
  name.remove_prefix(32);
  if (!name.starts_with(kMiddle) || !name.ends_with(kEnd)) return false;
  name = name.substr(kMiddle.size(), name.size() - kMiddle.size() - kEnd.size());
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

// What is below `dir`, a bounded number of levels deep. Folders that a store makes may be symbolic links to
// where they were moved; other links are not followed. `visit` gets regular files, and whatever else is
// called *.kvk; `failed` a folder that cannot be read. What vanishes meanwhile is neither.
void visit_files(const fs::path& dir, int depth, const std::function<void(const fs::path&)>& visit,
                 const std::function<void(const fs::path&, const std::error_code&)>& failed) {
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    const std::string name = path.filename().native();
    std::error_code ignored;
    const auto status = at->symlink_status(ignored);
    const bool moved = fs::is_symlink(status) &&
                       (is_entry_folder(name) ||
                        (is_entry_folder(dir.filename().native()) && (name == "base" || is_hex(name, 16)))) &&
                       fs::is_directory(path, ignored);
    if (fs::is_regular_file(status) || path.extension() == ".kvk")
      visit(path);
    else if ((fs::is_directory(status) || moved) && depth > 0)
      visit_files(path, depth - 1, visit, failed);
  }
  if (error && error != std::errc::no_such_file_or_directory) failed(dir, error);
}

// Whether something of that name is there, readable or not.
bool is_there(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 || errno != ENOENT;
}

// Where a file lies against what its header says; empty: they agree, or the folder is none of a store's.
std::string misplaced(const fs::path& path, const KvkHeader& header) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).parent_path();
  if (!is_entry_folder(folder.filename().native())) folder = folder.parent_path();
  if (!is_entry_folder(folder.filename().native())) return {};
  if (folder.filename() != folder_name(header.identity))
    return "it lies in the folder of another model or other settings: add it with `kvasir kv import`";
  if (is_saved(path) == !header.name.empty()) return {};
  return header.name.empty()
             ? fmt::format("name and header disagree: the file is called {}* and holds no conversation",
                           kSavedPrefix)
             : fmt::format(
                   "name and header disagree: it holds the conversation '{}' and is not called {}*; "
                   "add it with `kvasir kv import`",
                   printable(header.name), kSavedPrefix);
}

fs::path entry_folder(const fs::path& dir, const StoreIdentity& identity) {
  return dir / folder_name(identity) / ns_name(identity.ns);
}

// A new file's place under the store `dir`, its folders made.
fs::path new_entry_path(const fs::path& dir, const StoreIdentity& identity, bool saved) {
  const fs::path folder = entry_folder(dir, identity);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error(file_error(error.value()), "{}: {}", folder.string(), error.message());
  return fresh_path(folder, saved);
}

std::string differing_field(const StoreIdentity& file, const StoreIdentity& expected) {
  const auto field = [](std::string_view name, const std::string& a, const std::string& b) {
    return a == b ? std::string()
                  : fmt::format("{} mismatch (file {}, expected {})", name, printable(a), printable(b));
  };
  for (const std::string& text :
       {field("config_fingerprint", file.config_fingerprint, expected.config_fingerprint),
        field("weights_digest", file.weights_digest, expected.weights_digest),
        field("numerics_id", file.numerics_id, expected.numerics_id),
        field("scheme_key", file.scheme_key, expected.scheme_key),
        field("tokenizer_hash", file.tokenizer_hash, expected.tokenizer_hash)})
    if (!text.empty()) return text;
  return {};
}

// "activations is int8 there and f32 here, isa is ...": the lines in which two texts of "name=value" differ.
std::string differing_lines(std::string_view file, std::string_view own) {
  const auto parse = [](std::string_view text) {
    std::map<std::string, std::string> values;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (const size_t equals = line.find('='); equals != std::string_view::npos)
        values.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
    return values;
  };
  const auto there = parse(file), here = parse(own);
  std::set<std::string> names;
  for (const auto* side : {&there, &here})
    for (const auto& [key, value] : *side) names.insert(key);
  std::string text;
  for (const std::string& key : names) {
    const auto a = there.find(key), b = here.find(key);
    const std::string left = a == there.end() ? "absent" : a->second;
    const std::string right = b == here.end() ? "absent" : b->second;
    if (left == right) continue;
    if (!text.empty()) text += ", ";
    // Digests and whole configurations are not for reading.
    constexpr size_t kReadable = 100;
    text +=
        left.size() > kReadable || right.size() > kReadable || key == "weights"
            ? fmt::format("{} differs", printable(key))
            : fmt::format("{} is {} there and {} here", printable(key),
                          left.empty() ? "none" : printable(left), right.empty() ? "none" : printable(right));
  }
  return text;
}

}  // namespace

DiskStore::DiskStore(Options options) : options_(std::move(options)) {
  folder_ = options_.dir / folder_name(options_.identity);
  std::error_code error;
  if (!options_.create && !fs::is_directory(folder_, error) &&
      (!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)) {
    index_ = std::make_unique<StoreIndex>(fs::path());
    return;
  }
  if (options_.create) {
    error.clear();
    fs::create_directories(folder_, error);
  }
  if (!error && ::access(folder_.c_str(), (options_.create ? W_OK : 0) | R_OK | X_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (error)
    throw_error(file_error(error.value()),
                "{}: the KV store cannot be used ({}); choose a folder that can be {}", options_.dir.string(),
                error.message(), options_.create ? "written" : "read");
  index_ = std::make_unique<StoreIndex>(options_.dir);
  if (index_->in_memory())
    warn(fmt::format("{}: the index cannot be written; it is kept in memory", options_.dir.string()));
  {
    // Only without any writer: a draft that is being written looks like an orphan.
    const StoreLock lock(options_.dir, kDraftLock, LOCK_EX | LOCK_NB);
    if (lock.held())
      visit_files(
          options_.dir, 2,
          [](const fs::path& path) {
            if (is_draft(path)) ::unlink(path.c_str());
          },
          [](const fs::path&, const std::error_code&) {});  // of other models, perhaps of other users
  }
  index_files();
  evict_to_cap({});
}

// The index against the files of this identity. Headers are read for new files only.
void DiskStore::index_files() {
  std::set<fs::path> known;
  for (const StoreEntry& entry : std::vector<StoreEntry>(index_->entries(folder_))) {
    std::error_code gone;
    const auto size = fs::file_size(entry.path, gone);
    if (gone || size != entry.bytes) {
      index_->erase(entry.path);
    } else {
      known.insert(entry.path);
      if (const int64_t used = modified_ms(entry.path); used != entry.used_ms)
        index_->touch(entry.path, used);
    }
  }
  const auto visit = [&](const fs::path& path) {
    if (path.extension() != ".kvk" || known.contains(path)) return;
    std::string reason;
    // A cached prefix that is of no use is removed; a conversation, what nobody here has named, and what
    // cannot be read just now is somebody's.
    bool kept = !is_prefix_file(path);
    try {
      KvkHeader header = read_kvk_header(path);
      kept = kept || !header.name.empty();
      if (const std::string other = mismatch(header.identity); !other.empty())
        reason = fmt::format("{}: {}", path.string(), other);
      else if (const std::string place = misplaced(path, header); !place.empty())
        reason = fmt::format("{}: {}", path.string(), place);
      else
        index_->insert(folder_, entry_of(path, std::move(header)));
    } catch (const Error& unreadable) {
      if (unreadable.code() == ErrorCode::not_found && !is_there(path)) return;  // another process removed it
      kept = kept ||
             (unreadable.code() != ErrorCode::corrupt_file && unreadable.code() != ErrorCode::unsupported);
      reason = unreadable.what();
    }
    if (reason.empty()) return;
    if (!kept) ::unlink(path.c_str());
    ++counters_.dropped;
    warn(fmt::format("{} ({})", reason, kept ? "kept" : "removed"));
  };
  visit_files(folder_, 1, visit, [&](const fs::path& path, const std::error_code& error) {
    warn(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
  });
}

DiskStore::~DiskStore() = default;

std::string DiskStore::mismatch(const StoreIdentity& file) const {
  return differing_field(file, options_.identity);
}

void DiskStore::used(const StoreEntry& entry) {
  const int64_t now = now_ms();
  set_modified_ms(entry.path, now);
  const std::lock_guard lock(mutex_);
  index_->touch(entry.path, now);
  ++counters_.restores;
}

void DiskStore::warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

std::optional<DiskStore::Found> DiskStore::find(std::string_view ns, std::span<const int32_t> tokens) {
  if (tokens.size() < 2) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const StoreEntry* best = nullptr;
  int32_t longest = 0;
  for (const StoreEntry& entry : index_->entries(folder_)) {
    if (entry.ns != ns) continue;
    const int32_t length = common_prefix(entry.tokens, tokens.first(tokens.size() - 1));
    if (length <= longest || length < entry.min_reusable) continue;
    if (!entry.trimmable && length != static_cast<int32_t>(entry.tokens.size())) continue;
    longest = length;
    best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return Found{*best, longest};
}

bool DiskStore::serves(std::string_view ns, std::span<const int32_t> tokens) {
  const auto length = static_cast<int32_t>(tokens.size());
  const std::lock_guard lock(mutex_);
  for (const StoreEntry& entry : index_->entries(folder_))
    if (entry.ns == ns && entry.name.empty() && common_prefix(entry.tokens, tokens) == length &&
        (entry.trimmable ? length >= entry.min_reusable : entry.tokens.size() == tokens.size()))
      return true;
  return false;
}

void DiskStore::erase(const StoreEntry& entry) {
  ::unlink(entry.path.c_str());
  index_->erase(entry.path);
}

void DiskStore::drop(const StoreEntry& entry, const std::string& reason, bool kept) {
  const StoreEntry copy = entry;
  {
    const std::lock_guard lock(mutex_);
    ++counters_.dropped;
    if (kept) {
      index_->erase(copy.path);
    } else {
      erase(copy);
    }
  }
  warn(fmt::format("{} ({})", reason, kept ? "kept" : "removed"));
}

std::optional<Sequence> DiskStore::restore(KvCache& cache, const StoreEntry& entry, int32_t length,
                                           ThreadTeam* team) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Sequence> sequence;
  bool kept = !entry.name.empty() || !is_prefix_file(entry.path);
  try {
    const KvkFile file = KvkFile::open(entry.path, options_.verify);
    kept = kept || !file.header().name.empty();
    if (const std::string reason = mismatch(file.header().identity); !reason.empty())
      throw_error(ErrorCode::invalid_input, "{}: {}", entry.path.string(), reason);
    if (file.header().tokens != entry.tokens || file.header().name != entry.name ||
        file.header().identity.ns != entry.ns)
      throw_error(ErrorCode::corrupt_file, "{}: other tokens or another name than the index says",
                  entry.path.string());
    sequence = restore_sequence(cache, file, team);
    sequence->truncate(length);
  } catch (const KvPoolExhausted&) {
    throw;
  } catch (const Error& error) {
    const bool unreachable = error.code() == ErrorCode::not_found;
    if (unreachable && !is_there(entry.path)) {  // superseded or evicted between find and here
      const std::lock_guard lock(mutex_);
      index_->erase(entry.path);
      return std::nullopt;
    }
    drop(entry, error.what(), kept || unreachable || error.code() == ErrorCode::resource_exhausted);
    return std::nullopt;
  }
  used(entry);
  const std::lock_guard lock(mutex_);
  counters_.restore_ms_last =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return sequence;
}

std::optional<StoreEntry> DiskStore::write(std::string_view name, std::string_view ns,
                                           std::span<const int32_t> tokens, const Sequence& sequence,
                                           std::string_view metadata, const WriteWatch& watch,
                                           const Replaces& replaces) {
  KVASIR_CHECK(static_cast<int32_t>(tokens.size()) == sequence.offset());
  KvkHeader header;
  header.identity = options_.identity;
  header.identity.ns = ns;
  header.numerics = options_.numerics;
  header.created_ms = now_ms();
  header.name = name;
  header.metadata = metadata;
  header.tokens.assign(tokens.begin(), tokens.end());
  const fs::path path = new_entry_path(options_.dir, header.identity, !name.empty());
  {
    const StoreLock lock(options_.dir, kDraftLock, LOCK_SH);
    write_kvk(path, std::move(header), sequence, watch);
  }
  const std::lock_guard lock(mutex_);
  const StoreLock replacing(options_.dir, kReplaceLock, LOCK_EX);
  // Another process may have removed it already, or put a newer one in its place.
  std::optional<StoreEntry> entry;
  try {
    entry = entry_of(path, read_kvk_header(path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found || is_there(path)) throw;
    return std::nullopt;
  }
  index_->insert(folder_, *entry);
  if (!name.empty()) index_files();  // what was imported since this store was opened may have its name
  for (const StoreEntry& other : std::vector<StoreEntry>(index_->entries(folder_)))
    if (other.path != path && replaces(*entry, other)) erase(other);
  return entry;
}

uint64_t DiskStore::room() {
  const std::lock_guard lock(mutex_);
  uint64_t room = options_.cap_bytes;
  for (const StoreEntry& entry : index_->entries(folder_))
    if (!entry.name.empty()) room -= std::min(room, entry.bytes);
  return room;
}

void DiskStore::evict_to_cap(const fs::path& keep) {
  const std::vector<StoreEntry> all = index_->entries(folder_);
  uint64_t total = 0;
  for (const StoreEntry& entry : all) total += entry.bytes;
  for (const StoreEntry& entry : all) {
    if (total <= options_.cap_bytes) return;
    if (!entry.name.empty() || entry.path == keep) continue;
    erase(entry);
    total -= entry.bytes;
    ++counters_.evictions;
  }
}

bool DiskStore::put(std::string_view ns, std::span<const int32_t> tokens, const Sequence& sequence,
                    const WriteWatch& watch) {
  try {
    WriteWatch capped = watch;
    capped.cap_bytes = room();
    const auto replaces = [](const StoreEntry& entry, const StoreEntry& other) {
      if (other.ns != entry.ns || !other.name.empty()) return false;
      const size_t length = other.tokens.size(), whole = entry.tokens.size();
      if (length > whole || common_prefix(other.tokens, entry.tokens) != static_cast<int32_t>(length))
        return false;
      const bool ancestor = length < whole;
      return !ancestor || (entry.trimmable && static_cast<int32_t>(length) >= entry.min_reusable);
    };
    // After this the sequence may be gone: watch.read has said that it is not needed.
    const std::optional<StoreEntry> stored = write({}, ns, tokens, sequence, {}, capped, replaces);
    const std::lock_guard lock(mutex_);
    if (stored) evict_to_cap(stored->path);
    ++counters_.stores;
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) throw;
    {
      const std::lock_guard lock(mutex_);
      ++counters_.failed_stores;
      evict_to_cap({});
    }
    warn(error.what());
    return false;
  }
}

void DiskStore::save(std::string_view name, std::string_view ns, std::span<const int32_t> tokens,
                     const Sequence& sequence, std::string_view metadata, const WriteWatch& watch) {
  if (name.empty() || name.size() > 200 || name.find('\0') != std::string_view::npos)
    throw_error(ErrorCode::invalid_input, "'{}' is no name for a conversation: expected 1 to 200 characters",
                printable(name));
  try {  // a header is JSON: two names of bytes that it cannot hold would be one there
    nlohmann::json({name, ns}).dump();
  } catch (const nlohmann::json::exception&) {
    throw_error(ErrorCode::invalid_input, "'{}' is no name for a conversation: it is not UTF-8",
                printable(name));
  }
  if (metadata.size() > size_t{32} << 20)
    throw_error(ErrorCode::invalid_input, "conversation '{}': {} bytes of metadata are more than 32 MiB",
                printable(name), metadata.size());
  write(name, ns, tokens, sequence, metadata, watch, [](const StoreEntry& entry, const StoreEntry& other) {
    return other.name == entry.name && other.ns == entry.ns;
  });
  const std::lock_guard lock(mutex_);
  ++counters_.stores;
}

std::optional<StoreEntry> DiskStore::newest_named(std::string_view name, std::string_view ns) {
  std::optional<StoreEntry> newest;  // should a crash have left two of that name
  for (const StoreEntry& entry : entries())
    if (entry.name == name && entry.ns == ns && (!newest || entry.created_ms >= newest->created_ms))
      newest = entry;
  return newest;
}

// Says why nothing of this name can be loaded.
void DiskStore::refuse_missing(std::string_view name, std::string_view ns) const {
  std::set<std::string> others;
  std::vector<std::string> unread;
  for (const StoredFile& file :
       is_there(options_.dir) ? list_store(options_.dir) : std::vector<StoredFile>()) {
    if (!file.error.empty() &&
        (file.header.name == name || (file.header.name.empty() && !is_prefix_file(file.path))))
      unread.push_back(file.error);
    if (!file.error.empty() || file.header.name != name) continue;
    std::string reason = file.header.numerics.empty() || options_.numerics.empty()
                             ? std::string()
                             : differing_lines(file.header.numerics, options_.numerics);
    if (reason.empty()) reason = mismatch(file.header.identity);
    if (reason.empty() && file.header.identity.ns != ns)
      reason = fmt::format("adapters are {} there and {} here",
                           file.header.identity.ns.empty() ? "none" : printable(file.header.identity.ns),
                           ns.empty() ? "none" : printable(ns));
    if (reason.empty())
      unread.push_back(
          fmt::format("{}: lies where no entries are: add it with `kvasir kv import`", file.path.string()));
    else
      others.insert(fmt::format("{}: {}", printable(file.header.identity.model_id), reason));
  }
  if (others.empty())
    throw_error(ErrorCode::not_found, "nothing is saved as '{}' in {}{}", printable(name),
                options_.dir.string(),
                unread.empty() ? std::string()
                               : fmt::format(" ({} there cannot be used: {}{})", unread.size(), unread[0],
                                             unread.size() > 1 ? "; `kvasir kv verify` names all" : ""));
  throw_error(ErrorCode::not_found,
              "what is saved as '{}' in {} is of another model or other settings ({}); load it with those",
              printable(name), options_.dir.string(), fmt::join(others, "; "));
}

KvkFile DiskStore::open_named(std::string_view name, std::string_view ns, ThreadTeam* team,
                              StoreEntry& entry) {
  while (true) {
    const std::optional<StoreEntry> newest = newest_named(name, ns);
    if (!newest) refuse_missing(name, ns);
    entry = *newest;
    try {
      return KvkFile::open(entry.path, true, team);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found || is_there(entry.path)) throw;
    }
    // A newer one has taken its place since, or it was removed.
    const std::lock_guard lock(mutex_);
    index_files();
  }
}

DiskStore::Conversation DiskStore::load(std::string_view name, std::string_view ns, KvCache& cache,
                                        ThreadTeam* team,
                                        const std::function<void(const KvkHeader&)>& accept) {
  StoreEntry entry;
  const KvkFile file = open_named(name, ns, team, entry);
  if (const std::string reason = mismatch(file.header().identity); !reason.empty())
    throw_error(ErrorCode::corrupt_file, "{}: {}", entry.path.string(), reason);
  if (file.header().name != name || file.header().identity.ns != ns)
    throw_error(ErrorCode::corrupt_file, "{}: holds '{}', and the index says '{}': remove {}",
                entry.path.string(), printable(file.header().name), printable(name),
                (options_.dir / "index.sqlite3").string());
  if (accept) accept(file.header());
  Conversation conversation{.tokens = file.header().tokens,
                            .metadata = file.header().metadata,
                            .sequence = restore_sequence(cache, file, team)};
  used(entry);
  return conversation;
}

bool DiskStore::remove_named(std::string_view name, std::string_view ns) {
  bool removed = false;
  const std::lock_guard lock(mutex_);
  for (const StoreEntry& entry : std::vector<StoreEntry>(index_->entries(folder_)))
    if (entry.name == name && entry.ns == ns) {
      if (::unlink(entry.path.c_str()) != 0 && errno != ENOENT)
        throw_error(ErrorCode::invalid_input, "{}: cannot be removed: {}", entry.path.string(),
                    std::strerror(errno));
      index_->erase(entry.path);
      removed = true;
    }
  return removed;
}

std::vector<StoreEntry> DiskStore::entries() {
  const std::lock_guard lock(mutex_);
  return index_->entries(folder_);
}

DiskStore::Stats DiskStore::stats() {
  const std::lock_guard lock(mutex_);
  Stats stats = counters_;
  for (const StoreEntry& entry : index_->entries(folder_)) {
    ++stats.entries;
    stats.bytes += entry.bytes;
    if (entry.name.empty()) stats.longest_prefix = std::max(stats.longest_prefix, entry.tokens.size());
  }
  stats.cap_bytes = options_.cap_bytes;
  stats.index_in_memory = index_->in_memory();
  return stats;
}

namespace {

std::vector<StoredFile> scan(const fs::path& dir, bool verify) {
  std::error_code error;
  if (!fs::is_directory(dir, error))
    throw_error(ErrorCode::not_found, "{}: {}", dir.string(),
                !error || error == std::errc::no_such_file_or_directory ? "no such folder" : error.message());
  std::vector<StoredFile> files;
  const auto visit = [&](const fs::path& path) {
    if (path.extension() != ".kvk") return;
    StoredFile file;
    file.path = path;
    std::error_code ignored;
    if (const auto size = fs::file_size(path, ignored); !ignored) file.bytes = size;
    try {
      if (fs::is_symlink(path, ignored))
        throw_error(ErrorCode::invalid_input, "{}: is a symbolic link, and entries are files", path.string());
      file.header = read_kvk_header(path);  // known even if something behind it is damaged
      if (verify) KvkFile::open(path, true);
      if (const std::string place = misplaced(path, file.header); !place.empty())
        throw_error(ErrorCode::invalid_input, "{}: {}", path.string(), place);
    } catch (const Error& unsound) {
      if (unsound.code() == ErrorCode::not_found && !is_there(path)) return;  // removed meanwhile
      file.error = unsound.what();
    }
    files.push_back(std::move(file));
  };
  visit_files(dir, 3, visit, [&](const fs::path& path, const std::error_code& unreadable) {
    files.push_back({.path = path,
                     .bytes = 0,
                     .error = fmt::format("{}: cannot be read: {}", path.string(), unreadable.message()),
                     .header = {}});
  });
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::vector<StoredFile> list_store(const fs::path& dir) {
  return scan(dir, false);
}
std::vector<StoredFile> verify_store(const fs::path& dir) {
  return scan(dir, true);
}

fs::path find_entry(const fs::path& dir, std::string_view which) {
  constexpr size_t kLeastDigits = 4;
  std::string_view digits = which;
  if (digits.starts_with(kSavedPrefix)) digits.remove_prefix(kSavedPrefix.size());
  std::vector<fs::path> exact, begun;
  for (const StoredFile& file : list_store(dir)) {
    const std::string name = file.path.filename().string();
    if (name == which || (!which.empty() && file.header.name == which))
      exact.push_back(file.path);
    else if (digits.size() >= kLeastDigits &&
             std::string_view(name).substr(is_saved(file.path) ? kSavedPrefix.size() : 0).starts_with(digits))
      begun.push_back(file.path);
  }
  const std::vector<fs::path>& found = exact.empty() ? begun : exact;
  if (found.empty())
    throw_error(ErrorCode::not_found, "{}: no entry '{}'; `kvasir kv ls` lists them", dir.string(),
                printable(which));
  if (found.size() > 1)
    throw_error(ErrorCode::invalid_input, "{}: '{}' fits {} entries; give more of the file's name",
                dir.string(), printable(which), found.size());
  return found.front();
}

void export_entry(const fs::path& entry, const fs::path& file) {
  convert_kvk(KvkFile::open(entry, true), file, KvkHeader::Layout::dense, 0);
}

fs::path import_entry(const fs::path& file, const fs::path& dir, int page_tokens) {
  const KvkFile source = KvkFile::open(file, true);
  const KvkHeader& header = source.header();
  // Those in whose place it comes. Refuses another conversation of its name.
  const auto duplicates = [&] {
    std::vector<fs::path> found;
    const auto visit = [&](const fs::path& path) {
      if (path.extension() != ".kvk" || is_saved(path) == header.name.empty()) return;
      KvkHeader there;
      try {
        there = read_kvk_header(path);
      } catch (const Error&) {
        return;  // `kvasir kv verify` tells of it
      }
      if (there.name != header.name || there.identity.ns != header.identity.ns ||
          !differing_field(there.identity, header.identity).empty())
        return;
      if (there.tokens == header.tokens)
        found.push_back(path);
      else if (!header.name.empty())
        throw_error(ErrorCode::invalid_input,
                    "{}: another conversation '{}' is in {} already: remove it first, with `kvasir kv rm`",
                    file.string(), printable(header.name), dir.string());
    };
    const fs::path folder = entry_folder(dir, header.identity);
    visit_files(folder, 0, visit, [&](const fs::path&, const std::error_code& error) {
      throw_error(file_error(error.value()), "{}: cannot be read: {}", folder.string(), error.message());
    });
    return found;
  };
  duplicates();  // nothing is written for one that is refused
  const fs::path path = new_entry_path(dir, header.identity, !header.name.empty());
  const StoreLock lock(dir, kDraftLock, LOCK_SH);
  // Decided when the draft is whole, under the lock of all who replace: two that import at once would each
  // miss the other.
  std::optional<StoreLock> replacing;
  std::vector<fs::path> replaced;
  convert_kvk(source, path, KvkHeader::Layout::pages, page_tokens, [&] {
    replacing.emplace(dir, kReplaceLock, LOCK_EX);
    replaced = duplicates();
  });
  for (const fs::path& duplicate : replaced) ::unlink(duplicate.c_str());
  return path;
}

}  // namespace kvasir::kv
