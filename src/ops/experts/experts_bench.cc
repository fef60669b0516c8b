#include <benchmark/benchmark.h>

#include "ops/experts/experts.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/random_weight.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

// 32 experts of [768, 1024] in q4_0, 4 a token, int8 activations.
void mixture(benchmark::State& state) {
  const int64_t tokens = state.range(0), hidden = 1024, inner = 768, count = 32;
  ThreadTeam team(1);
  Arena arena(size_t{256} << 20, nullptr, MemoryCategory::weights);
  std::vector<PackedMatrix> packed;
  packed.reserve(static_cast<size_t>(2 * count));
  ExpertsOptions options;
  for (int64_t e = 0; e < count; ++e) {
    const RandomWeight gate(formats::StorageFormat::q4_0, inner, hidden, static_cast<uint64_t>(3 * e)),
        up(formats::StorageFormat::q4_0, inner, hidden, static_cast<uint64_t>(3 * e + 1)),
        down(formats::StorageFormat::q4_0, hidden, inner, static_cast<uint64_t>(3 * e + 2));
    const PackPart parts[] = {{gate.source(), {}, 0, 0}, {up.source(), {}, 0, 0}};
    const size_t bytes = PackedMatrix::packed_bytes(parts, PartOrder::interleaved),
                 down_bytes = PackedMatrix::packed_bytes(down.source());
    packed.push_back(
        PackedMatrix::pack(parts, {arena.allocate(bytes), bytes}, team, {PartOrder::interleaved, {}}));
    packed.push_back(PackedMatrix::pack(down.source(), {arena.allocate(down_bytes), down_bytes}, team));
    options.experts.push_back({&packed[packed.size() - 2], &packed.back()});
  }
  options.used = 4;
  options.normalize = true;
  options.gate_up_mode = options.down_mode = ActivationMode::int8;
  const TestMatrix x = TestMatrix::random(tokens, hidden, 1), logits = TestMatrix::random(tokens, count, 2);
  const IsaLevel isa = best_isa_level();
  TestProgram program({&x, &logits}, [&](auto& b, auto& in) {
    return experts(b, prepare_activations(b, in[0], ActivationMode::int8, isa), in[1], options, std::nullopt,
                   isa);
  });
  run_against_limit(state, program, Arithmetic::int8);
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(mixture)->ArgName("tokens")->Arg(1)->Arg(64);

}  // namespace
}  // namespace kvasir::ops
