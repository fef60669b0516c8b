// Latents of MLA layers in pages (kv-cache.md 2.1, 12): beside layers of keys and values, against a plain
// model of vectors that knows nothing of pages.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/test_folder.h"
#include "kv/codecs/mla_layout.h"
#include "kv/kvk_file.h"
#include "kv/kvk_header.h"
#include "kv/scheme.h"
#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;

constexpr int kLatent = 20, kRope = 6, kIndex = 3, kHeadDim = 8;
constexpr int32_t kMost = 700;

// Owners 0 and 2 keep keys and values (2 with a window), 1 and 3 latents with an indexer, 4 without, 5 of
// MTP.
std::vector<LayerGeometry> owners() {
  const auto plain = [](int layer) {
    return LayerGeometry{.layer = layer, .kv_heads = 2, .head_dim_k = kHeadDim, .head_dim_v = kHeadDim};
  };
  const auto latents = [](int layer, const MlaGeometry& mla) {
    return LayerGeometry{
        .layer = layer, .kv_heads = 1, .head_dim_k = kLatent, .head_dim_v = kRope, .mla = mla};
  };
  const MlaGeometry indexed{.dsa_dim = kIndex, .max_tokens = kMost};
  std::vector<LayerGeometry> list{plain(0),
                                  latents(1, indexed),
                                  plain(2),
                                  latents(3, indexed),
                                  latents(4, {.dsa_dim = 0, .max_tokens = kMost}),
                                  latents(5, {.dsa_dim = 0, .max_tokens = kMost, .mtp = true})};
  list[2].window = 40;
  return list;
}
std::vector<CodecPair> codecs() {
  const CodecPair kv = parse_codec("f32", Dtype::f32);
  return {kv, mla_codec(), kv, mla_codec(), mla_codec(), mla_codec()};
}
CacheShape shape_of(int page) {
  return group_layers(owners(), codecs(), page, 0);
}

// What a layer computes for a token is a function of the row's tokens up to it.
float value(uint64_t prefix, int layer, int plane, int channel) {
  const uint64_t bits = testing::mix(prefix ^ static_cast<uint64_t>(layer * 8 + plane) << 32 ^
                                     static_cast<uint64_t>(channel) << 8);
  return static_cast<float>(static_cast<int64_t>(bits % 2000001) - 1000000) / 1024.0f;
}

std::vector<uint64_t> prefix_hashes(std::span<const int32_t> tokens) {
  std::vector<uint64_t> hashes;
  uint64_t hash = 1;
  for (const int32_t token : tokens)
    hashes.push_back(hash = testing::mix(hash ^ static_cast<uint64_t>(token)));
  return hashes;
}

using testing::TestRow;

// Latents go through append_mla as an op's would, keys and values through the layout.
void append(KvCache& cache, std::span<TestRow* const> rows, std::span<const std::vector<int32_t>> tokens) {
  std::vector<Sequence*> sequences;
  std::vector<int32_t> counts;
  for (size_t r = 0; r < rows.size(); ++r) {
    sequences.push_back(&rows[r]->sequence);
    counts.push_back(static_cast<int32_t>(tokens[r].size()));
  }
  Step step;
  cache.reserve(sequences, counts, step);
  for (size_t r = 0; r < rows.size(); ++r) {
    const int32_t before = rows[r]->sequence.offset();
    std::vector<int32_t>& all = rows[r]->tokens;
    all.insert(all.end(), tokens[r].begin(), tokens[r].end());
    const std::vector<uint64_t> prefixes = prefix_hashes(all);
    const auto plane = [&](int layer, int index, int dim) {
      std::vector<float> numbers;
      for (int32_t t = 0; t < counts[r]; ++t)
        for (int c = 0; c < dim; ++c)
          numbers.push_back(value(prefixes[static_cast<size_t>(before + t)], layer, index, c));
      return numbers;
    };
    for (size_t g = 0; g < cache.groups(); ++g) {
      const RowPages& pages = step.views()[g].rows[r];
      const LayerGroup& group = cache.shape().groups[g];
      if (group.geometry.mla) {
        for (int i = 0; i < group.geometry.layers; ++i) {
          const int layer = group.owners[static_cast<size_t>(i)];
          const auto latent = plane(layer, 0, kLatent), rope = plane(layer, 1, kRope),
                     dsa = plane(layer, 2, group.geometry.mla->dsa_dim);
          append_mla(pages, i, before, counts[r], {.latent = latent, .rope = rope, .dsa = dsa});
        }
        continue;
      }
      const int32_t page = group.geometry.page_tokens;
      const int layer = group.owners[0];
      const auto numbers = plane(layer, 0, 4 * kHeadDim);
      for (int32_t t = 0; t < counts[r]; ++t)
        pages.layout->import_tokens(
            pages.pages[(before + t) / page], (before + t) % page, 1,
            std::as_bytes(std::span(numbers))
                .subspan(static_cast<size_t>(t) * pages.layout->token_bytes(), pages.layout->token_bytes()));
    }
  }
  step.commit();
}
void append(KvCache& cache, TestRow& row, const std::vector<int32_t>& tokens) {
  TestRow* rows[] = {&row};
  append(cache, rows, std::span(&tokens, 1));
}

