#include "ops/machine_limits/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/memory.h"

namespace kvasir::ops {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double measure_arithmetic(ThreadTeam& team, IsaLevel isa, Arithmetic arithmetic) {
  const LimitKernels& kernels = limit_kernels(isa);
  const auto kernel = arithmetic == Arithmetic::f32    ? kernels.f32
                      : arithmetic == Arithmetic::bf16 ? kernels.bf16
                                                       : kernels.int8;
  kernel(20000);  // the first wide instructions of a while run at a lower clock
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    std::atomic<double> operations{0};
    const Clock::time_point start = Clock::now();
    team.run([&](int) {
      const double done = kernel(150000);
      double before = operations.load();
      while (!operations.compare_exchange_weak(before, before + done)) {
      }
    });
    best = std::max(best, operations.load() / since(start));
  }
  return best;
}

double measure_read_bandwidth(ThreadTeam& team, IsaLevel isa) {
  constexpr size_t kBytes = size_t{256} << 20;
  Reservation buffer(kBytes, nullptr, MemoryCategory::workspace);
  buffer.commit(kBytes);
  const LimitKernels& kernels = limit_kernels(isa);
  team.run([&](int member) {
    const WorkRange range = split_work(static_cast<int64_t>(kBytes), team.size(), member, 1 << 20);
    std::memset(buffer.data() + range.begin, member + 1, static_cast<size_t>(range.end - range.begin));
  });
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const Clock::time_point start = Clock::now();
    team.run([&](int member) {
      const WorkRange range = split_work(static_cast<int64_t>(kBytes), team.size(), member, 1 << 20);
      sink ^= kernels.read(buffer.data() + range.begin, static_cast<size_t>(range.end - range.begin));
    });
    best = std::max(best, static_cast<double>(kBytes) / since(start));
  }
  return best;
}

}  // namespace kvasir::ops
