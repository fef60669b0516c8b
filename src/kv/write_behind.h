// Keeps on disk what a prefix tree holds and gives up (kv-cache.md 14, 16): which of its resume points are
// not stored yet, and when they are written.
//
// A point is marked when it is put, by its key and exact tokens, and the mark goes when a write has
// succeeded. Points are written by a SpillQueue, so on no thread that computes: when the tree evicts them for
// its cap, and all that are marked when the engine has nothing to do (idle). Where pools run short, a live
// row needs pages of the tree at once: while no row is decoding the writer is waited for (be_patient);
// otherwise what is not stored yet is lost, and counted. A write that failed or was dropped leaves its mark,
// for flush() to try again.
//
// demote_idle and relieve_pressure are for a server's governor, between steps: they write on the caller's
// thread, the least recently used first, stop at the first write that fails, and give up nothing that was not
// stored.
//
// All calls are of the thread that owns the cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/prefix_tree.h"
#include "kv/spill_queue.h"
#include "kv/store.h"

namespace kvasir::kv {

class WriteBehind {
 public:
  using Clock = SpillQueue::Clock;
  struct Options {
    std::function<std::string(std::string_view key)> ns = {};  // the store's namespace of a key of the tree
    size_t pinned_bytes = SpillQueue::kDefaultCap;             // of SpillQueue
    std::chrono::milliseconds patience{10000};                 // with a writer that live rows wait for
    std::chrono::milliseconds closing{120000};                 // flush() of the destructor
    std::function<void(const std::string&)> warn = {};         // one line
  };

  // Takes over the tree's on_evict. The store and the tree outlive this.
  WriteBehind(DiskStore& store, PrefixTree& tree, Options options);
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;
  ~WriteBehind();  // flushes, in bounded time

  // After PrefixTree::put: these tokens are to be found on disk, too. Marks of shorter sequences that this
  // one serves are forgotten.
  void mark(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);
  // A sequence that the tree could not take: written, and not kept.
  void write(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);

  // For KvCache::on_pressure, in place of PrefixTree::yield.
  bool relieve();
  // Whether relieve may wait for the writer: say it before every step.
  void be_patient(bool patient);

  // Nothing is being computed: what is marked goes to the writer, the last used first in line for the room
  // there is. Does not wait.
  void idle();

  struct Flushed {
    bool durable = false;  // the counts up to `missing` are 0
    bool in_time = true;
    size_t pending = 0;  // the time was over first, or the store's cap has no room for them
    size_t failed = 0, dropped = 0;
    size_t missing = 0;  // memory gave them up before they were stored; each is told of once
    size_t entries = 0;  // of the store
    size_t longest_durable_prefix_tokens = 0;
  };
  // Waits for the writer, then has every marked point written, one at a time.
  Flushed flush(std::chrono::milliseconds limit);

  // Points that were not used for so long move to disk. Returns how many did.
  size_t demote_idle(std::chrono::milliseconds unused);
  // Frees `bytes` of pools. Returns how many it did.
  size_t relieve_pressure(size_t bytes);

  struct Stats {
    uint64_t spills = 0;           // snapshots that went to the writer
    uint64_t demotions = 0;        // points that demote_idle and relieve_pressure moved to disk
    size_t pending_snapshots = 0;  // marked, and not with the writer yet
    size_t pending_spills = 0;     // with the writer
    uint64_t pending_spill_bytes = 0;
    uint64_t dropped_spills = 0;  // never written: over the cap, or a decoding row needed the pages
    uint64_t failed_spills = 0;
  };
  Stats stats() const;

 private:
  struct Mark {
    enum class State : uint8_t { dirty, queued, failed, dropped };
    State state = State::dirty;
    bool resident = true;  // the tree has it
    bool attachments = false;
  };
  using Marks = std::map<std::vector<int32_t>, Mark>;
  enum class Eviction : uint8_t { queue, wait, lose };

  Mark* find(std::string_view key, std::span<const int32_t> tokens);
  void push(std::string_view key, std::span<const int32_t> tokens, Sequence snapshot);
  void evicted(std::string_view key, std::span<const int32_t> tokens, Sequence sequence);
  bool evict_one(Eviction how);
  void done(std::string_view key, std::span<const int32_t> tokens, SpillQueue::Outcome outcome);
  bool stored(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);
  bool store_now(std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence);
  struct Marked {
    std::string key;
    std::vector<int32_t> tokens;
    Sequence snapshot;
  };
  void forget_missing();
  std::vector<Marked> marked(uint64_t room, bool one_at_least, bool failed_too);

  DiskStore& store_;
  PrefixTree& tree_;
  Options options_;
  std::map<std::string, Marks, std::less<>> marks_;  // [key]
  Eviction eviction_ = Eviction::queue;
  Clock::time_point patient_until_ = {};
  size_t missing_ = 0;  // since the last flush
  uint64_t demotions_ = 0, lost_ = 0, failed_here_ = 0;
  SpillQueue queue_;  // last: its writer uses the store
};

}  // namespace kvasir::kv