// The row's planes as an op reads them from a view, and its canonical bytes, against the tokens alone.
std::string mismatch_in(const Sequence& row, std::span<const int32_t> tokens) {
  const KvCache& cache = row.cache();
  if (row.offset() != static_cast<int32_t>(tokens.size())) return "offset";
  if (row.offset() == 0) return {};
  const std::vector<uint64_t> prefixes = prefix_hashes(tokens);
  for (size_t g = 0; g < cache.groups(); ++g) {
    const LayerGroup& group = cache.shape().groups[g];
    const int32_t page = group.geometry.page_tokens;
    const DonorView view = row.donate(g);
    for (int32_t p = row.first_stored(g); p < row.offset(); ++p) {
      const uint64_t prefix = prefixes[static_cast<size_t>(p)];
      std::vector<float> expected;
      for (int i = 0; i < group.geometry.layers; ++i) {
        const int layer = group.owners[static_cast<size_t>(i)];
        if (!group.geometry.mla) {
          for (int c = 0; c < 4 * kHeadDim; ++c) expected.push_back(value(prefix, layer, 0, c));
          continue;
        }
        const MlaLayout& layout = mla_layout(view.pages());
        const std::byte* at = view.pages().pages[p / page];
        const float* planes[] = {layout.latent(at, i), layout.rope(at, i), layout.dsa(at, i)};
        const int dims[] = {layout.latent_dim(), layout.rope_dim(), layout.dsa_dim()};
        for (int plane = 0; plane < 3; ++plane)
          for (int c = 0; c < dims[plane]; ++c) {
            expected.push_back(value(prefix, layer, plane, c));
            if (planes[plane][p % page * dims[plane] + c] != expected.back())
              return fmt::format("layer {} plane {} position {} channel {}", layer, plane, p, c);
          }
      }
      const auto bytes = row.bytes(g, p, 1);
      if (bytes.size() != expected.size() * 4 ||
          std::memcmp(bytes.data(), expected.data(), bytes.size()) != 0)
        return fmt::format("group {}: bytes of position {}", g, p);
    }
  }
  return {};
}
std::string mismatch_in(const TestRow& row) {
  return mismatch_in(row.sequence, row.tokens);
}

KvCache make_cache(const CacheShape& shape, uint32_t pages, MemoryLedger* ledger = nullptr) {
  return KvCache(shape, layouts_for(IsaLevel::generic), testing::pages_each(shape, pages), ledger, true);
}

// Page of 4 tokens, 2 layers, R 5, R_rope 3, D_idx 2: latent [4][5] at 0 (80 bytes, to 128), rope [4][3] at
// 128 (48, to 64 more), dsa [4][2] at 192 (32, to 64): a layer is 256 bytes, a page 512.
TEST(Mla, PagesHaveTheFormOfTheSpec) {
  const GroupGeometry geometry{.layers = 2,
                               .kv_heads = 1,
                               .head_dim_k = 5,
                               .head_dim_v = 3,
                               .codec = mla_codec(),
                               .page_tokens = 4,
                               .mla = MlaGeometry{.dsa_dim = 2, .max_tokens = 100}};
  const auto layout = PageLayout::make(geometry, IsaLevel::generic);
  EXPECT_EQ(layout->page_bytes(), 512u);
  EXPECT_EQ(layout->token_bytes(), 2u * 4 * (5 + 3 + 2));  // kv-cache.md 17: 4 (R + R_r + D_i) a layer
  EXPECT_EQ(layout->token_bytes(), token_bytes(geometry));
  EXPECT_EQ(page_form(geometry).page_bytes, 512u);
  EXPECT_EQ(describe(geometry), "2 layers [latent 5, rope 3, index 2] all, mla");
  alignas(64) std::byte page[512];
  std::memset(page, 0xFF, sizeof page);
  std::byte* pages[] = {page};
  const float latent[] = {1, 2, 3, 4, 5}, rope[] = {6, 7, 8}, dsa[] = {9, 10};
  append_mla({.pages = pages, .page_count = 1, .layout = layout.get()}, 1, 2, 1,
             {.latent = latent, .rope = rope, .dsa = dsa});
  EXPECT_EQ(std::memcmp(page + 256 + 2 * 20, latent, sizeof latent), 0);
  EXPECT_EQ(std::memcmp(page + 256 + 128 + 2 * 12, rope, sizeof rope), 0);
  EXPECT_EQ(std::memcmp(page + 256 + 192 + 2 * 8, dsa, sizeof dsa), 0);
  EXPECT_EQ(std::count(page, page + 512, std::byte{0xFF}), 512 - 40);  // and nothing else was touched
}

