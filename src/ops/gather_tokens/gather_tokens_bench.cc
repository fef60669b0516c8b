#include <benchmark/benchmark.h>

#include <numeric>

#include "ops/gather_tokens/gather_tokens.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void gather(benchmark::State& state) {
  const int64_t tokens = 512, width = 4096;
  const TestMatrix x = TestMatrix::random(tokens, width, 1);
  TestProgram program({&x}, [&](auto& b, auto& in) { return gather_tokens(b, in[0]); });
  std::vector<int32_t> wanted(static_cast<size_t>(tokens));
  std::iota(wanted.begin(), wanted.end(), 0);
  program.step().logits = static_cast<int32_t>(tokens);
  program.step().logit_tokens = wanted;
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * tokens * width * 8);
}
BENCHMARK(gather);

// Pairs of heads change places, as a checkpoint with another order of heads asks for.
void reorder(benchmark::State& state) {
  const int64_t tokens = 512, heads = 32, width = 4096;
  const TestMatrix x = TestMatrix::random(tokens, width, 1);
  std::vector<int32_t> from(static_cast<size_t>(heads));
  for (int32_t h = 0; h < heads; ++h) from[static_cast<size_t>(h)] = h ^ 1;
  TestProgram program({&x}, [&](auto& b, auto& in) { return reorder_heads(b, in[0], from); });
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * tokens * width * 8);
}
BENCHMARK(reorder);

}  // namespace
}  // namespace kvasir::ops
