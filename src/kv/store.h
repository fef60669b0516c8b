// Sequences on disk: a folder of .kvk files, found by their tokens (kv-cache.md 16).
//
//   <dir>/<fingerprint>-<16 hex of the scheme key>/<"base" or 16 hex of the namespace>/[saved-]<32 hex>.kvk
//
// The folders may be symbolic links to where they were moved; entries are files.
//
// The files are the database. An SQLite index of their headers (<dir>/index.sqlite3) is derived from them,
// and rebuilt when it is missing, unreadable or stale. Files appear whole or not at all and are never
// rewritten, so a process may die at any moment and several processes may use one store: what a reader has
// open stays readable, what it lists and another has removed is a miss. Drafts of dead writers are removed on
// opening (writers hold a shared lock while they write).
//
// Entries without a name are cached prefixes: superseded, and evicted least recently used first when what the
// store holds of one identity passes its cap, on opening and after every put. Entries with a name are
// conversations that a user saved: replaced by the same name only. Any thread may call: files are written and
// read outside the one lock, which covers the index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/kvk_file.h"

struct sqlite3;

namespace kvasir::kv {

struct StoreEntry {
  std::filesystem::path path;
  std::string ns;
  std::string name;
  std::vector<int32_t> tokens;
  uint64_t bytes = 0;
  int64_t used_ms = 0;  // modification time: bumped by restore
  int64_t created_ms = 0;
  bool trimmable = false;
  bool attachments = false;  // then not trimmable
  int32_t min_reusable = 0;
};

class StoreIndex;

class DiskStore {
 public:
  struct Options {
    std::filesystem::path dir;
    StoreIdentity identity;     // ns is set by each call
    std::string numerics = {};  // the text behind identity.numerics_id: a refusal can say what differs
    uint64_t cap_bytes = uint64_t{32} << 30;
    bool verify = false;  // compare tensor hashes on every restore; load always does
    bool create = true;   // false: a folder that is not there stays so, and holds nothing
    // One line: a file that was dropped, a write that failed. On the thread of the call.
    std::function<void(const std::string&)> warn;
  };

  // Creates the folder if it may, brings the index up to date, removes orphaned drafts and corrupt cached
  // prefixes (saved conversations, whatever their files are called, and what cannot be read are kept and
  // reported), and evicts to the cap. Throws Error{not_found} when the folder cannot be used.
  explicit DiskStore(Options options);
  ~DiskStore();

  struct Found {
    StoreEntry entry;
    int32_t length = 0;  // usable tokens
  };
  // The entry that serves the longest proper prefix of `tokens`: by index only. Entries that cannot be
  // trimmed serve exactly their own length.
  std::optional<Found> find(std::string_view ns, std::span<const int32_t> tokens);

  // Whether an entry without a name gives back all of these tokens; `attachments`: and what was attached
  // there.
  bool serves(std::string_view ns, std::span<const int32_t> tokens, bool attachments = false);

  // The sequence of an entry, trimmed to `length`. On any failure but a full pool the entry is dropped with a
  // warning and nothing is returned; one whose file is gone is a miss. Throws KvPoolExhausted.
  std::optional<Sequence> restore(KvCache& cache, const StoreEntry& entry, int32_t length,
                                  ThreadTeam* team = nullptr);

  // Stores a prefix. False, with one warning, when it cannot be written or is larger than what conversations
  // leave of the cap. An equal
  // entry is replaced; entries that are its prefixes are removed if the new one can be trimmed to them and
  // they have no attachments. An Error{cancelled} of watch.step is passed on: nothing was stored, and nothing
  // is counted.
  bool put(std::string_view ns, std::span<const int32_t> tokens, const Sequence& sequence,
           const WriteWatch& watch = {});

