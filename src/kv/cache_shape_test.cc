#include "kv/cache_shape.h"

#include <gtest/gtest.h>

#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::affine;
using testing::plain;
using testing::TestLayout;

TEST(GroupLayers, EqualGeometryRetentionAndCodecShareAGroup) {
  // Gemma-like: five windowed layers to one full, and two codecs.
  std::vector<LayerGeometry> owners;
  std::vector<CodecPair> codecs;
  for (int i = 0; i < 12; ++i) {
    owners.push_back({.layer = i,
                      .kv_heads = 1,
                      .head_dim_k = 256,
                      .head_dim_v = 256,
                      .window = i % 6 == 5 ? std::nullopt : std::optional<int>(512)});
    codecs.push_back(i == 0 ? CodecPair{affine(), affine()} : CodecPair{plain(), plain()});
  }
  const CacheShape shape = group_layers(owners, codecs, 64, 0);
  ASSERT_EQ(shape.groups.size(), 3u);
  EXPECT_EQ(shape.groups[0].owners, std::vector<int>({0}));
  EXPECT_EQ(shape.groups[1].owners, std::vector<int>({1, 2, 3, 4, 6, 7, 8, 9, 10}));
  EXPECT_EQ(shape.groups[2].owners, std::vector<int>({5, 11}));
  EXPECT_EQ(shape.groups[1].geometry.layers, 9);
  EXPECT_EQ(shape.group_of[6], 1);
  EXPECT_EQ(shape.index_in_group[6], 4);
  EXPECT_EQ(shape.index_in_group[11], 1);
}

TEST(GroupLayers, FromGroupsThatAModelMade) {
  GroupGeometry geometry{
      .layers = 2, .kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .codec = {}, .page_tokens = 16};
  LayerGroup full{geometry, {3, 9}}, windowed{geometry, {2, 4}};
  windowed.geometry.window = 5;
  const CacheShape shape = shape_of_groups({windowed, full}, 7, 40);
  EXPECT_EQ(shape.page_tokens, 16);
  EXPECT_EQ(shape.groups[0].owners, std::vector<int>({0, 2}));
  EXPECT_EQ(shape.groups[1].owners, std::vector<int>({1, 3}));
  EXPECT_EQ(shape.group_of, std::vector<int>({0, 1, 0, 1}));
  EXPECT_EQ(shape.index_in_group, std::vector<int>({0, 0, 1, 1}));
  windowed.geometry.page_tokens = 32;
  EXPECT_THROW(shape_of_groups({full, windowed}, 0), Error);
  EXPECT_THROW(shape_of_groups({full, full}, 0), Error);
}

TEST(GroupLayers, RefusesWhatCannotBe) {
  const LayerGeometry owner{.layer = 0, .kv_heads = 1, .head_dim_k = 64, .head_dim_v = 64};
  const CodecPair codec{plain(), plain()};
  EXPECT_THROW(group_layers({&owner, 1}, {&codec, 1}, 48, 0), Error);
  EXPECT_THROW(group_layers({&owner, 1}, {&codec, 1}, 64, -1), Error);
  LayerGeometry bad = owner;
  bad.kv_heads = 0;
  EXPECT_THROW(group_layers({&bad, 1}, {&codec, 1}, 64, 0), Error);
  bad = owner;
  bad.window = 4;
  bad.sinks = 4;
  EXPECT_THROW(group_layers({&bad, 1}, {&codec, 1}, 64, 0), Error);
}

TEST(RowPages, FormulaOfTheSpec) {
  GroupGeometry full{
      .layers = 1, .kv_heads = 1, .head_dim_k = 1, .head_dim_v = 1, .codec = {}, .page_tokens = 64};
  EXPECT_EQ(row_pages(full, 1, 512), 1u);
  EXPECT_EQ(row_pages(full, 64, 512), 1u);
  EXPECT_EQ(row_pages(full, 65, 512), 2u);
  EXPECT_EQ(row_pages(full, 4096, 1), 64u);
  GroupGeometry window = full;
  window.window = 512;
  EXPECT_EQ(row_pages(window, 100, 512), 2u);
  EXPECT_EQ(row_pages(window, 100000, 1), 9u);     // ceil(512 / 64) + 1
  EXPECT_EQ(row_pages(window, 100000, 512), 17u);  // ceil(1023 / 64) + 1
  window.sinks = 4;
  EXPECT_EQ(row_pages(window, 100000, 1), 10u);
}

// P38.
TEST(Plan, BytesAreExactlyWhatIsCommitted) {
  for (const int32_t start : {0, 50, 5000})
    for (const int page : {1, 4, 16, 64})
      for (const int64_t batch : {1, 3})
        for (const size_t prefix : {size_t{0}, size_t{100000}}) {
          const CacheShape shape = testing::make_shape({.page = page,
                                                        .start = start,
                                                        .window = 20,
                                                        .sinks = 2,
                                                        .encoded_full = true,
                                                        .state_bytes = 72});
          const Workload workload{.context = 300,
                                  .batch = batch,
                                  .chunk = 33,
                                  .round_tokens = 4,
                                  .checkpoints = 2,
                                  .prefix_states = 3,
                                  .prefix_bytes = prefix};
          const CacheBytes bytes = projected_bytes(shape, TestLayout::factory(), workload);
          MemoryLedger ledger;
          const CacheCapacity capacity = plan_capacity(shape, TestLayout::factory(), workload);
          KvCache cache(shape, TestLayout::factory(), capacity, &ledger);
          EXPECT_EQ(ledger.bytes(MemoryCategory::kv), bytes.bytes);
          EXPECT_EQ(cache.committed_bytes(), bytes.bytes);
          EXPECT_GE(bytes.limit_bytes, bytes.bytes + prefix / 2);
          if (prefix == 0) {
            EXPECT_EQ(bytes.limit_bytes, bytes.bytes);
          }
        }
}

