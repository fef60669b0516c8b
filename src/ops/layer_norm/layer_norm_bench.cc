#include <benchmark/benchmark.h>

#include "ops/layer_norm/layer_norm.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void layer_norm_rows(benchmark::State& state) {
  const int64_t rows = state.range(0), width = state.range(1);
  const TestMatrix x = TestMatrix::random(rows, width, 1), gain = TestMatrix::random(1, width + 16, 2);
  TestProgram program({&x}, [&](auto& b, auto& in) {
    return layer_norm(b, in[0], {1, 1e-5f, 0.0f, {{1, gain.values.data(), gain.values.data(), false}}},
                      best_isa_level());
  });
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * rows * width * 8);
}
BENCHMARK(layer_norm_rows)->ArgNames({"rows", "width"})->Args({1, 2048})->Args({512, 2048});

}  // namespace
}  // namespace kvasir::ops