  // Conversations by name, in a namespace. save throws on any failure, and then the previous one of that name
  // is untouched. What somebody else computed (Sequence::origin) is stored under an identity of its own
  // (identity_of), and has names only: it shares them with the others', and no look-up of a prefix comes
  // there. load says so, once, to Options::warn. load compares every hash: nothing else would notice a
  // damaged byte. `accept` sees the header of a file that is whole and of this identity before the cache is
  // touched; what it throws is passed on. load throws Error{not_found} (naming the models that have such a
  // name, if any), Error{corrupt_file}, KvPoolExhausted.
  void save(std::string_view name, std::string_view ns, std::span<const int32_t> tokens,
            const Sequence& sequence, std::string_view metadata, const WriteWatch& watch = {});
  struct Conversation {
    std::vector<int32_t> tokens;
    std::string metadata;
    Sequence sequence;
  };
  Conversation load(std::string_view name, std::string_view ns, KvCache& cache, ThreadTeam* team = nullptr,
                    const std::function<void(const KvkHeader&)>& accept = {});
  bool holds(std::string_view name, std::string_view ns);  // something is saved under this name
  // False when there is none. Throws Error{invalid_input} when a file cannot be removed.
  bool remove_named(std::string_view name, std::string_view ns);
  uint64_t room();  // what conversations leave of the cap: they count, and are never evicted

  std::vector<StoreEntry> entries();  // of this identity, least recently used first
  struct Stats {
    size_t entries = 0;
    uint64_t bytes = 0, cap_bytes = 0;
    uint64_t restores = 0, stores = 0, failed_stores = 0, evictions = 0, dropped = 0;
    double restore_ms_last = 0;
    size_t longest_prefix = 0;     // tokens of the longest entry without a name
    bool index_in_memory = false;  // the index file could not be used
  };
  Stats stats();
  uint64_t cap_bytes() const { return options_.cap_bytes; }

 private:
  using Replaces = bool (*)(const StoreEntry& entry, const StoreEntry& other);
  // The new entry, in the place of those that it `replaces`. Nothing: another process has removed it already.
  std::optional<StoreEntry> write(std::string_view name, std::string_view ns, std::span<const int32_t> tokens,
                                  const Sequence& sequence, std::string_view metadata,
                                  const WriteWatch& watch, const Replaces& replaces);
  // Where entries lie: what this build computed, and what each of the engines that it knows did.
  struct Home {
    StoreIdentity identity;
    std::filesystem::path folder;
  };
  Home home(const Origin& origin) const;
  std::vector<StoreEntry> named(std::string_view name, std::string_view ns);  // of all homes; with the lock
  std::optional<StoreEntry> newest_named(std::string_view name, std::string_view ns);
  // The newest of that name, also when another one takes its place meanwhile.
  KvkFile open_named(std::string_view name, std::string_view ns, ThreadTeam* team, StoreEntry& entry);
  [[noreturn]] void refuse_missing(std::string_view name, std::string_view ns) const;
  // Whatever its ns; empty: ours.
  std::string mismatch(const StoreIdentity& file, const Origin& origin = {}) const;
  void used(const StoreEntry& entry);
  void drop(const StoreEntry& entry, const std::string& reason, bool kept);
  void erase(const StoreEntry& entry);  // with the lock, as the next ones
  void index_files() { index_files({}); }
  void index_files(const Origin& origin);
  void evict_to_cap(const std::filesystem::path& keep);
  void warn(const std::string& text) const;

  Options options_;
  std::filesystem::path folder_;
  std::mutex mutex_;  // of the members below
  std::unique_ptr<StoreIndex> index_;
  Stats counters_;
};

// The verbs of `kvasir kv`, on any store folder, without a model.
struct StoredFile {
  std::filesystem::path path;
  uint64_t bytes = 0;
  std::string error;  // begins with the path; empty: everything that was checked is sound
  KvkHeader header;   // when it could be read
};
// Reads headers only. What cannot be read is listed with the reason, and so is an entry that lies where its
// header does not belong. Throws Error{not_found} when `dir` is no folder.
std::vector<StoredFile> list_store(const std::filesystem::path& dir);
// Also reads every byte and compares every hash. Drafts are no entries.
std::vector<StoredFile> verify_store(const std::filesystem::path& dir);
// The only entry whose saved name or file name is `which`; without one, whose file name begins with it: with
// at least 4 digits, "saved-" before them or not. Throws Error{not_found}, Error{invalid_input} when several
// fit.
std::filesystem::path find_entry(const std::filesystem::path& dir, std::string_view which);
// Writes the dense form, independent of page sizes. Both verify what they read.
void export_entry(const std::filesystem::path& entry, const std::filesystem::path& file);
// Adds a .kvk file of either layout to a store; its path there. Replaces what has the same name and tokens.
// Throws Error{invalid_input} for a conversation of that name with other tokens.
std::filesystem::path import_entry(const std::filesystem::path& file, const std::filesystem::path& dir,
                                   int page_tokens = 64);

}  // namespace kvasir::kv
