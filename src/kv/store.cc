#include "kv/store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file_error.h"
#include "base/printable.h"
#include "kv/store_index.h"
#include "kv/store_layout.h"
#include "kv/tokens.h"

namespace kvasir::kv {

namespace fs = std::filesystem;

namespace {

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

// `numerics` of what has this origin.
std::string numerics_of(std::string numerics, const Origin& origin) {
  if (origin && !numerics.empty()) numerics += fmt::format("computed_by={}\n", origin.engine);
  return numerics;
}

}  // namespace

DiskStore::DiskStore(Options options) : options_(std::move(options)) {
  folder_ = model_folder(options_.dir, options_.identity);
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
void DiskStore::index_files(const Origin& origin) {
  const fs::path folder = home(origin).folder;
  std::set<fs::path> known;
  for (const StoreEntry& entry : std::vector<StoreEntry>(index_->entries(folder))) {
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
      if (const std::string other = mismatch(header.identity, origin); !other.empty())
        reason = fmt::format("{}: {}", path.string(), other);
      else if (const std::string place = misplaced(path, header); !place.empty())
        reason = fmt::format("{}: {}", path.string(), place);
      else
        index_->insert(folder, entry_of(path, std::move(header)));
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
  visit_files(folder, 1, visit, [&](const fs::path& path, const std::error_code& error) {
    warn(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
  });
}

DiskStore::~DiskStore() = default;

std::string DiskStore::mismatch(const StoreIdentity& file, const Origin& origin) const {
  return differing_field(file, identity_of(options_.identity, origin));
}

DiskStore::Home DiskStore::home(const Origin& origin) const {
  StoreIdentity identity = identity_of(options_.identity, origin);
  fs::path folder = model_folder(options_.dir, identity);
  return {std::move(identity), std::move(folder)};
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

bool DiskStore::serves(std::string_view ns, std::span<const int32_t> tokens, bool attachments) {
  const auto length = static_cast<int32_t>(tokens.size());
  const std::lock_guard lock(mutex_);
  for (const StoreEntry& entry : index_->entries(folder_))
    if (entry.ns == ns && entry.name.empty() && (entry.attachments || !attachments) &&
        common_prefix(entry.tokens, tokens) == length &&
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
  const Home where = home(sequence.origin());
  KvkHeader header;
  header.identity = where.identity;
  header.identity.ns = ns;
  header.numerics = numerics_of(options_.numerics, sequence.origin());
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
  index_->insert(where.folder, *entry);
  std::vector<StoreEntry> others;
  if (name.empty()) {
    others = index_->entries(folder_);
  } else {  // what was imported since this store was opened may have its name
    index_files();
    others = named(name, ns);
  }
  for (const StoreEntry& other : others)
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
  KVASIR_CHECK_MSG(!sequence.origin(), "a cached prefix is what this build computed");
  try {
    WriteWatch capped = watch;
    capped.cap_bytes = room();
    const auto replaces = [](const StoreEntry& entry, const StoreEntry& other) {
      if (other.ns != entry.ns || !other.name.empty()) return false;
      const size_t length = other.tokens.size(), whole = entry.tokens.size();
      if (length > whole || common_prefix(other.tokens, entry.tokens) != static_cast<int32_t>(length))
        return false;
      const bool ancestor = length < whole;
      return !ancestor ||
             (entry.trimmable && !other.attachments && static_cast<int32_t>(length) >= entry.min_reusable);
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

// With the lock.
std::vector<StoreEntry> DiskStore::named(std::string_view name, std::string_view ns) {
  std::vector<StoreEntry> found;
  for (const Origin& origin : origins()) {
    if (origin) index_files(origin);  // few look there
    for (const StoreEntry& entry : index_->entries(home(origin).folder))
      if (entry.name == name && entry.ns == ns) found.push_back(entry);
  }
  return found;
}

std::optional<StoreEntry> DiskStore::newest_named(std::string_view name, std::string_view ns) {
  const std::lock_guard lock(mutex_);
  std::optional<StoreEntry> newest;  // should a crash have left two of that name
  for (const StoreEntry& entry : named(name, ns))
    if (!newest || entry.created_ms >= newest->created_ms) newest = entry;
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
    std::string reason =
        file.header.numerics.empty() || options_.numerics.empty()
            ? std::string()
            : differing_lines(file.header.numerics, numerics_of(options_.numerics, file.header.origin));
    if (reason.empty()) reason = mismatch(file.header.identity, file.header.origin);
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
    index_files();  // named() does so of the others
  }
}

DiskStore::Conversation DiskStore::load(std::string_view name, std::string_view ns, KvCache& cache,
                                        ThreadTeam* team,
                                        const std::function<void(const KvkHeader&)>& accept) {
  StoreEntry entry;
  const KvkFile file = open_named(name, ns, team, entry);
  const Origin& origin = file.header().origin;
  if (const std::string reason = mismatch(file.header().identity, origin); !reason.empty())
    throw_error(ErrorCode::corrupt_file, "{}: {}", entry.path.string(), reason);
  if (file.header().name != name || file.header().identity.ns != ns)
    throw_error(ErrorCode::corrupt_file, "{}: holds '{}', and the index says '{}': remove {}",
                entry.path.string(), printable(file.header().name), printable(name),
                (options_.dir / "index.sqlite3").string());
  if (accept) accept(file.header());
  Conversation conversation{.tokens = file.header().tokens,
                            .metadata = file.header().metadata,
                            .sequence = restore_sequence(cache, file, team)};
  if (origin)
    warn(fmt::format(
        "'{}': its keys and values were computed by {} ({}), not by this build: what follows from them "
        "may differ in its last digits from what kvasir computes of the same text",
        printable(name), origin.engine, printable(origin.source)));
  used(entry);
  return conversation;
}

bool DiskStore::holds(std::string_view name, std::string_view ns) {
  return newest_named(name, ns).has_value();
}

bool DiskStore::remove_named(std::string_view name, std::string_view ns) {
  bool removed = false;
  const std::lock_guard lock(mutex_);
  for (const StoreEntry& entry : named(name, ns)) {
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

}  // namespace kvasir::kv
