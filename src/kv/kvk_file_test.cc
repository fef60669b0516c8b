#include "kv/kvk_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_file_size.h"
#include "base/test_folder.h"
#include "kv/kvk_header.h"
#include "kv/scheme.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::append;
using testing::difference;
using testing::TestLayout;
using testing::TestRow;

// Encoded tokens of TestLayout have half the bytes of plain ones; a codec whose real size is that: f16 keys
// and values under an f32 stage would be plain, so the stored stage is what the plane table says of it. Files
// need real sizes: use f32 plain.
struct Fixture {
  TestFolder folder{"kvk"};
  CacheShape shape;
  KvCache cache;
  explicit Fixture(const testing::ShapeOptions& options)
      : shape(testing::make_shape(options)),
        cache(shape, TestLayout::factory(), testing::pages_each(shape, 64), nullptr, true) {}
  TestRow computed(int32_t count, uint32_t seed = 1) {
    std::mt19937 random(seed);
    TestRow row{cache.create(), {}};
    append(cache, row, testing::random_tokens(random, static_cast<size_t>(count)), 5);
    return row;
  }
  KvkHeader header(const TestRow& row) {
    KvkHeader header;
    header.identity = testing::test_identity();
    header.created_ms = 1700000000000;
    header.tokens = row.tokens;
    return header;
  }
  fs::path file(const char* name = "a.kvk") const { return folder.path() / name; }
};

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// P6, P32.
TEST(KvkFile, RoundTripOverWindowsSinksStateAndPageSizes) {
  for (const bool recurrent : {false, true})
    for (const int window : {0, 3, 7, 100})
      for (const int sinks : {0, 2})
        for (const int32_t count : {1, 4, 5, 29}) {
          testing::ShapeOptions options{.page = 4, .sinks = sinks, .state_bytes = recurrent ? 24u : 0u};
          if (window > 0) options.window = window;
          Fixture f(options);
          TestRow row = f.computed(count);
          const uint64_t bytes = write_kvk(f.file(), f.header(row), row.sequence);
          EXPECT_EQ(bytes, fs::file_size(f.file()));
          EXPECT_EQ(files_in(f.folder.path()), 1u);
          const KvkFile file = KvkFile::open(f.file(), true);
          EXPECT_EQ(file.header().tokens, row.tokens);
          EXPECT_EQ(file.header().trimmable(), !recurrent && (window == 0 || count < window));
          ThreadTeam team(2);
          for (const int page : {1, 2, 4, 16, 64}) {
            options.page = page;
            Fixture other(options);
            TestRow restored{restore_sequence(other.cache, file, page == 2 ? &team : nullptr), row.tokens};
            EXPECT_EQ(difference(restored), "");
            std::mt19937 random(9);
            append(other.cache, restored, testing::random_tokens(random, 9));
            EXPECT_EQ(difference(restored), "");
          }
          // The dense form, and back to pages of another size: the same bytes.
          convert_kvk(file, f.file("dense.kvk"), KvkHeader::Layout::dense, 0);
          const KvkFile dense = KvkFile::open(f.file("dense.kvk"), true);
          EXPECT_EQ(dense.header().layout, KvkHeader::Layout::dense);
          TestRow restored{restore_sequence(f.cache, dense), row.tokens};
          EXPECT_EQ(difference(restored), "");
          convert_kvk(dense, f.file("back.kvk"), KvkHeader::Layout::pages, 4);
          EXPECT_EQ(contents(f.file("back.kvk")), contents(f.file()));
        }
}