// P1, P2, P3, P4, P24: every page size, edges of pages included.
TEST(Mla, RandomProgramsEqualAPlainVectorModel) {
  for (const int page : {1, 2, 8, 16, 32, 64, 128, 256})
    for (uint32_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(fmt::format("page {}, seed {}", page, seed));
      std::mt19937 random(seed);
      const CacheShape shape = shape_of(page);
      MemoryLedger ledger;
      KvCache cache = make_cache(shape, static_cast<uint32_t>(4000 / page + 16), &ledger);
      std::vector<TestRow> rows;
      for (int operation = 0; operation < 24; ++operation) {
        const size_t pick = rows.empty() ? 0 : random() % rows.size();
        const auto kind = random() % 6;
        if (rows.empty() || (kind == 0 && rows.size() < 4)) {
          rows.push_back({cache.create(), {}});
        } else if (kind <= 2) {
          std::vector<TestRow*> taking;
          std::vector<std::vector<int32_t>> tokens;
          for (TestRow& row : rows) {
            // To an edge of a page, one before or behind it, or anywhere.
            const int32_t edge = (row.sequence.offset() / page + 1) * page - row.sequence.offset();
            const int32_t wanted = random() % 2 == 0 ? edge + static_cast<int32_t>(random() % 3) - 1
                                                     : static_cast<int32_t>(random() % 30);
            const int32_t count = std::clamp(wanted, 0, kMost - row.sequence.offset());
            taking.push_back(&row);
            tokens.push_back(testing::random_tokens(random, static_cast<size_t>(count), 50));
          }
          append(cache, taking, tokens);
        } else if (kind == 3 && rows.size() < 4) {
          const int32_t at = rows[pick].sequence.nearest_resumable(
              static_cast<int32_t>(random() % (rows[pick].tokens.size() + 1)));
          rows.push_back(
              {rows[pick].sequence.fork(at), {rows[pick].tokens.begin(), rows[pick].tokens.begin() + at}});
        } else if (kind == 4) {
          const int32_t at = rows[pick].sequence.nearest_resumable(
              static_cast<int32_t>(random() % (rows[pick].tokens.size() + 1)));
          rows[pick].sequence.truncate(at);
          rows[pick].tokens.resize(static_cast<size_t>(at));
        } else if (random() % 2 == 0) {
          rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(pick));
        } else {
          rows[pick].sequence.begin_round();
          const int32_t count = std::min(5, kMost - rows[pick].sequence.offset());
          append(cache, rows[pick], testing::random_tokens(random, static_cast<size_t>(count), 50));
          const int32_t keep = static_cast<int32_t>(random() % static_cast<uint32_t>(count + 1));
          rows[pick].sequence.commit_round(keep);
          rows[pick].tokens.resize(rows[pick].tokens.size() - static_cast<size_t>(count - keep));
        }
        for (const TestRow& row : rows)
          if (operation % 6 == 5) {
            ASSERT_EQ(mismatch_in(row), "") << "operation " << operation;
          }
        ASSERT_EQ(ledger.bytes(MemoryCategory::kv), cache.committed_bytes());
      }
      for (TestRow& row : rows) {
        ASSERT_EQ(mismatch_in(row), "");
        KvCache solo = make_cache(shape, static_cast<uint32_t>(1000 / page + 4));
        TestRow alone{solo.create(), {}};
        append(solo, alone, row.tokens);
        for (size_t g = 0; g < cache.groups(); ++g) {
          const int32_t first = std::max(alone.sequence.first_stored(g), row.sequence.first_stored(g));
          ASSERT_EQ(alone.sequence.bytes(g, first, row.sequence.offset() - first),
                    row.sequence.bytes(g, first, row.sequence.offset() - first));
        }
      }
      rows.clear();
      for (size_t g = 0; g < cache.groups(); ++g) EXPECT_EQ(cache.pool(g, true).used_pages(), 0u);
    }
}

