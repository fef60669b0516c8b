// gate, up and their activation function, rounded for the product behind them: as one op and as two.
#include "ops/linear_prepare/linear_prepare.h"

#include <benchmark/benchmark.h>

#include "ops/linear/bench_input.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/matmul/random_weight.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

void run(benchmark::State& state, bool fuse) {
  const int64_t tokens = state.range(0), hidden = 2048, inner = 5632;
  const RandomWeight gate(formats::StorageFormat::q4_0, inner, hidden, 1),
      up(formats::StorageFormat::q4_0, inner, hidden, 2);
  const PackPart parts[] = {{gate.source(), {}, 0, 0}, {up.source(), {}, 0, 0}};
  const size_t bytes = PackedMatrix::packed_bytes(parts, PartOrder::interleaved);
  Arena arena(bytes, nullptr, MemoryCategory::weights);
  ThreadTeam team(1);
  const PackedMatrix weight =
      PackedMatrix::pack(parts, {arena.allocate(bytes), bytes}, team, {PartOrder::interleaved, {}});
  const TestMatrix x = TestMatrix::random(tokens, hidden, 1);
  const IsaLevel isa = best_isa_level();
  TestProgram program({&x}, [&](auto& b, auto& in) {
    LinearPart part = int8_part(weight);
    part.epilogue = Epilogue::swiglu;
    const auto y = prepare_activations(
        b, linear(b, "y", int8_input(b, in[0], isa), {part}, std::nullopt, isa), ActivationMode::int8, isa);
    b.output("rounded", y);
    if (fuse) fuse_linear_prepare(b);
    return y;
  });
  run_against_limit(state, program, Arithmetic::int8);
  state.counters["Gop/s"] = benchmark::Counter(
      4e-9 * static_cast<double>(tokens * inner * hidden * state.iterations()), benchmark::Counter::kIsRate);
}

void one_op(benchmark::State& state) {
  run(state, true);
}
void two_ops(benchmark::State& state) {
  run(state, false);
}
BENCHMARK(one_op)->ArgName("tokens")->Arg(1)->Arg(16)->Arg(512);
BENCHMARK(two_ops)->ArgName("tokens")->Arg(1)->Arg(16)->Arg(512);

}  // namespace
}  // namespace kvasir::ops