TEST(KvkFile, PagesHaveTheFormOfTheSpec) {
  // One full group of 1 layer, 2 heads, D_k 2, D_v 3, f32, P 4: K at 0 (2 * 4 * 8 = 64 bytes), V at 64 (2 * 4
  // * 12 = 96, to 128).
  Fixture f({.page = 4});
  TestRow row = f.computed(6);
  write_kvk(f.file(), f.header(row), row.sequence);
  const std::string bytes = contents(f.file());
  EXPECT_EQ(bytes.substr(0, 8), "KVASIRKV");
  uint32_t header_bytes = 0;
  uint64_t start = 0, length = 0;
  std::memcpy(&header_bytes, bytes.data() + 12, 4);
  std::memcpy(&start, bytes.data() + 16, 8);
  std::memcpy(&length, bytes.data() + 32, 8);
  EXPECT_EQ(start, (64 + header_bytes + 4095) / 4096 * 4096);
  EXPECT_EQ(length, bytes.size());
  EXPECT_EQ(bytes.size(), start + 4096 + 256);     // two pages of align256(64 + 128)
  const auto token = row.sequence.bytes(0, 5, 1);  // [K head 0, K head 1, V head 0, V head 1]
  const char* page = bytes.data() + start + 4096;
  EXPECT_EQ(std::memcmp(page + (0 * 4 + 1) * 8, token.data(), 8), 0);
  EXPECT_EQ(std::memcmp(page + (1 * 4 + 1) * 8, token.data() + 8, 8), 0);
  EXPECT_EQ(std::memcmp(page + 64 + (0 * 4 + 1) * 12, token.data() + 16, 12), 0);
  EXPECT_EQ(std::memcmp(page + 64 + (1 * 4 + 1) * 12, token.data() + 28, 12), 0);
  for (int slot = 2; slot < 4; ++slot)
    for (int i = 0; i < 8; ++i) EXPECT_EQ(page[slot * 8 + i], 0) << "a dead slot";
}

// Files written by another implementation, from the format's description (tools/oracles/kvk_goldens.py).
TEST(KvkFile, ReadsGoldenFilesOfBothLayouts) {
  for (const char* name : {"pages.kvk", "dense.kvk"}) {
    const KvkFile file = KvkFile::open(fs::path(KVASIR_TEST_DATA) / "kv" / name, true);
    ASSERT_EQ(file.header().offset(), 11);
    ASSERT_EQ(file.header().groups.size(), 2u);
    EXPECT_EQ(file.header().groups[0].owners, std::vector<int>({0, 2}));
    EXPECT_EQ(file.state().size(), 16u);
    for (size_t g = 0; g < 2; ++g) {
      const GroupGeometry& geometry = file.header().groups[g].geometry;
      for (int32_t p = 0; p < 11; ++p) {
        if (g == 1 && p >= 2 && p < 5) continue;
        std::vector<std::byte> token(token_bytes(geometry));
        file.tokens(g, p, 1, token);
        size_t at = 0;
        for (int layer = 0; layer < geometry.layers; ++layer)
          for (int plane = 0; plane < 2; ++plane)
            for (int head = 0; head < geometry.kv_heads; ++head)
              for (int i = 0; i < (plane == 0 ? geometry.head_dim_k : geometry.head_dim_v); ++i, at += 4) {
                float value = 0;
                std::memcpy(&value, token.data() + at, 4);
                ASSERT_EQ(value, static_cast<float>(10000 * static_cast<int>(g) + 1000 * layer +
                                                    100 * (2 * plane + head) + p) +
                                     static_cast<float>(i) / 8)
                    << name << " group " << g << " position " << p;
              }
        ASSERT_EQ(at, token.size());
      }
    }
    Fixture f({.page = 4});
    const CacheShape shape = group_layers(
        std::vector<LayerGeometry>{
            {.layer = 0, .kv_heads = 2, .head_dim_k = 2, .head_dim_v = 3},
            {.layer = 1, .kv_heads = 1, .head_dim_k = 2, .head_dim_v = 2, .window = 6, .sinks = 2},
            {.layer = 2, .kv_heads = 2, .head_dim_k = 2, .head_dim_v = 3}},
        std::vector<CodecPair>(3, {testing::plain(), testing::plain()}), 8, 0, 16);
    KvCache cache(shape, TestLayout::factory(), testing::pages_each(shape, 8), nullptr, true);
    const Sequence sequence = restore_sequence(cache, file);
    EXPECT_EQ(sequence.first_stored(1), 5);
    std::vector<std::byte> expected(6 * token_bytes(shape.groups[1].geometry));
    file.tokens(1, 5, 6, expected);
    EXPECT_EQ(sequence.bytes(1, 5, 6), expected);
    // And what is written from it is the golden's pages again, under the golden's page size.
    convert_kvk(file, f.file("pages.kvk"), KvkHeader::Layout::pages, 4);
    const std::string ours = contents(f.file("pages.kvk")),
                      golden = contents(fs::path(KVASIR_TEST_DATA) / "kv" / "pages.kvk");
    EXPECT_EQ(ours.substr(ours.size() - 4096 * 3), golden.substr(golden.size() - 4096 * 3));
  }
}

