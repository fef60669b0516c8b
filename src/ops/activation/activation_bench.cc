#include <benchmark/benchmark.h>

#include "ops/activation/activation.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void times_up(benchmark::State& state) {
  const int64_t rows = state.range(0), width = 8192;
  const auto function = static_cast<ActivationFunction>(state.range(1));
  const TestMatrix both = TestMatrix::random(rows, 2 * width, 1);
  TestProgram program({&both}, [&](auto& b, auto& in) {
    return activation(b, function, b.columns(in[0], "gate", 0, {width}),
                      b.columns(in[0], "up", width, {width}), best_isa_level());
  });
  run_against_limit(state, program);
  state.SetLabel(std::string(name(function)));
  state.SetBytesProcessed(state.iterations() * rows * width * 12);
}
BENCHMARK(times_up)
    ->ArgNames({"rows", "function"})
    ->Args({1, 0})
    ->Args({256, 0})
    ->Args({256, 1})
    ->Args({256, 2})
    ->Args({256, 3});

}  // namespace
}  // namespace kvasir::ops
