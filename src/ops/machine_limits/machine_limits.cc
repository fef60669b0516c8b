#include "ops/machine_limits/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace kvasir::ops {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr size_t kReadBytes = size_t{256} << 20;

double best_of_five(auto& limit) {
  double best = 0;
  for (int run = 0; run < 5; ++run) best = std::max(best, limit.pass());
  return best;
}

}  // namespace

ReadLimit::ReadLimit(ThreadTeam& team, IsaLevel isa)
    : team_(team), kernels_(limit_kernels(isa)), buffer_(kReadBytes, nullptr, MemoryCategory::workspace) {
  buffer_.commit(kReadBytes);
  team_.run([&](int member) {
    const WorkRange range = split_work(static_cast<int64_t>(kReadBytes), team_.size(), member, 1 << 20);
    std::memset(buffer_.data() + range.begin, member + 1, static_cast<size_t>(range.end - range.begin));
  });
}

double ReadLimit::pass() {
  std::atomic<uint64_t> sink{0};
  const Clock::time_point start = Clock::now();
  team_.run([&](int member) {
    const WorkRange range = split_work(static_cast<int64_t>(kReadBytes), team_.size(), member, 1 << 20);
    sink ^= kernels_.read(buffer_.data() + range.begin, static_cast<size_t>(range.end - range.begin));
  });
  return static_cast<double>(kReadBytes) / since(start);
}

ArithmeticLimit::ArithmeticLimit(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic) : team_(team) {
  const LimitKernels& kernels = limit_kernels(isa);
  kernel_ = arithmetic == Arithmetic::f32    ? kernels.f32
            : arithmetic == Arithmetic::bf16 ? kernels.bf16
                                             : kernels.int8;
  kernel_(20000);  // the first wide instructions of a while run at a lower clock
}

double ArithmeticLimit::pass() {
  std::atomic<double> operations{0};
  const Clock::time_point start = Clock::now();
  team_.run([&](int) {
    const double done = kernel_(150000);
    double before = operations.load();
    while (!operations.compare_exchange_weak(before, before + done)) {
    }
  });
  return operations.load() / since(start);
}

double measure_arithmetic(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic) {
  ArithmeticLimit limit(team, isa, arithmetic);
  return best_of_five(limit);
}

double measure_read_bandwidth(ThreadTeam& team, IsaLevel isa) {
  ReadLimit limit(team, isa);
  return best_of_five(limit);
}

}  // namespace kvasir::ops