// P3: the donor's bytes stay, one page a group is copied.
TEST(Mla, ForksCopyThePageThatTheyShare) {
  const CacheShape shape = shape_of(16);
  KvCache cache = make_cache(shape, 32);
  TestRow a{cache.create(), {}};
  append(cache, a, testing::counting(0, 37));
  TestRow b{a.sequence.fork(), a.tokens};
  append(cache, b, testing::counting(500, 3));
  EXPECT_EQ(cache.pages_copied(), cache.groups());
  append(cache, a, testing::counting(900, 30));
  EXPECT_EQ(cache.pages_copied(), cache.groups());
  EXPECT_EQ(mismatch_in(a), "");
  EXPECT_EQ(mismatch_in(b), "");
}

std::string message(const std::function<void()>& call, ErrorCode code = ErrorCode::invalid_input) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "accepted";
}

// P24.
TEST(Mla, AppendIsAtomicOverThePlanes) {
  const CacheShape shape = shape_of(4);
  KvCache cache = make_cache(shape, 64);
  TestRow row{cache.create(), {}};
  append(cache, row, testing::counting(0, 6));
  const size_t g = static_cast<size_t>(shape.group_of[1]);  // with an indexer
  Step step;
  cache.reserve({&row.sequence}, {3}, step);
  const RowPages& pages = step.views()[g].rows[0];
  std::vector<std::vector<std::byte>> before;
  for (int32_t i = 0; i < pages.page_count; ++i)
    before.emplace_back(pages.pages[i], pages.pages[i] + pages.layout->page_bytes());
  const std::vector<float> latent(3 * kLatent, 1.0f), rope(3 * kRope, 2.0f), dsa(3 * kIndex, 3.0f);
  const std::span<const float> l = latent, r = rope, d = dsa;
  const auto mismatch = [&](const MlaTokens& tokens) {
    const std::string text = message([&] { append_mla(pages, 0, 6, 3, tokens); });
    EXPECT_NE(text.find("KV geometry mismatch: expected 3 tokens of [latent 20, rope 6, index 3]"),
              std::string::npos)
        << text;
  };
  mismatch({l.first(2 * kLatent), r, d});
  mismatch({l, r.first(kRope), d});
  mismatch({l, r, {}});
  mismatch({l, {}, d});
  mismatch({l, r, d.first(1)});
  mismatch({r, l, d});
  EXPECT_NE(message([&] {
              append_mla(pages, 2, 6, 3, {l, r, d});
            }).find("layer 2 of a group of 2"),
            std::string::npos);
  EXPECT_NE(message([&] { append_mla(pages, -1, 6, 3, {l, r, d}); }).find("layer -1"), std::string::npos);
  EXPECT_NE(message([&] {
              append_mla(pages, 0, 10, 3, {l, r, d});
            }).find("no page for 12"),
            std::string::npos);
  EXPECT_NE(message([&] { append_mla(pages, 0, -3, 3, {l, r, d}); }).find("position -3"), std::string::npos);
  EXPECT_THROW(append_mla(pages, 0, kMost - 2, 3, {l, r, d}), KvRangeError);
  EXPECT_THROW(append_mla(step.views()[0].rows[0], 0, 6, 3, {l, r, d}), Error);  // keys and values
  const size_t bare = static_cast<size_t>(shape.group_of[4]);
  EXPECT_NE(message([&] {
              append_mla(step.views()[bare].rows[0], 0, 6, 3, {l, r, d});
            }).find("index 0"),
            std::string::npos);
  for (int32_t i = 0; i < pages.page_count; ++i)
    EXPECT_EQ(std::memcmp(pages.pages[i], before[static_cast<size_t>(i)].data(),
                          before[static_cast<size_t>(i)].size()),
              0);
  append_mla(pages, 0, 6, 3, {l, r, d});
  step.rollback();
  EXPECT_EQ(mismatch_in(row), "");
}

