// Snapshots of sequences on their way to disk: a line, and one thread that gives them to a sink, one at a
// time.
//
// A snapshot is a Sequence of its own (page references, no copies), so its pages cannot change: whoever
// appends to a shared page copies it first. The writer's thread reads page tables and pages of the snapshot
// it holds and nothing else of the cache. Pools and reference counts belong to the thread that owns the cache
// (the owner's, below): it takes snapshots, and it alone releases them, in push, reap, drain, wait_read,
// drop_oldest and the destructor. The writer only moves a snapshot that it has done with to where reap finds
// it.
//
// Snapshots pin pages, so the line is bounded in bytes. Over the cap the oldest that waits is dropped: never
// the one being written, never the one just added, never a control. A drop is a prefix that is not found
// later, never a wrong one.
//
// All calls but the sink's are of the owner's thread; stats() of any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kv/cache.h"
#include "kv/kvk_file.h"

namespace kvasir::kv {

class SpillQueue {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Outcome : uint8_t { written, failed, dropped };

  // On the writer's thread: true when the snapshot is stored. Calls watch.step() between pieces of work,
  // which throws Error{cancelled} when the snapshot is not to be written any more, and watch.read() when its
  // pages are not needed any more (the sequence may not be touched afterwards). What it throws counts as
  // failed.
  using Sink = std::function<bool(std::string_view key, std::span<const int32_t> tokens,
                                  const Sequence& sequence, const WriteWatch& watch)>;
  // On the owner's thread, once for each snapshot.
  using Done = std::function<void(std::string_view key, std::span<const int32_t> tokens, Outcome outcome)>;

  static constexpr size_t kDefaultCap = size_t{2} << 30;

  // `cap_bytes` of pages that snapshots may refer to (pages that several share count for each). 0: the
  // newest, and the one being written.
  explicit SpillQueue(Sink sink, Done done = {}, size_t cap_bytes = kDefaultCap);
  SpillQueue(const SpillQueue&) = delete;
  SpillQueue& operator=(const SpillQueue&) = delete;
  ~SpillQueue();  // drops what waits, and waits for what is being written to notice

  // Takes the snapshot, whatever happens. O(1); the thread starts with the first.
  void push(std::string key, std::vector<int32_t> tokens, Sequence snapshot);
  // Runs on the writer's thread when all that was pushed before is done. Holds no bytes, is never dropped
  // (the destructor runs it too). Must not throw.
  void control(std::function<void()> action);

  // Hands finished snapshots to Done and releases them. True if pages were released.
  bool reap();
  // Waits until nothing waits or is written, then reap. False: the time is over first.
  bool drain(Clock::time_point until);
  // Waits until one of the snapshots is released, and reaps. False: the time is over first, or there is none.
  bool wait_read(Clock::time_point until);
  // Releases a snapshot now: the oldest that waits, or else the one being written, which ends at its next
  // step. False: there is none.
  bool drop_oldest();

  // Drops the snapshots of this key that wait; one that is being written ends at its next step.
  void cancel(std::string_view key);

  bool idle() const;  // nothing waits, nothing is written
  struct Stats {
    size_t pending = 0;          // snapshots that wait or are being written
    uint64_t pending_bytes = 0;  // that they pin
    uint64_t pushed = 0, written = 0, failed = 0, dropped = 0;
  };
  Stats stats() const;
  size_t cap_bytes() const { return cap_; }

 private:
  struct Item {
    std::string key;
    std::vector<int32_t> tokens;
    Sequence sequence;
    size_t bytes = 0;
    std::function<void()> action;  // a control
    Outcome outcome = Outcome::dropped;
  };
  using Line = std::deque<std::unique_ptr<Item>>;

  void enqueue(std::unique_ptr<Item> item);
  Line::iterator oldest_snapshot(Line::iterator end);
  void drop(const Line::iterator& at);
  void run();
  Outcome write(Item& item);
  void read(Item& item);

  const Sink sink_;
  const Done done_;
  const size_t cap_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable work_, progress_;
  Line line_;
  Item* writing_ = nullptr;  // taken from the line, owned by run()
  bool abandon_ = false;     // the one being written
  bool stop_ = false;
  std::vector<std::unique_ptr<Item>> finished_;
  std::vector<Sequence> released_;  // of items that are still being written, or of finished ones
  Stats stats_;
  std::thread thread_;
};

}  // namespace kvasir::kv
