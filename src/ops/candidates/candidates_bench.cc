// Finding the largest of a row of logits, whose reading is the limit; and the head that finds them as it
// computes them, whose limit is reading its weights.
#include "ops/candidates/candidates.h"

#include <benchmark/benchmark.h>

#include "base/error.h"
#include "ops/linear/bench_input.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void largest(benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = state.range(1);
  const TestMatrix x = TestMatrix::random(rows, vocab, 1, 3.0f);
  TestProgram program({&x}, [](auto& b, auto& in) { return candidates(b, in[0], best_isa_level()); });
  program.step().candidates = static_cast<int32_t>(state.range(2));
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * rows * vocab * 4);
}
BENCHMARK(largest)
    ->ArgNames({"rows", "vocabulary", "most"})
    ->Args({1, 49152, 1})
    ->Args({1, 262144, 1})
    ->Args({1, 262144, 40})
    ->Args({16, 262144, 1});

void head(benchmark::State& state) {
  const int64_t tokens = state.range(0), vocab = 49152, hidden = 576;
  const IsaLevel isa = best_isa_level();
  const BenchWeight weight(formats::StorageFormat::q8_0, vocab, hidden);
  const TestMatrix x = TestMatrix::random(tokens, hidden, 1);
  TestProgram program({&x}, [&](program::ProgramBuilder& b, auto& in) {
    const program::ValueId logits =
        linear(b, "logits", int8_input(b, in[0], isa), {int8_part(weight.matrix)}, std::nullopt, isa);
    b.output("logits", logits);
    const program::ValueId best = candidates(b, logits, isa);
    b.output("candidates", best);
    KVASIR_CHECK(fuse_linear_candidates(b) == 1);
    return best;
  });
  program.step().candidates = 1;
  run_against_limit(state, program, Arithmetic::int8);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight.matrix.stored_bytes()));
}
BENCHMARK(head)->ArgName("rows")->Arg(1)->Arg(16);

}  // namespace
}  // namespace kvasir::ops