// P24: ranges are typed errors, and change nothing.
TEST(Mla, LimitsAreRangeErrors) {
  auto small = owners();
  for (LayerGeometry& owner : small)
    if (owner.mla) owner.mla->max_tokens = owner.layer == 5 ? 11 : 20;
  const CacheShape shape = group_layers(small, codecs(), 4, 0);
  KvCache cache = make_cache(shape, 64);
  TestRow row{cache.create(), {}};
  append(cache, row, testing::counting(0, 9));
  const size_t used = cache.used_bytes();
  Step step;
  try {
    cache.reserve({&row.sequence}, {3}, step);
    FAIL();
  } catch (const KvRangeError& error) {
    EXPECT_NE(std::string(error.what()).find("MLA append would exceed maxTokens 11"), std::string::npos);
  }
  EXPECT_FALSE(step.open());
  EXPECT_EQ(cache.used_bytes(), used);
  append(cache, row, testing::counting(50, 2));
  EXPECT_THROW(cache.reserve({&row.sequence}, {1}, step), KvRangeError);
  cache.reserve({&row.sequence}, {0}, step);  // it may still be read
  step.rollback();
  EXPECT_THROW(row.sequence.truncate(-1), KvRangeError);
  EXPECT_THROW(row.sequence.truncate(12), KvRangeError);
  EXPECT_EQ(mismatch_in(row), "");
  row.sequence.truncate(11);
  for (const int32_t length : {10, 4, 3, 0}) {  // always trimmable
    EXPECT_EQ(row.sequence.nearest_resumable(length), length);
    row.sequence.truncate(length);
    row.tokens.resize(static_cast<size_t>(length));
    EXPECT_EQ(mismatch_in(row), "");
  }
}

TEST(Mla, GeometriesThatCannotBeAreRefused) {
  const auto refused = [](const std::function<void(LayerGeometry&, CodecPair&)>& forge, const char* words) {
    auto list = owners();
    auto pairs = codecs();
    forge(list[1], pairs[1]);
    const std::string text = message([&] { group_layers(list, pairs, 16, 0); });
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  refused([](auto& owner, auto&) { owner.mla->mtp = true; }, "a native MTP cache cannot hold DSA state");
  refused([](auto& owner, auto&) { owner.kv_heads = 2; }, "not possible");
  refused([](auto& owner, auto&) { owner.window = 9; }, "a window");
  refused([](auto& owner, auto&) { owner.mla->max_tokens = 0; }, "not possible");
  refused([](auto& owner, auto&) { owner.mla->dsa_dim = -1; }, "not possible");
  refused([](auto& owner, auto&) { owner.mla.reset(); }, "a layer of keys and values stores mla");
  refused([](auto&, auto& codec) { codec = parse_codec("f32", Dtype::f32); }, "an MLA layer stores f32");
  refused([](auto&, auto& codec) { codec = parse_codec("affine:8", Dtype::f32); },
          "an MLA layer stores affine");
}

// P38: what is planned is what is there, and 4 (R + R_r + D_i) bytes a token and layer.
TEST(Mla, BytesArePlannedToTheByte) {
  for (const int page : {16, 64, 256}) {
    const CacheShape shape = shape_of(page);
    const Workload workload{.context = 600, .batch = 2, .chunk = 64};
    const CacheCapacity capacity = plan_capacity(shape, layouts_for(IsaLevel::generic), workload);
    const CacheBytes planned = plan_bytes(shape, layouts_for(IsaLevel::generic), capacity);
    MemoryLedger ledger;
    KvCache cache(shape, layouts_for(IsaLevel::generic), capacity, &ledger, true);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), planned.bytes);
    const size_t latents = 4 * (2 * (kLatent + kRope + kIndex) + 2 * (kLatent + kRope));
    const size_t plain = 2 * 4 * 2 * 2 * kHeadDim;
    EXPECT_EQ(planned.bytes_per_token, latents + plain);
    EXPECT_EQ(row_bytes(shape, layouts_for(IsaLevel::generic), 100), 100 * latents + (100 + 40) * plain / 2);
    TestRow row{cache.create(), {}};
    for (int32_t at = 0; at < 600; at += 60)  // exactly what was planned for
      append(cache, row, testing::counting(at, 60));
    EXPECT_EQ(mismatch_in(row), "");
  }
}

