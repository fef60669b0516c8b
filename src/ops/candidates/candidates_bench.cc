// Finding the largest of a row of logits, whose reading is the limit; and the head that finds them as it
// computes them, whose limit is reading its weights.
#include "ops/candidates/candidates.h"

#include <benchmark/benchmark.h>

#include "base/error.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/random_weight.h"
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

void head(benchmark::State& state) {
  const int64_t tokens = state.range(0), vocab = 49152, hidden = 576;
  const IsaLevel isa = best_isa_level();
  const RandomWeight source(formats::StorageFormat::q8_0, vocab, hidden, 1);
  const size_t bytes = PackedMatrix::packed_bytes(source.source());
  Arena arena(bytes, nullptr, MemoryCategory::weights);
  ThreadTeam team(1);
  const PackedMatrix weight = PackedMatrix::pack(source.source(), {arena.allocate(bytes), bytes}, team);
  const TestMatrix x = TestMatrix::random(tokens, hidden, 1);
  TestProgram program({&x}, [&](program::ProgramBuilder& b, auto& in) {
    LinearInput input;
    input.x = in[0];
    input.prepared[ActivationMode::int8] = prepare_activations(b, in[0], ActivationMode::int8, isa);
    LinearPart part;
    part.weight = &weight;
    part.mode = ActivationMode::int8;
    const program::ValueId logits = linear(b, "logits", input, {part}, std::nullopt, isa);
    b.output("logits", logits);
    const program::ValueId best = candidates(b, logits, isa);
    b.output("candidates", best);
    KVASIR_CHECK(fuse_linear_candidates(b) == 1);
    return best;
  });
  program.step().candidates = 1;
  for (auto _ : state) program.run();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight.stored_bytes()));
}
BENCHMARK(head)->ArgName("rows")->Arg(1)->Arg(16);

}  // namespace
}  // namespace kvasir::ops