TEST(KvkFile, ForkedRowsGiveEqualFiles) {
  Fixture f({.page = 4, .window = 6});
  TestRow row = f.computed(17);
  TestRow fork{row.sequence.fork(), row.tokens};
  write_kvk(f.file("a.kvk"), f.header(row), row.sequence);
  write_kvk(f.file("b.kvk"), f.header(fork), fork.sequence);
  EXPECT_EQ(contents(f.file("a.kvk")), contents(f.file("b.kvk")));
}

// P33.
TEST(KvkFile, EveryFlippedByteAndEveryCutIsNoticed) {
  Fixture f({.page = 4, .window = 6, .sinks = 1, .state_bytes = 8});
  TestRow row = f.computed(13);
  write_kvk(f.file(), f.header(row), row.sequence);
  const std::string good = contents(f.file());
  uint64_t start = 0;
  std::memcpy(&start, good.data() + 16, 8);
  EXPECT_NO_THROW(KvkFile::open(f.file(), true));
  for (size_t at = 0; at < good.size(); at += at < 64 ? 1 : at < start ? 13 : 211) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    overwrite(f.file("bad.kvk"), bad);
    EXPECT_THROW(KvkFile::open(f.file("bad.kvk"), true), Error) << at;
    if (at < 64) {
      EXPECT_THROW(read_kvk_header(f.file("bad.kvk")), Error) << at;
    }
  }
  for (size_t length = 0; length < good.size(); length += length < 80 ? 1 : 197) {
    overwrite(f.file("bad.kvk"), good.substr(0, length));
    EXPECT_THROW(KvkFile::open(f.file("bad.kvk")), Error) << length;
    EXPECT_THROW(read_kvk_header(f.file("bad.kvk")), Error) << length;
  }
  overwrite(f.file("bad.kvk"), good + "x");
  EXPECT_THROW(KvkFile::open(f.file("bad.kvk")), Error);
  EXPECT_THROW(KvkFile::open(f.file("none.kvk")), Error);
}

