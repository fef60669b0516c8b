// A fixed team of threads that run one function together, with barriers inside it.
//
// The caller is member 0; size() - 1 workers wait for work. Between runs they spin briefly, then park: an
// idle engine costs nothing. barrier() spins briefly, then parks as well, so an oversubscribed machine stays
// correct and does not burn its quota. One run() at a time. A member that throws makes run() rethrow the
// first exception after all members have left; a throwing member must not leave others waiting in barrier(),
// so work that uses barriers must not throw (nothing on the token path does).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

namespace kvasir {

// Its workers take no signals (base/signal_block.h).
class ThreadTeam {
 public:
  // `threads` >= 1, including the caller. When `cpus` is not empty, member m is pinned to cpus[m % its size]:
  // workers for good, the caller while it is in run(); then it has the processors again that it had.
  explicit ThreadTeam(int threads, const std::vector<int>& cpus = {});
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();

  int size() const { return size_; }

  // Calls work(member) on every member, member = 0 .. size()-1, and returns when all have returned.
  template <typename Work>
  void run(Work&& work) {
    run_erased(
        [](void* context, int member) { (*static_cast<std::remove_reference_t<Work>*>(context))(member); },
        const_cast<void*>(static_cast<const void*>(&work)));
  }

  // Inside run(): waits until every member has called it; what was written before is visible after.
  void barrier();

 private:
  using Function = void (*)(void*, int);
  void run_erased(Function function, void* context);
  void run_members();
  void worker(int member, int cpu);
  void call(int member);

  const int size_;
  int first_cpu_ = -1;  // of member 0
  Function function_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};  // bumped to start a run (or to stop)
  alignas(64) std::atomic<uint32_t> running_{0};     // workers still inside the current run
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

// Splits [0, count) into `parts` contiguous ranges of nearly equal size in units of `grain`; the part-th one.
struct WorkRange {
  int64_t begin;
  int64_t end;
};
inline WorkRange split_work(int64_t count, int parts, int part, int64_t grain = 1) {
  const int64_t units = (count + grain - 1) / grain;
  const int64_t base = units / parts, extra = units % parts;
  const int64_t first = part * base + (part < extra ? part : extra);
  const int64_t last = first + base + (part < extra ? 1 : 0);
  const int64_t begin = first * grain, end = last * grain;
  return {begin < count ? begin : count, end < count ? end : count};
}

// Shares [0, count) among the members of a team by demand: a member takes pieces of its own contiguous part
// in ascending order, then pieces that others have not begun, so that one slow processor (a small core, one
// that the host took away for a while) does not hold up the rest. Which member computes a piece must not show
// in the results.
class SharedWork {
 public:
  explicit SharedWork(int members) : members_(members), taken_(new Taken[static_cast<size_t>(members)]) {}

  // Puts `member`'s part back to its beginning. A barrier must lie between the last take() before and the
  // first one after.
  void restart(int member) {
    taken_[static_cast<size_t>(member)].units.store(0, std::memory_order_relaxed);
    taken_[static_cast<size_t>(member)].arrivals.store(0, std::memory_order_relaxed);
  }

  // The next piece for `member`, `grain` or fewer long; false when none is left. Between two restarts all
  // members pass the same count and grain.
  bool take(int member, int64_t count, int64_t grain, WorkRange& piece) {
    for (int i = 0; i < members_; ++i) {
      const int owner = member + i < members_ ? member + i : member + i - members_;
      const WorkRange part = split_work(count, members_, owner, grain);
      std::atomic<int64_t>& taken = taken_[static_cast<size_t>(owner)].units;
      if (part.begin + taken.load(std::memory_order_relaxed) >= part.end) continue;
      const int64_t begin = part.begin + taken.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= part.end) continue;
      piece = {begin, begin + grain < part.end ? begin + grain : part.end};
      return true;
    }
    return false;
  }

  // For work on which several members meet without waiting: the how-manieth (from 0) of them comes here since
  // restart(owner). The last one sees what the others wrote before they came.
  int arrive(int owner) {
    return taken_[static_cast<size_t>(owner)].arrivals.fetch_add(1, std::memory_order_acq_rel);
  }

 private:
  struct alignas(64) Taken {
    std::atomic<int64_t> units{0};
    std::atomic<int> arrivals{0};
  };
  int members_;
  std::unique_ptr<Taken[]> taken_;
};

}  // namespace kvasir
