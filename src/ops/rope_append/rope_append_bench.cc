// From q, k and v to rotated queries and appended keys: as one op and as two, or three with the norm of
// heads.
#include "ops/rope_append/rope_append.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>

#include "kv/page_layout.h"
#include "ops/append_kv/append_kv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/machine_limits/bench_limits.h"
#include "ops/op_test_program.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"

namespace kvasir::ops {
namespace {

void run(benchmark::State& state, bool fuse, bool norm) {
  const int64_t tokens = state.range(0), heads = 32, kv_heads = 8, dim = 64, both = heads + kv_heads;
  const IsaLevel isa = best_isa_level();
  const TestMatrix x = TestMatrix::random(tokens, both * dim, 1),
                   v = TestMatrix::random(tokens, kv_heads * dim, 2);
  kv::GroupGeometry geometry;
  geometry.layers = 1;
  geometry.kv_heads = kv_heads;
  geometry.head_dim_k = geometry.head_dim_v = dim;
  const auto layout = kv::PageLayout::make(geometry, isa);
  const auto pages = static_cast<size_t>(tokens / geometry.page_tokens + 1);
  Arena arena(layout->page_bytes() * pages, nullptr, MemoryCategory::kv);
  std::vector<std::byte*> table;
  for (size_t i = 0; i < pages; ++i) table.push_back(arena.allocate(layout->page_bytes()));
  const std::vector<kv::RowPages> rows = {{table.data(), static_cast<int32_t>(pages), layout.get()}};
  std::vector<int32_t> position(static_cast<size_t>(tokens)), row(static_cast<size_t>(tokens), 0);
  std::iota(position.begin(), position.end(), 0);
  TestProgram program({&x, &v}, [&](auto& b, auto& in) {
    RopeTable rope_of;
    for (int64_t i = 0; i < dim / 2; ++i)
      rope_of.inverse_frequency.push_back(
          static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(dim / 2))));
    const auto turns = rope_table(b, rope_of, isa);
    auto qk = in[0];
    if (norm) qk = rms_norm(b, qk, {both, 1e-6f, 0.0f, {}}, isa);
    qk = rope(b, qk, turns, both, RopeLayout::half_split, isa);
    append_kv(b, b.columns(qk, "k", heads * dim, {kv_heads, dim}), in[1],
              {.kv_heads = kv_heads, .head_dim_k = dim, .head_dim_v = dim});
    // Something must read the queries.
    const auto last = scale(b, b.columns(qk, "q", 0, {1}), 1.0f, isa);
    b.output("queries", last);
    if (fuse) fuse_rope_append(b);
    return last;
  });
  program.step().row_of_token = row;
  program.step().kv_position = position;
  program.step().rope_position = {position, position, position};
  program.step().kv = {{rows}};
  run_against_limit(state, program);
  state.SetItemsProcessed(state.iterations() * tokens);
  state.SetBytesProcessed(state.iterations() * tokens *
                          ((2 * heads + kv_heads) * dim * 4 + kv_heads * dim * 8));
}

void one_op(benchmark::State& state) {
  run(state, true, state.range(1) != 0);
}
void apart(benchmark::State& state) {
  run(state, false, state.range(1) != 0);
}
BENCHMARK(one_op)->ArgNames({"tokens", "norm"})->Args({1, 0})->Args({1, 1})->Args({512, 0})->Args({512, 1});
BENCHMARK(apart)->ArgNames({"tokens", "norm"})->Args({1, 0})->Args({1, 1})->Args({512, 0})->Args({512, 1});

}  // namespace
}  // namespace kvasir::ops