// P6, P32, P33: through both layouts of files and other page sizes.
TEST(Mla, FilesHoldTheirPlanes) {
  const TestFolder temporary("mla");
  const fs::path& folder = temporary.path();
  for (const int page : {4, 16, 64, 256}) {
    const CacheShape shape = shape_of(page);
    KvCache cache = make_cache(shape, 300);
    TestRow row{cache.create(), {}};
    for (const int32_t count : {70, 1, 30}) append(cache, row, testing::counting(count, count));
    KvkHeader header;
    header.tokens = row.tokens;
    write_kvk(folder / "a.kvk", header, row.sequence);
    const KvkFile file = KvkFile::open(folder / "a.kvk", true);
    convert_kvk(file, folder / "dense.kvk", KvkHeader::Layout::dense, 0);
    const KvkFile dense = KvkFile::open(folder / "dense.kvk", true);
    EXPECT_EQ(dense.header().groups[static_cast<size_t>(shape.group_of[1])].planes.size(),
              6u);  // 2 layers, 3 planes
    convert_kvk(dense, folder / "back.kvk", KvkHeader::Layout::pages, page);
    for (const KvkFile* from : {&file, &dense})
      for (const int other : {2, 16, 64, 256}) {
        const CacheShape target = shape_of(other);
        KvCache restored_into = make_cache(target, 300);
        TestRow restored{restore_sequence(restored_into, *from), row.tokens};
        EXPECT_EQ(mismatch_in(restored), "");
        append(restored_into, restored, testing::counting(3, 9));
        EXPECT_EQ(mismatch_in(restored), "");
      }
    const KvkFile back = KvkFile::open(folder / "back.kvk", true);
    TestRow restored{restore_sequence(cache, back), row.tokens};
    EXPECT_EQ(mismatch_in(restored), "");
  }
  // What the header says of the layers, and what it may not say.
  const KvkFile file = KvkFile::open(folder / "a.kvk");
  const auto good = nlohmann::json::parse(header_text(file.header()));
  const char* const kinds[] = {"kv", "mla-dsa", "rotating", "mla-dsa", "mla", "mtp-mla"};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(good["caches"][i]["kind"], kinds[i]);
  EXPECT_EQ(good["caches"][1]["kv_lora_rank"], kLatent);
  EXPECT_EQ(good["caches"][1]["rope_head_dim"], kRope);
  EXPECT_EQ(good["caches"][1]["dsa_head_dim"], kIndex);
  EXPECT_EQ(good["caches"][1]["max_tokens"], kMost);
  EXPECT_FALSE(good["caches"][4].contains("dsa_head_dim"));
  EXPECT_TRUE(file.header().groups.back().geometry.mla->mtp);
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& forge) {
    nlohmann::json root = good;
    forge(root);
    return message([&] { parse_header(root.dump(), "x"); }, ErrorCode::corrupt_file);
  };
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
  const size_t dsa = static_cast<size_t>(shape_of(16).group_of[1]),
               mtp = static_cast<size_t>(shape_of(16).group_of[5]);
  for (const auto& [group, field, forged] :
       {std::tuple<size_t, const char*, nlohmann::json>{dsa, "mtp", true},
        {mtp, "dsa_head_dim", 4},
        {mtp, "mtp", 1},
        {dsa, "dsa_head_dim", 0},
        {dsa, "dsa_head_dim", 2},
        {dsa, "max_tokens", 100},
        {dsa, "max_tokens", 0},
        {dsa, "kv_heads", 2},
        {dsa, "window", 9},
        {dsa, "plain_k", "f16"},
        {dsa, "codec", "f32"},
        {0, "max_tokens", 200},
        {0, "codec", "mla"}})
    EXPECT_NE(refusal([&, g = group, f = field, v = forged](auto& r) { r["groups"][g][f] = v; }), "accepted")
        << field << " " << forged;
  // A cache with other limits, or without an indexer, is not the file's.
  const auto foreign = [&](const std::function<void(LayerGeometry&)>& change) {
    auto list = owners();
    for (LayerGeometry& owner : list)
      if (owner.mla) change(owner);
    const CacheShape shape = group_layers(list, codecs(), 16, 0);
    KvCache other = make_cache(shape, 64);
    const std::string text = message([&] { restore_sequence(other, file); });
    EXPECT_EQ(other.used_bytes(), 0u);
    return text;
  };
  EXPECT_NE(foreign([](auto& owner) { owner.mla->max_tokens = 800; }).find("mismatch"), std::string::npos);
  EXPECT_NE(foreign([](auto& owner) { owner.head_dim_v = 7; }).find("geometry of group"), std::string::npos);
  EXPECT_NE(foreign([](auto& owner) {
              owner.mla->dsa_dim = 0;
            }).find("signature of cached layer 1 mismatch (file kv:mla:target:dsa, expected kv:mla:target)"),
            std::string::npos);
}

