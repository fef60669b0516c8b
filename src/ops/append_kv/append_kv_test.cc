// Appending writes each token where its position says, in its row's own layout, and nothing else.
#include "ops/append_kv/append_kv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "kv/codecs/codec_layout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

using kv::PlaneCodec;
using program::ProgramBuilder;

constexpr int kHeads = 3, kDimK = 64, kDimV = 128, kPage = 16, kLayers = 2;

kv::CodecPair pair_of(PlaneCodec::Kind kind, int bits) {
  const PlaneCodec codec{kind, Dtype::bf16, bits, 32};
  return {codec, codec};
}

struct Pages {
  Pages(const kv::PageLayout& of, int count) : layout(of) {
    for (int i = 0; i < count; ++i) {
      memory.emplace_back(of.page_bytes() + 64, std::byte{0x5A});
      const auto skew = reinterpret_cast<uintptr_t>(memory.back().data()) % 64;
      table.push_back(memory.back().data() + (64 - skew) % 64);
    }
  }
  kv::RowPages row() const { return {table.data(), static_cast<int32_t>(table.size()), &layout}; }
  // All layers of the tokens [0, count), as they are saved.
  std::vector<std::byte> tokens(int count) const {
    std::vector<std::byte> out(layout.token_bytes() * static_cast<size_t>(count));
    for (int t = 0; t < count; ++t)
      layout.export_tokens(
          table[static_cast<size_t>(t / kPage)], t % kPage, 1,
          std::span(out).subspan(layout.token_bytes() * static_cast<size_t>(t), layout.token_bytes()));
    return out;
  }
  const kv::PageLayout& layout;
  std::deque<std::vector<std::byte>> memory;
  std::vector<std::byte*> table;
};

std::unique_ptr<kv::PageLayout> layout_of(const kv::CodecPair& codec, IsaLevel isa) {
  kv::GroupGeometry geometry;
  geometry.layers = kLayers;
  geometry.kv_heads = kHeads;
  geometry.head_dim_k = kDimK;
  geometry.head_dim_v = kDimV;
  geometry.codec = codec;
  geometry.page_tokens = kPage;
  return kv::PageLayout::make(geometry, isa);
}

