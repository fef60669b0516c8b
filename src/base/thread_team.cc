#include "base/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <exception>

#include "base/error.h"
#include "base/signal_block.h"

namespace kvasir {
namespace {

// Waiting spins for some 200 microseconds before it parks in the kernel (futex, through atomic wait): longer
// than the uneven ops of a decode step leave a member waiting (attention over one KV head) and than choosing
// a token takes between two steps, since waking costs 50 and more; shorter than a person notices.
constexpr int kSpins = 20000;

// One turn of a spin, about ten nanoseconds. Under a hypervisor PAUSE is poison: processors report a loop of
// PAUSEs to it, and it takes the processor away (pause-loop exiting); a wait of 7 us was measured to last 35.
// On bare metal PAUSE is what spares a sibling's issue slots.
inline void spin_pause(bool virtualised) {
#if defined(__x86_64__)
  if (!virtualised) {
    __builtin_ia32_pause();
    return;
  }
  __asm__ volatile(
      "nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop;"
      "nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop;"
      "nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop;");
#elif defined(__aarch64__)
  (void)virtualised;
  __asm__ volatile("yield");
#else
  (void)virtualised;
#endif
}

bool runs_virtualised() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
  return (c >> 31) & 1u;  // set by hypervisors, reserved as 0 by processors
#else
  return false;
#endif
}

void wait_while_equal(std::atomic<uint32_t>& value, uint32_t old) {
  static const bool virtualised = runs_virtualised();
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    spin_pause(virtualised);
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// An affinity mask as large as machines may have.
struct CpuMask {
  static constexpr size_t kWords = (1 << 16) / 64;
  uint64_t words[kWords] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words); }
};

// The calling thread. A refusal costs only speed.
void pin_to(int cpu) {
  CpuMask mask;
  const auto bit = static_cast<size_t>(cpu);
  if (bit / 64 >= CpuMask::kWords) return;
  mask.words[bit / 64] |= uint64_t{1} << (bit % 64);
  pthread_setaffinity_np(pthread_self(), sizeof mask.words, mask.set());
}

void end_workers(std::atomic<bool>& stopping, std::atomic<uint32_t>& generation,
                 std::vector<std::thread>& workers) {
  stopping.store(true, std::memory_order_release);
  generation.fetch_add(1, std::memory_order_acq_rel);
  generation.notify_all();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

ThreadTeam::ThreadTeam(int threads, const std::vector<int>& cpus)
    : size_(threads), first_cpu_(cpus.empty() ? -1 : cpus.front()) {
  KVASIR_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  const SignalBlock block;
  try {
    for (int member = 1; member < threads; ++member) {
      const int cpu = cpus.empty() ? -1 : cpus[static_cast<size_t>(member) % cpus.size()];
      workers_.emplace_back([this, member, cpu] { worker(member, cpu); });
    }
  } catch (const std::exception& error) {
    end_workers(stopping_, generation_, workers_);  // those that were started
    throw_error(ErrorCode::resource_exhausted, "thread {} of {} cannot be started: {}", workers_.size() + 2,
                threads, error.what());
  }
}

ThreadTeam::~ThreadTeam() {
  end_workers(stopping_, generation_, workers_);
}

void ThreadTeam::worker(int member, int cpu) {
  if (cpu >= 0) pin_to(cpu);
  uint32_t seen = 0;
  while (true) {
    wait_while_equal(generation_, seen);
    ++seen;
    if (stopping_.load(std::memory_order_acquire)) return;
    call(member);
    if (running_.fetch_sub(1, std::memory_order_seq_cst) == 1) running_.notify_one();
  }
}

void ThreadTeam::call(int member) {
  try {
    function_(context_, member);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
}

void ThreadTeam::run_erased(Function function, void* context) {
  function_ = function;
  context_ = context;
  if (first_cpu_ < 0) {
    run_members();
  } else {
    // The caller's thread is its own: it is borrowed for the run.
    CpuMask before;
    const bool known = pthread_getaffinity_np(pthread_self(), sizeof before.words, before.set()) == 0;
    if (known) pin_to(first_cpu_);
    run_members();
    if (known) pthread_setaffinity_np(pthread_self(), sizeof before.words, before.set());
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
}

void ThreadTeam::run_members() {
  failed_.store(false, std::memory_order_relaxed);
  running_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  if (size_ > 1) {
    generation_.fetch_add(1, std::memory_order_seq_cst);
    generation_.notify_all();
  }
  call(0);
  while (true) {
    const uint32_t left = running_.load(std::memory_order_acquire);
    if (left == 0) break;
    wait_while_equal(running_, left);
  }
}

void ThreadTeam::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    // Not a plain store: notify_all() looks whether anybody waits, and a processor may look before its store
    // is seen. A member that parks in between would still find the old phase, and nobody would wake it.
    phase_.exchange(phase + 1, std::memory_order_seq_cst);
    phase_.notify_all();
    return;
  }
  wait_while_equal(phase_, phase);
}

}  // namespace kvasir