// P33.
TEST(Mla, FlippedBytesAreNoticed) {
  const TestFolder temporary("mla");
  std::ifstream in(fs::path(KVASIR_TEST_DATA) / "kv" / "latents.kvk", std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  const fs::path path = temporary.path() / "bad.kvk";
  for (size_t at = 0; at < good.size(); at += at < 64 ? 1 : 61) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    EXPECT_THROW(KvkFile::open(path, true), Error) << at;
  }
  for (size_t length = 0; length < good.size(); length += 997) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good.substr(0, length);
    EXPECT_THROW(KvkFile::open(path), Error) << length;
  }
}

// P32: a file of another implementation, written from the format's description
// (tools/oracles/kvk_goldens.py).
TEST(Mla, ReadsAGoldenFile) {
  const fs::path path = fs::path(KVASIR_TEST_DATA) / "kv" / "latents.kvk";
  const KvkFile file = KvkFile::open(path, true);
  const auto latents = [](int layer, const MlaGeometry& mla) {
    return LayerGeometry{.layer = layer, .kv_heads = 1, .head_dim_k = 5, .head_dim_v = 3, .mla = mla};
  };
  const std::vector<LayerGeometry> model{latents(0, {.dsa_dim = 2, .max_tokens = 64}),
                                         {.layer = 1, .kv_heads = 2, .head_dim_k = 2, .head_dim_v = 3},
                                         latents(2, {.dsa_dim = 2, .max_tokens = 64}),
                                         latents(3, {.dsa_dim = 0, .max_tokens = 64, .mtp = true})};
  const CodecPair kv = parse_codec("f32", Dtype::f32);
  const CacheShape shape =
      group_layers(model, std::vector<CodecPair>{mla_codec(), kv, mla_codec(), mla_codec()}, 8, 0);
  KvCache cache = make_cache(shape, 8);
  const Sequence row = restore_sequence(cache, file);
  ASSERT_EQ(row.offset(), 11);
  for (const size_t g : {0u, 2u}) {
    const DonorView view = row.donate(g);
    const MlaLayout& layout = mla_layout(view.pages());
    for (int layer = 0; layer < layout.geometry().layers; ++layer)
      for (int p = 0; p < 11; ++p) {
        const std::byte* page = view.pages().pages[p / 8];
        const std::pair<const float*, int> planes[] = {{layout.latent(page, layer), layout.latent_dim()},
                                                       {layout.rope(page, layer), layout.rope_dim()},
                                                       {layout.dsa(page, layer), layout.dsa_dim()}};
        for (int plane = 0; plane < 3; ++plane)
          for (int i = 0; i < planes[plane].second; ++i)
            ASSERT_EQ(planes[plane].first[p % 8 * planes[plane].second + i],
                      static_cast<float>(10000 * static_cast<int>(g) + 1000 * layer + 200 * plane + p) +
                          static_cast<float>(i) / 8);
      }
  }
  ASSERT_EQ(row.attachments().size(), 2u);
  const Attachment& drafter = *row.companion("mtp-cache-1");
  EXPECT_EQ(drafter.metadata,
            (std::map<std::string, Attachment::Value>{
                {"model", std::string("drafter")}, {"step", int64_t{7}}, {"scale", 0.5}, {"ready", true}}));
  ASSERT_EQ(drafter.tensors.size(), 2u);
  EXPECT_EQ(drafter.tensors[0].dtype, Dtype::f32);
  EXPECT_EQ(drafter.tensors[0].shape, std::vector<int64_t>({2, 3}));
  for (int i = 0; i < 6; ++i) {
    float number = 0;
    std::memcpy(&number, drafter.tensors[0].data.data() + 4 * i, 4);
    EXPECT_EQ(number, static_cast<float>(i));
  }
  EXPECT_EQ(drafter.tensors[1].data, std::vector<std::byte>{std::byte{9}});
  EXPECT_TRUE(row.companion("empty-1")->tensors.empty());
}

}  // namespace
}  // namespace kvasir::kv
