// The rewrite changes which ops run, never a bit of the queries or of the pages.
#include "ops/rope_append/rope_append.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kv/page_layout.h"
#include "ops/append_kv/append_kv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op_test_program.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"

namespace kvasir::ops {
namespace {

using kv::PlaneCodec;
using program::Axis;
using program::ProgramBuilder;
using program::ValueId;

struct Case {
  int heads = 4, kv_heads = 2, head_dim = 64;
  int64_t pairs = 32;
  RopeLayout layout = RopeLayout::half_split;
  bool norm = false;
  bool split = false;  // q and k are rotated apart
  kv::CodecPair codec = {{PlaneCodec::Kind::plain, Dtype::bf16}, {PlaneCodec::Kind::plain, Dtype::bf16}};
};

// Queries times one, and the pages' bytes, of two rows of `tokens` tokens from positions 5 and 37 on.
struct Result {
  std::vector<float> queries;
  std::vector<std::byte> pages;
  std::string kinds;
  bool operator==(const Result& other) const { return queries == other.queries && pages == other.pages; }
};

Result run(const Case& c, IsaLevel isa, int tokens, int threads, bool fuse) {
  const int64_t heads = c.heads, kv_heads = c.kv_heads, dim = c.head_dim, both = heads + kv_heads;
  const TestMatrix x = TestMatrix::random(2 * tokens, both * dim, 1),
                   v = TestMatrix::random(2 * tokens, kv_heads * dim, 2),
                   gain = TestMatrix::random(1, 2 * dim + 16, 3);
  kv::GroupGeometry geometry;
  geometry.layers = 2;
  geometry.kv_heads = c.kv_heads;
  geometry.head_dim_k = geometry.head_dim_v = c.head_dim;
  geometry.codec = c.codec;
  geometry.page_tokens = 16;
  const auto layout = kv::PageLayout::make(geometry, isa);
  const int pages_a_row = (37 + tokens) / 16 + 1;
  Arena arena(layout->page_bytes() * static_cast<size_t>(2 * pages_a_row), nullptr, MemoryCategory::kv);
  std::vector<std::byte*> table;
  for (int i = 0; i < 2 * pages_a_row; ++i) {
    table.push_back(arena.allocate(layout->page_bytes()));
    std::memset(table.back(), 0x5A, layout->page_bytes());
  }
  const std::vector<kv::RowPages> rows = {{table.data(), pages_a_row, layout.get()},
                                          {table.data() + pages_a_row, pages_a_row, layout.get()}};
  std::vector<int32_t> row_of_token, position;
  for (int r = 0; r < 2; ++r)
    for (int t = 0; t < tokens; ++t) {
      row_of_token.push_back(r);
      position.push_back((r == 0 ? 5 : 37) + t);
    }
  Result result;
  TestProgram program(
      {&x, &v},
      [&](ProgramBuilder& b, auto& in) {
        RopeTable rope_of;
        for (int64_t i = 0; i < c.pairs; ++i)
          rope_of.inverse_frequency.push_back(
              static_cast<float>(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(c.pairs))));
        const ValueId turns = rope_table(b, rope_of, isa);
        ValueId qk = in[0];
        if (c.norm)
          qk = rms_norm(
              b, qk, {both, 1e-6f, 1.0f, {{heads, gain.values.data()}, {kv_heads, gain.values.data() + dim}}},
              isa);
        ValueId q, k;
        if (c.split) {
          k = rope(b, b.columns(qk, "k", heads * dim, {kv_heads, dim}), turns, kv_heads, c.layout, isa);
          q = rope(b, b.columns(qk, "q", 0, {heads, dim}), turns, heads, c.layout, isa);
        } else {
          qk = rope(b, qk, turns, both, c.layout, isa);
          q = b.columns(qk, "q", 0, {heads, dim});
          k = b.columns(qk, "k", heads * dim, {kv_heads, dim});
        }
        append_kv(b, k, in[1],
                  {.group = 0,
                   .layer = 1,
                   .kv_heads = c.kv_heads,
                   .head_dim_k = c.head_dim,
                   .head_dim_v = c.head_dim});
        const ValueId y = scale(b, q, 1.0f, isa);
        b.output("queries", y);
        EXPECT_EQ(fuse ? fuse_rope_append(b) : 1, 1);
        for (const auto& op : b.ops()) result.kinds += std::string(op->kind()) + " ";
        return y;
      },
      threads);
  program.step().row_of_token = row_of_token;
  program.step().kv_position = position;
  program.step().rope_position = {position, position, position};
  program.step().kv = {{rows}};
  result.queries = program.run_and_take().values;
  for (const std::byte* page : table)
    result.pages.insert(result.pages.end(), page, page + layout->page_bytes());
  return result;
}

std::vector<Case> cases() {
  const PlaneCodec affine4{PlaneCodec::Kind::affine, Dtype::bf16, 4, 64};
  const PlaneCodec rot5{PlaneCodec::Kind::rotated, Dtype::bf16, 5, 32};
  const PlaneCodec turbo{PlaneCodec::Kind::turbo_key, Dtype::bf16, 8, 32};
  std::vector<Case> list(8);
  list[1].norm = true;
  list[2].layout = RopeLayout::interleaved;
  list[3].codec = {affine4, affine4};
  list[3].norm = true;
  list[4].codec = {turbo, rot5};
  list[4].pairs = 20;  // the rest of a head passes through
  list[5].kv_heads = 1;
  list[5].heads = 1;
  list[6].split = true;
  list[7].kv_heads = list[7].heads = 3;
  list[7].head_dim = 128;
  list[7].pairs = 64;
  list[7].norm = true;
  return list;
}

TEST(RopeAppend, SameQueriesAndPagesAsTheOpsApart) {
  int number = 0;
  for (const Case& c : cases()) {
    for (IsaLevel isa : testable_levels())
      for (const int tokens : {1, 20, 150}) {
        const Result apart = run(c, isa, tokens, 1, false);
        for (const int threads : {1, 2, 3})
          EXPECT_EQ(run(c, isa, tokens, threads, true), apart)
              << "case " << number << " " << name(isa) << " tokens " << tokens << " threads " << threads;
      }
    ++number;
  }
}

TEST(RopeAppend, LeavesNoOpOfItsPartsBehind) {
  const IsaLevel isa = IsaLevel::generic;
  Case c;
  EXPECT_EQ(run(c, isa, 1, 1, false).kinds, "rope_table rope append_kv scale ");
  EXPECT_EQ(run(c, isa, 1, 1, true).kinds, "rope_table rope_append scale ");
  c.norm = true;
  EXPECT_EQ(run(c, isa, 1, 1, false).kinds, "rope_table rms_norm rope append_kv scale ");
  EXPECT_EQ(run(c, isa, 1, 1, true).kinds, "rope_table norm_rope_append scale ");
  // Two ropes read the norm: it stays. The keys' rope has nothing left to write.
  c.split = true;
  EXPECT_EQ(run(c, isa, 1, 1, true).kinds, "rope_table rms_norm rope_append rope scale ");
}

TEST(RopeAppend, StaysApartWhereTheKeysAreReadOrChanged) {
  const IsaLevel isa = IsaLevel::generic;
  const auto fused = [&](auto&& use) {
    ProgramBuilder b;
    const ValueId x = b.input("x", Dtype::f32, Axis::tokens, {3, 64}),
                  v = b.input("v", Dtype::f32, Axis::tokens, {1, 64}),
                  turns = b.input("turns", Dtype::f32, Axis::tokens, {2, 32});
    use(b, rope(b, x, turns, 3, RopeLayout::half_split, isa), v);
    return fuse_rope_append(b);
  };
  const AppendKvOptions append{.kv_heads = 1, .head_dim_k = 64, .head_dim_v = 64};
  const auto keys = [](ProgramBuilder& b, ValueId y) { return b.columns(y, "k", 128, {1, 64}); };
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) { append_kv(b, keys(b, y), v, append); }), 1);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // the rotated heads are a result
              append_kv(b, keys(b, y), v, append);
              b.output("y", y);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // somebody else reads the keys
              append_kv(b, keys(b, y), v, append);
              scale(b, y, 2.0f, isa);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // the keys are changed on the way
              append_kv(b, scale(b, keys(b, y), 2.0f, isa), v, append);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // not the last head
              append_kv(b, b.columns(y, "k", 64, {1, 64}), v, append);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // the values come later
              const ValueId later = scale(b, v, 2.0f, isa);
              append_kv(b, keys(b, y), later, append);
            }),
            0);
  EXPECT_EQ(fused([&](ProgramBuilder& b, ValueId y, ValueId v) {  // two layers share the keys
              append_kv(b, keys(b, y), v, append);
              append_kv(b, keys(b, y), v, append);
            }),
            0);
}

}  // namespace
}  // namespace kvasir::ops
