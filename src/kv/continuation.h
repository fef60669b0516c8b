// Generations that another run can go on with (kv-cache.md 16, "continuation checkpoint"): a snapshot of a
// row between two steps, under a key of the caller's.
//
// Writes and removals go through one SpillQueue, in the order of the calls:
// - a newer checkpoint of a key cancels the older ones that are still queued;
// - complete() makes the key ineligible at once, and queues a removal that no later write can overtake;
// - a removal that fails leaves the key ineligible until a later one succeeds.
// So what was completed never comes back, whatever the order in which writes, drops and failures happen. A
// request that is cancelled keeps what is stored of it: nobody calls complete().
//
// Files are entries with a name of a DiskStore, "generation:" before the key: not evicted for its cap.
// All calls are of the thread that owns the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/spill_queue.h"
#include "kv/store.h"

namespace kvasir::kv {

struct Continuation {
  std::string ns;
  std::vector<int32_t> original_prompt_tokens;
  std::vector<int32_t> generated_tokens;  // those that the stored state covers, after the prompt
  int32_t pending_token = -1;             // sampled, neither emitted nor in the state yet; -1: none
  uint64_t seed = 0;  // the one that is used, so that the random numbers go on as they would have
  bool seed_was_explicit = false;
};

class Continuations {
 public:
  // The store outlives this. `warn` (may be empty) is told of what could not be written or removed, on the
  // writer's thread.
  explicit Continuations(DiskStore& store, std::function<void(const std::string&)> warn = {},
                         size_t pinned_bytes = SpillQueue::kDefaultCap);
  Continuations(const Continuations&) = delete;
  Continuations& operator=(const Continuations&) = delete;
  ~Continuations();  // gives up what waits, but not removals

  // `sequence` holds the prompt and the generated tokens. Keys of 1 to 180 characters, else
  // Error{invalid_input}. Neither waits.
  void save(std::string_view key, const Continuation& state, const Sequence& sequence);
  void complete(std::string_view key);

  struct Found {
    Continuation state;
    Sequence sequence;
  };
  // The newest that is stored; nothing where there is none, it does not check (a warning), or the key was
  // completed. Throws KvPoolExhausted.
  std::optional<Found> load(std::string_view key, KvCache& cache, ThreadTeam* team = nullptr);
  bool eligible(std::string_view key) const;

  bool drain(SpillQueue::Clock::time_point until) { return queue_.drain(until); }
  SpillQueue::Stats stats() const { return queue_.stats(); }

 private:
  struct Key {
    uint64_t newest = 0;    // the attempt that is queued, 0: none
    uint64_t removals = 0;  // queued
    bool removal_failed = false;
  };
  struct Attempt {
    std::string key, ns, metadata;
    bool cancelled = false;
  };
  void cancel(Key& key);
  void forget(std::string_view key);
  void done(std::string_view item);
  bool write(std::string_view item, std::span<const int32_t> tokens, const Sequence& sequence,
             const WriteWatch& watch);
  void remove(const std::string& key);

  DiskStore& store_;
  std::function<void(const std::string&)> warn_;
  uint64_t attempts_made_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, Key, std::less<>> keys_;  // those of which something is queued, or must be remembered
  std::map<uint64_t, Attempt> attempts_;          // queued; the queue knows them by their numbers
  SpillQueue queue_;                              // last: its writer uses the others
};

}  // namespace kvasir::kv