TEST(KvkFile, RefusesForeignCaches) {
  Fixture f({.page = 4, .window = 6});
  TestRow row = f.computed(13);
  write_kvk(f.file(), f.header(row), row.sequence);
  const KvkFile file = KvkFile::open(f.file());
  const auto refusal = [&](const testing::ShapeOptions& options) {
    Fixture other(options);
    try {
      restore_sequence(other.cache, file);
    } catch (const Error& error) {
      EXPECT_EQ(other.cache.used_bytes(), other.cache.states().stored_bytes());
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal({.page = 4}).find("2 cached layers but model has 1"), std::string::npos);
  EXPECT_NE(refusal({.page = 4, .window = 7}).find("geometry of group 1 mismatch"), std::string::npos);
  EXPECT_NE(refusal({.page = 4, .window = 6, .state_bytes = 8}).find("recurrent state"), std::string::npos);
  EXPECT_NE(refusal({.page = 4, .start = 9, .window = 6, .encoded_full = true}).find("mismatch"),
            std::string::npos);
  EXPECT_EQ(refusal({.page = 4, .window = 6}), "accepted");
  const CacheShape shape = testing::make_shape({.page = 4, .window = 6});
  KvCache small(shape, TestLayout::factory(), testing::pages_each(shape, 2), nullptr);
  EXPECT_THROW(restore_sequence(small, file), KvPoolExhausted);
  EXPECT_EQ(small.used_bytes(), 0u);
}

TEST(KvkFile, EmptySequencesAreRefused) {
  Fixture f({.page = 4});
  TestRow row{f.cache.create(), {}};
  EXPECT_THROW(write_kvk(f.file(), f.header(row), row.sequence), Error);
  EXPECT_EQ(files_in(f.folder.path()), 0u);
}

// Its beginning is written last: a pipe cannot take that, and must not be replaced.
TEST(KvkFile, APipeIsRefused) {
  Fixture f({.page = 4});
  TestRow row = f.computed(10);
  ASSERT_EQ(::mkfifo(f.file().c_str(), 0600), 0);
  EXPECT_THROW(write_kvk(f.file(), f.header(row), row.sequence), Error);
  EXPECT_TRUE(std::filesystem::is_fifo(f.file()));
  EXPECT_EQ(files_in(f.folder.path()), 1u);
}

TEST(KvkFile, AFullDiskLeavesNothingBehind) {
  Fixture f({.page = 4});
  TestRow row = f.computed(100);
  ErrorCode code = ErrorCode::internal;
  try {
    const FileSizeLimit full(9000);
    write_kvk(f.file(), f.header(row), row.sequence);
  } catch (const Error& error) {
    code = error.code();
  }
  EXPECT_EQ(code, ErrorCode::resource_exhausted);
  EXPECT_EQ(files_in(f.folder.path()), 0u);
  EXPECT_EQ(difference(row), "");
}

// What a header says twice it says alike, and what nobody here knows is refused: not kept, not dropped.
TEST(KvkFile, CachesAgreeWithGroups) {
  Fixture f({.page = 4, .window = 6});
  TestRow row = f.computed(13);
  write_kvk(f.file(), f.header(row), row.sequence);
  convert_kvk(KvkFile::open(f.file()), f.file("dense.kvk"), KvkHeader::Layout::dense, 0);
  for (const char* name : {"a.kvk", "dense.kvk"}) {
    const std::string bytes = contents(f.file(name));
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + 12, 4);
    const auto good = nlohmann::json::parse(bytes.substr(64, length));
    const auto refusal = [&](const std::function<void(nlohmann::json&)>& forge) {
      nlohmann::json root = good;
      forge(root);
      try {
        parse_header(root.dump(), "x");
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::corrupt_file || error.code() == ErrorCode::unsupported);
        return std::string(error.what());
      }
      return std::string("accepted");
    };
    EXPECT_EQ(refusal([](auto&) {}), "accepted");
    EXPECT_NE(refusal([](auto& r) { r.erase("caches"); }).find("lacks \"caches\""), std::string::npos);
    EXPECT_NE(refusal([](auto& r) { r["caches"].erase(1); }).find("1 caches, and the groups have 2"),
              std::string::npos);
    EXPECT_NE(refusal([](auto& r) { r["caches"][0]["kind"] = "zzz"; }).find("unsupported cache kind zzz"),
              std::string::npos);
    for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"kind", "qkv"},
                                     {"offset", 12},
                                     {"min_reusable", 1},
                                     {"dtype", "bf16"},
                                     {"codec", "bf16"},
                                     {"first_position", 1},
                                     {"window", 5},
                                     {"bits", 8}})
      EXPECT_NE(refusal([&, k = key, v = value](auto& r) { r["caches"][0][k] = v; }).find("cache 0"),
                std::string::npos)
          << key;
    EXPECT_NE(refusal([](auto& r) {
                r["attachments"] = nlohmann::json::array({1});
              }).find("attachment 0 is no object"),
              std::string::npos);
    EXPECT_NE(refusal([](auto& r) { r["colour"] = 1; }).find("header has an unknown member \"colour\""),
              std::string::npos);
    EXPECT_NE(refusal([](auto& r) { r["groups"][1]["colour"] = 1; }).find("group 1 has an unknown member"),
              std::string::npos);
  }
}

// 65,536 layers of 8,192 heads of 65,536 keys and values in pages of 65,536 tokens: 2^66 bytes, which 64 bits
// take for none.
TEST(KvkHeader, SizesThatOverflowAreRefused) {
  KvkHeader header;
  header.tokens = {1};
  KvkGroup group;
  group.geometry = {.layers = 1 << 16,
                    .kv_heads = 1 << 13,
                    .head_dim_k = 1 << 16,
                    .head_dim_v = 1 << 16,
                    .codec = parse_codec("f32", Dtype::f32),
                    .page_tokens = 1 << 16};
  for (int layer = 0; layer < 1 << 16; ++layer) group.owners.push_back(layer);
  group.pages = {{0, {.offset = 0, .bytes = 0, .hash = std::string(16, 'a')}}};
  header.groups = {group};
  try {
    parse_header(header_text(header), "x");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
    EXPECT_NE(std::string(error.what()).find("not possible"), std::string::npos) << error.what();
  }
}

