// For benchmarks: how near a loop came to this machine's limits, measured in the same process. One thread, as
// TestProgram has by default. What a cache holds may be read faster than memory: then it is more than 1.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "ops/machine_limits/machine_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {

// The shortest time in which memory could give the bytes and the processor do the operations. Each limit is
// measured once, when it is first asked for.
inline double seconds_at_limit(const program::OpCost& cost, Arithmetic arithmetic = Arithmetic::f32) {
  static ThreadTeam team(1);
  static const double read = measure_read_bandwidth(team, best_isa_level());
  static double peaks[3] = {};
  double seconds = cost.bytes / read;
  if (cost.operations > 0) {
    double& peak = peaks[static_cast<int>(arithmetic)];
    if (peak == 0) peak = measure_arithmetic(team, best_isa_level(), arithmetic);
    seconds = std::max(seconds, cost.operations / peak);
  }
  return seconds;
}

// A benchmark's loop: the program once in each iteration, and the counter "of_limit", by the accounts of its
// ops.
inline void run_against_limit(benchmark::State& state, TestProgram& program,
                              Arithmetic arithmetic = Arithmetic::f32) {
  program::OpCost sum;
  for (size_t i = 0; i < program.program().ops().size(); ++i) {
    const program::OpCost cost = program.program().cost(i, program.step());
    sum.bytes += cost.bytes;
    sum.operations += cost.operations;
  }
  const double limit = seconds_at_limit(sum, arithmetic);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) program.run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  state.counters["of_limit"] = limit * static_cast<double>(state.iterations()) / seconds;
}

}  // namespace kvasir::ops
