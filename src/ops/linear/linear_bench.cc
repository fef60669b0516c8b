// A projection as models record it: q, k and v in one product, and a product with its residual, of q4_0
// weights with int8 activations.
#include "ops/linear/linear.h"

#include <benchmark/benchmark.h>

#include "ops/linear/bench_input.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void run(benchmark::State& state, int64_t out, bool residual) {
  const int64_t tokens = state.range(0), hidden = 2048;
  const BenchWeight weight(formats::StorageFormat::q4_0, out, hidden);
  const TestMatrix x = TestMatrix::random(tokens, hidden, 1), y = TestMatrix::random(tokens, out, 2);
  const IsaLevel isa = best_isa_level();
  TestProgram program({&x, &y}, [&](auto& b, auto& in) {
    return linear(b, "y", int8_input(b, in[0], isa), {int8_part(weight.matrix)},
                  residual ? std::optional(in[1]) : std::nullopt, isa);
  });
  run_against_limit(state, program, Arithmetic::int8);
  state.SetItemsProcessed(state.iterations() * tokens);
  state.counters["Gop/s"] = benchmark::Counter(
      2e-9 * static_cast<double>(tokens * out * hidden * state.iterations()), benchmark::Counter::kIsRate);
}

void qkv(benchmark::State& state) {
  run(state, 3072, false);
}
void down_with_residual(benchmark::State& state) {
  run(state, 2048, true);
}
BENCHMARK(qkv)->ArgName("tokens")->Arg(1)->Arg(16)->Arg(512);
BENCHMARK(down_with_residual)->ArgName("tokens")->Arg(1)->Arg(16)->Arg(512);

}  // namespace
}  // namespace kvasir::ops