// Headers of every codec survive their text.
TEST(KvkHeader, TextAndBack) {
  for (const char* spec :
       {"f32", "bf16", "affine:4:32", "affine:8:64:bf16", "turbo:8,3", "rot:5", "f16/rot:4",
        "affine:8:64/rot:4", "turbokey:5/affine:8:64", "q8_0", "rot:q8_0", "q8_0/rot:3", "q5_0/rot:q4_0"})
    for (const auto& [plain, gpu_compat, guard] :
         {std::tuple{Dtype::bf16, false, true}, std::tuple{Dtype::f32, true, true},
          std::tuple{Dtype::bf16, true, false}}) {
      KvkHeader header;
      header.identity.ns = "a+b \"quoted\" \xC3\xA9";
      header.tokens = {1, 2, 3, -7};
      header.metadata = R"({"messages":[]})";
      KvkGroup group;
      group.geometry = {.layers = 2,
                        .kv_heads = 3,
                        .head_dim_k = 64,
                        .head_dim_v = 64,
                        .codec = parse_codec(spec, plain),
                        .page_tokens = 2};
      set_encoder(group.geometry.codec.k, gpu_compat, guard);
      set_encoder(group.geometry.codec.v, gpu_compat, guard);
      group.geometry.window = 8;
      group.owners = {0, 2};
      const uint64_t bytes = page_form(group.geometry).page_bytes;
      group.pages = {{0, {.offset = 0, .bytes = bytes, .hash = std::string(16, 'a')}},
                     {1, {.offset = align_up(bytes, 4096), .bytes = bytes, .hash = std::string(16, 'b')}}};
      header.groups = {group};
      const KvkHeader back = parse_header(header_text(header), "x");
      EXPECT_EQ(back.identity, header.identity);
      EXPECT_EQ(back.tokens, header.tokens);
      EXPECT_EQ(back.groups[0].owners, group.owners);
      EXPECT_EQ(describe(back.groups[0].geometry), describe(group.geometry));
      EXPECT_TRUE(back.groups[0].geometry.codec == group.geometry.codec) << spec;
    }
}

// Who computed a file's keys and values stands in it twice, and with a name: what says one without the other
// might be taken for a prefix of our own.
TEST(KvkHeader, AnotherEnginesFilesSaySo) {
  KvkHeader header;
  header.identity = identity_of(testing::test_identity(), {.engine = "mlx-lm"});
  header.origin = {.engine = "mlx-lm", .source = "a.safetensors"};
  header.tokens = {1, 2, 3};
  header.name = "x";
  EXPECT_EQ(parse_header(header_text(header), "x").origin, header.origin);
  EXPECT_NE(header.identity.fingerprint(), testing::test_identity().fingerprint());
  const auto refused = [&](ErrorCode code, const auto& change) {
    KvkHeader other = header;
    change(other);
    try {
      (void)parse_header(header_text(other), "x");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(ErrorCode::corrupt_file, [](KvkHeader& h) { h.origin = {}; })
                .find("it was computed by '', and its numerics_id says 'mlx-lm'"),
            std::string::npos);
  EXPECT_NE(refused(ErrorCode::corrupt_file, [](KvkHeader& h) { h.identity.numerics_id = "n"; })
                .find("computed by 'mlx-lm', and its numerics_id says ''"),
            std::string::npos);
  EXPECT_NE(refused(ErrorCode::corrupt_file, [](KvkHeader& h) { h.name.clear(); }).find("it has none"),
            std::string::npos);
  EXPECT_NE(refused(ErrorCode::unsupported,
                    [](KvkHeader& h) {
                      h.origin.engine = "other";
                      h.identity.numerics_id = "n+other";
                    })
                .find("computed by 'other', which this build does not know"),
            std::string::npos);
}

}  // namespace
}  // namespace kvasir::kv