// Two rows in one step, stored in different forms (one of them converted already), at positions inside pages
// and across their ends.
TEST(AppendKv, EachTokenGoesToItsPlaceInItsRowsOwnForm) {
  const kv::CodecPair plain = pair_of(PlaneCodec::Kind::plain, 0);
  for (const kv::CodecPair& codec :
       {plain, pair_of(PlaneCodec::Kind::affine, 4), pair_of(PlaneCodec::Kind::affine, 3),
        pair_of(PlaneCodec::Kind::rotated, 5), pair_of(PlaneCodec::Kind::q_0, 8)})
    for (IsaLevel isa : testable_levels()) {
      const auto encoded = layout_of(codec, isa), raw = layout_of(plain, isa);
      const int firsts[] = {13, 30}, counts[] = {21, 2};
      std::vector<int32_t> row_of_token, position;
      for (int r = 0; r < 2; ++r)
        for (int t = 0; t < counts[r]; ++t) {
          row_of_token.push_back(r);
          position.push_back(firsts[r] + t);
        }
      const auto tokens = static_cast<int64_t>(position.size());
      const TestMatrix k = TestMatrix::random(tokens, kHeads * kDimK, 1),
                       v = TestMatrix::random(tokens, kHeads * kDimV, 2);
      const AppendKvOptions options{
          .group = 0, .layer = 1, .kv_heads = kHeads, .head_dim_k = kDimK, .head_dim_v = kDimV};
      // The reference: the layout's own append, a head at a time.
      Pages want[] = {{*encoded, 3}, {*raw, 3}};
      for (int64_t t = 0; t < tokens; ++t) {
        const Pages& pages = want[row_of_token[static_cast<size_t>(t)]];
        const int32_t at = position[static_cast<size_t>(t)];
        for (int head = 0; head < kHeads; ++head)
          static_cast<const kv::CodecLayout&>(pages.layout)
              .append(pages.table[static_cast<size_t>(at / kPage)], 1, head, at % kPage,
                      k.values.data() + (t * kHeads + head) * kDimK,
                      v.values.data() + (t * kHeads + head) * kDimV);
      }
      for (const int threads : {1, 2, 4}) {
        const Pages got[] = {{*encoded, 3}, {*raw, 3}};
        const std::vector<kv::RowPages> rows = {got[0].row(), got[1].row()};
        TestProgram program(
            {&k, &v},
            [&](ProgramBuilder& b, auto& in) {
              append_kv(b, in[0], in[1], options);
              return scale(b, in[0], 1.0f, best_isa_level());  // a program gives something
            },
            threads);
        program.step().rows = 2;
        program.step().row_of_token = row_of_token;
        program.step().kv_position = position;
        program.step().kv = {{rows}};
        program.run();
        for (int r = 0; r < 2; ++r) {
          // The other layer and the tokens before and after are as they were.
          EXPECT_EQ(got[r].tokens(3 * kPage), want[r].tokens(3 * kPage))
              << name(isa) << " row " << r << " threads " << threads << " bits " << codec.k.bits;
          for (int p = 0; p < 3; ++p)
            EXPECT_EQ(std::memcmp(got[r].table[static_cast<size_t>(p)], want[r].table[static_cast<size_t>(p)],
                                  got[r].layout.page_bytes()),
                      0)
                << name(isa) << " row " << r << " page " << p;
        }
      }
      // Some of it is there at all: what the pages held before is not what a token is.
      const Pages untouched(*raw, 3);
      EXPECT_NE(want[1].tokens(32), untouched.tokens(32));
      EXPECT_EQ(want[1].tokens(30), untouched.tokens(30));
    }
}

// A token's bytes do not depend on what is appended with it.
TEST(AppendKv, ChunksWriteTheSameBytes) {
  for (const kv::CodecPair& codec :
       {pair_of(PlaneCodec::Kind::plain, 0), pair_of(PlaneCodec::Kind::affine, 3)}) {
    const auto layout = layout_of(codec, best_isa_level());
    const int64_t tokens = 40;
    const TestMatrix k = TestMatrix::random(tokens, kHeads * kDimK, 1),
                     v = TestMatrix::random(tokens, kHeads * kDimV, 2);
    std::vector<std::byte> whole;
    for (const int64_t chunk : {tokens, int64_t{1}, int64_t{7}}) {
      const Pages pages(*layout, 3);
      const std::vector<kv::RowPages> rows = {pages.row()};
      for (int64_t first = 0; first < tokens; first += chunk) {
        const int64_t count = std::min(chunk, tokens - first);
        const TestMatrix keys = k.row_range(first, count), values = v.row_range(first, count);
        std::vector<int32_t> row_of_token(static_cast<size_t>(count), 0), position;
        for (int64_t t = 0; t < count; ++t) position.push_back(static_cast<int32_t>(first + t));
        TestProgram program(
            {&keys, &values},
            [&](ProgramBuilder& b, auto& in) {
              append_kv(
                  b, in[0], in[1],
                  {.group = 0, .layer = 0, .kv_heads = kHeads, .head_dim_k = kDimK, .head_dim_v = kDimV});
              return scale(b, in[0], 1.0f, best_isa_level());  // a program gives something
            },
            2);
        program.step().rows = 1;
        program.step().row_of_token = row_of_token;
        program.step().kv_position = position;
        program.step().kv = {{rows}};
        program.run();
      }
      if (whole.empty()) whole = pages.tokens(static_cast<int>(tokens));
      EXPECT_EQ(pages.tokens(static_cast<int>(tokens)), whole) << chunk;
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