// The plan's page counts suffice for any row that stays within context and chunk, and in the worst case none
// is left over.
TEST(Plan, RowsFillThePlanAndNeverPassIt) {
  for (const int page : {1, 2, 4, 8, 16})
    for (const int window : {1, 3, 8, 20})
      for (const int chunk : {1, 2, 5, 16, 40})
        for (const int sinks : {0, 1, 5}) {
          if (sinks >= window) continue;
          const CacheShape shape = testing::make_shape({.page = page, .window = window, .sinks = sinks});
          const Workload workload{.context = 200, .batch = 1, .chunk = chunk};
          const CacheCapacity capacity = plan_capacity(shape, TestLayout::factory(), workload);
          KvCache cache(shape, TestLayout::factory(), capacity, nullptr);
          testing::TestRow row{cache.create(), {}};
          std::mt19937 random(1);
          const auto tokens = testing::random_tokens(random, 200);
          size_t done = 0;
          while (done < tokens.size()) {
            const size_t count =
                std::min<size_t>(tokens.size() - done, 1 + random() % static_cast<size_t>(chunk));
            testing::append(cache, row, std::span(tokens).subspan(done, count));
            done += count;
          }
          EXPECT_EQ(testing::difference(row), "");
          EXPECT_EQ(cache.pool(0, true).used_pages(), capacity.groups[0].pages);
          EXPECT_LE(cache.pool(1, true).high_water(), capacity.groups[1].pages);
        }
}

// Also with checkpoints and returns to them.
TEST(Plan, CheckpointsArePlanned) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const int window = 1 + static_cast<int>(random() % 24);
    const CacheShape shape =
        testing::make_shape({.page = 1 << (random() % 5), .window = window, .state_bytes = 8});
    const Workload workload{.context = 120,
                            .batch = 1,
                            .chunk = 1 + static_cast<int64_t>(random() % 20),
                            .checkpoints = static_cast<int64_t>(random() % 4)};
    KvCache cache(shape, TestLayout::factory(), plan_capacity(shape, TestLayout::factory(), workload),
                  nullptr);
    testing::TestRow row{cache.create(), {}};
    for (int operation = 0; operation < 80; ++operation) {
      if (random() % 4 == 0) row.sequence.checkpoint();
      if (random() % 6 == 0) {
        const int32_t nearest =
            row.sequence.nearest_resumable(static_cast<int32_t>(random() % (row.tokens.size() + 1)));
        row.sequence.truncate(nearest);
        row.tokens.resize(static_cast<size_t>(nearest));
      }
      EXPECT_LE(row.sequence.checkpoints().size(), static_cast<size_t>(workload.checkpoints));
      const size_t count =
          std::min<size_t>(1 + random() % static_cast<size_t>(workload.chunk), 120 - row.tokens.size());
      testing::append(cache, row, testing::random_tokens(random, count));
    }
    EXPECT_EQ(testing::difference(row), "") << seed;
  }
}

TEST(Plan, RowBytesFollowTheStage) {
  const CacheShape shape =
      testing::make_shape({.page = 4, .start = 10, .window = 6, .encoded_full = true, .state_bytes = 8});
  // Full: 2 * 5 * 4 = 40 plain, 20 encoded; window: 4 * 4 = 16 a token, at most 6.
  EXPECT_EQ(row_bytes(shape, TestLayout::factory(), 0), 0u);
  EXPECT_EQ(row_bytes(shape, TestLayout::factory(), 5), 5 * 40u + 5 * 16u + 8u);
  EXPECT_EQ(row_bytes(shape, TestLayout::factory(), 10), 10 * 40u + 6 * 16u + 8u);
  EXPECT_EQ(row_bytes(shape, TestLayout::factory(), 11), 11 * 20u + 6 * 16u + 8u);
}

TEST(Plan, RefusesNonsense) {
  const CacheShape shape = testing::make_shape({});
  EXPECT_THROW(plan_capacity(shape, TestLayout::factory(), {.context = 0}), Error);
  EXPECT_THROW(plan_capacity(shape, TestLayout::factory(), {.context = 1, .batch = 0}), Error);
  EXPECT_THROW(plan_capacity(shape, TestLayout::factory(), {.context = int64_t{1} << 40}), Error);
}

TEST(Describe, CodecsInTheGrammarOfTheCommandLine) {
  EXPECT_EQ(describe(CodecPair{plain(Dtype::bf16), plain(Dtype::bf16)}), "bf16");
  PlaneCodec a = affine(4);
  a.group = 64;
  EXPECT_EQ(describe(CodecPair{a, a}), "affine:4:64");
  const PlaneCodec key{.kind = PlaneCodec::Kind::turbo_key, .bits = 8},
      value{.kind = PlaneCodec::Kind::rotated, .bits = 3};
  EXPECT_EQ(describe(CodecPair{key, value}), "turbo:8,3");
  EXPECT_EQ(describe(CodecPair{value, value}), "rot:3");
  EXPECT_EQ(describe(CodecPair{a, value}), "affine:4:64/rot:3");
}

}  // namespace
}  // namespace kvasir::kv
