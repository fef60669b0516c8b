// Finding the largest of a row of logits: reading them is the limit.
#include "ops/candidates/candidates.h"

#include <benchmark/benchmark.h>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void largest(benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = state.range(1);
  const TestMatrix x = TestMatrix::random(rows, vocab, 1, 3.0f);
  TestProgram program({&x}, [](auto& b, auto& in) { return candidates(b, in[0], best_isa_level()); });
  program.step().candidates = static_cast<int32_t>(state.range(2));
  for (auto _ : state) program.run();
  state.SetBytesProcessed(state.iterations() * rows * vocab * 4);
}
BENCHMARK(largest)
    ->ArgNames({"rows", "vocabulary", "most"})
    ->Args({1, 49152, 1})
    ->Args({1, 262144, 1})
    ->Args({1, 262144, 40})
    ->Args({16, 262144, 1});

}  // namespace
}  // namespace kvasir::ops
