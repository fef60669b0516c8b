#include <benchmark/benchmark.h>

#include "ops/elementwise/elementwise.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void residual_add(benchmark::State& state) {
  const int64_t rows = state.range(0), width = 4096;
  const TestMatrix a = TestMatrix::random(rows, width, 1), b = TestMatrix::random(rows, width, 2);
  TestProgram program({&a, &b}, [&](auto& p, auto& in) { return add(p, in[0], in[1], best_isa_level()); });
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * rows * width * 12);
}
BENCHMARK(residual_add)->ArgName("rows")->Arg(1)->Arg(512);

void logits_softcap(benchmark::State& state) {
  const TestMatrix x = TestMatrix::random(1, 262144, 1, 20.0f);
  TestProgram program({&x}, [&](auto& p, auto& in) { return softcap(p, in[0], 30.0f, best_isa_level()); });
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * 262144 * 8);
}
BENCHMARK(logits_softcap);

}  // namespace
}  // namespace kvasir::ops
