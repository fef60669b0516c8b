// The fused op on a row and on a chunk of rows of usual width.
#include <benchmark/benchmark.h>

#include "ops/machine_limits/bench_limits.h"
#include "ops/matmul/matmul_op.h"
#include "ops/norm_prepare/norm_prepare.h"
#include "ops/op_test_program.h"
#include "ops/rms_norm/rms_norm.h"

namespace kvasir::ops {
namespace {

void run(benchmark::State& state) {
  const int64_t rows = state.range(0), width = state.range(1);
  const TestMatrix x = TestMatrix::random(rows, width, 1);
  TestProgram program({&x}, [&](auto& builder, auto& in) {
    const auto normed = rms_norm(builder, in[0], {}, best_isa_level());
    const auto prepared = prepare_activations(builder, normed, ActivationMode::int8, best_isa_level());
    if (state.range(2) != 0) fuse_norm_prepare(builder);
    return prepared;
  });
  run_against_limit(state, program);
  state.SetItemsProcessed(state.iterations() * rows * width);
}
BENCHMARK(run)->ArgNames({"rows", "width", "fused"})->ArgsProduct({{1, 512}, {576, 2048}, {0, 1}});

}  // namespace
}  // namespace kvasir::ops
