#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>

#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"
#include "ops/rope/rope.h"

namespace kvasir::ops {
namespace {

RopeTable table_of(int64_t pairs) {
  RopeTable table;
  for (int64_t i = 0; i < pairs; ++i)
    table.inverse_frequency.push_back(
        static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(pairs))));
  return table;
}

void table(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 100000);
  TestProgram program(
      {}, [&](auto& b, auto&) { return rope_table(b, table_of(64), best_isa_level()); }, 1, tokens);
  program.step().rope_position = {positions, positions, positions};
  run_against_limit(state, program);
  state.SetItemsProcessed(state.iterations() * tokens * 64);
}
BENCHMARK(table)->ArgName("tokens")->Arg(1)->Arg(512);

void rotation(benchmark::State& state) {
  const int64_t tokens = state.range(0), heads = 40, head_dim = 128;
  const TestMatrix x = TestMatrix::random(tokens, heads * head_dim, 1);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 1000);
  const RopeLayout layout = state.range(1) == 0 ? RopeLayout::half_split : RopeLayout::interleaved;
  TestProgram program({&x}, [&](auto& b, auto& in) {
    return rope(b, in[0], rope_table(b, table_of(64), best_isa_level()), heads, layout, best_isa_level());
  });
  program.step().rope_position = {positions, positions, positions};
  run_against_limit(state, program);
  state.SetBytesProcessed(state.iterations() * tokens * heads * head_dim * 8);
}
BENCHMARK(rotation)->ArgNames({"tokens", "interleaved"})->Args({1, 0})->Args({512, 0})->Args({512, 1});

}  // namespace
}  // namespace kvasir::ops
