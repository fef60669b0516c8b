// Sequences over the page layouts that models run with, at every instruction-set level of this machine:
// canonical bytes agree with the plane table, and a stored sequence is the same whatever level and page size
// wrote or reads it.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "base/test_folder.h"
#include "kv/kvk_file.h"
#include "kv/scheme.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;

CacheShape shape_of(std::string_view spec, int page, int32_t start = 0) {
  std::vector<LayerGeometry> owners;
  for (int i = 0; i < 3; ++i) {
    owners.push_back({.layer = i, .kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64});
    if (i == 1) owners.back().window = 40;
  }
  return group_layers(owners, std::vector<CodecPair>(3, parse_codec(spec, Dtype::bf16)), page, start);
}

// Appends tokens whose canonical bytes are random.
void append_random(KvCache& cache, Sequence& sequence, int32_t count, std::mt19937& random) {
  Step step;
  cache.reserve({&sequence}, {count}, step);
  for (size_t g = 0; g < cache.groups(); ++g) {
    const RowPages& pages = step.views()[g].rows[0];
    const int32_t page = pages.layout->geometry().page_tokens;
    std::vector<std::byte> token(pages.layout->token_bytes());
    for (int32_t p = sequence.offset(); p < sequence.offset() + count; ++p) {
      for (std::byte& byte : token) byte = static_cast<std::byte>(random());
      pages.layout->import_tokens(pages.pages[p / page], p % page, 1, token);
    }
  }
  step.commit();
}

std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> list;
  for (const IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) list.push_back(level);
  return list;
}

const char* const kSpecs[] = {"f32",
                              "f16",
                              "bf16",
                              "affine:2:32",
                              "affine:3:64",
                              "affine:4:64",
                              "affine:5:32",
                              "affine:6",
                              "affine:8:64",
                              "affine:8:64:bf16",
                              "turbo:8,3",
                              "turbo:2,8",
                              "turbo:5,2",
                              "rot:2",
                              "rot:3",
                              "rot:4",
                              "rot:5",
                              "rot:8",
                              "q8_0",
                              "rot:q8_0",
                              "q5_0",
                              "rot:q4_0",
                              "q3_0/rot:q6_0",
                              "rot:q8_0/affine:4:32",
                              "f16/rot:4",
                              "affine:8/rot:4",
                              "turbokey:4/affine:8:64"};

TEST(RealLayouts, TokenBytesFollowThePlaneTable) {
  for (const char* spec : kSpecs)
    for (const IsaLevel isa : levels()) {
      const CacheShape shape = shape_of(spec, 64);
      const auto layout = PageLayout::make(shape.groups[0].geometry, isa);
      EXPECT_EQ(layout->token_bytes(), token_bytes(shape.groups[0].geometry)) << spec;
    }
}

// P6, P32.
TEST(RealLayouts, StoredSequencesAreTheSameAtEveryLevelAndPageSize) {
  const TestFolder temporary("layouts");
  const fs::path& folder = temporary.path();
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const CacheShape shape = shape_of(spec, 16);
    const Workload workload{.context = 200, .batch = 3, .chunk = 64};
    KvCache cache(shape, layouts_for(IsaLevel::generic),
                  plan_capacity(shape, layouts_for(IsaLevel::generic), workload), nullptr, true);
    std::mt19937 random(7);
    Sequence sequence = cache.create();
    for (const int32_t count : {31, 1, 50, 17, 1, 6}) append_random(cache, sequence, count, random);
    Sequence fork = sequence.fork();
    append_random(cache, fork, 3, random);  // copy-on-write of the partial page
    ASSERT_EQ(fork.bytes(0, 0, 106), sequence.bytes(0, 0, 106));
    KvkHeader header;
    header.tokens.assign(106, 1);
    write_kvk(folder / "a.kvk", header, sequence);
    const KvkFile file = KvkFile::open(folder / "a.kvk", true);
    for (const IsaLevel isa : levels())
      for (const int page : {16, 64}) {
        const CacheShape other_shape = shape_of(spec, page);
        KvCache other(other_shape, layouts_for(isa), plan_capacity(other_shape, layouts_for(isa), workload),
                      nullptr, true);
        const Sequence restored = restore_sequence(other, file);
        ASSERT_EQ(restored.bytes(0, 0, 106), sequence.bytes(0, 0, 106));
        ASSERT_EQ(restored.bytes(1, 66, 40), sequence.bytes(1, 66, 40));
      }
  }
}

// P12: a row that converts later holds the bytes of one that was encoded from the first token on.
TEST(RealLayouts, ConvertedRowsEqualEncodedRows) {
  for (const char* spec :
       {"affine:4:64", "affine:8:64", "turbo:8,3", "rot:4", "q8_0", "rot:q8_0", "rot:q5_0", "q4_0"})
    for (const IsaLevel isa : levels()) {
      SCOPED_TRACE(spec);
      const Workload workload{.context = 200, .batch = 1, .chunk = 64};
      const CacheShape late_shape = shape_of(spec, 16, 50);
      KvCache late(late_shape, layouts_for(isa), plan_capacity(late_shape, layouts_for(isa), workload),
                   nullptr, true);
      Sequence row = late.create();
      std::mt19937 random(3);
      Step step;
      late.reserve({&row}, {50}, step);
      for (size_t g = 0; g < late.groups(); ++g) {
        const RowPages& pages = step.views()[g].rows[0];
        std::vector<std::byte> token(pages.layout->token_bytes());
        for (int32_t p = 0; p < 50; ++p) {
          std::normal_distribution<float> normal;
          for (size_t i = 0; i < token.size() / 2; ++i) {
            const uint16_t value = f32_to_bf16(normal(random));
            std::memcpy(token.data() + 2 * i, &value, 2);
          }
          pages.layout->import_tokens(pages.pages[p / 16], p % 16, 1, token);
        }
      }
      step.commit();
      // Encoding is a function of one token, so converting the tokens one by one gives the same bytes.
      std::vector<std::vector<std::byte>> expected;
      for (size_t g = 0; g < late.groups(); ++g) {
        const PageLayout &plain = late.layout(g, false), &encoded = late.layout(g, true);
        std::vector<std::byte> from(plain.page_bytes()), to(encoded.page_bytes());
        auto& bytes = expected.emplace_back();
        for (int32_t p = row.first_stored(g); p < 50; ++p) {
          const auto token = row.bytes(g, p, 1);
          plain.import_tokens(from.data(), 3, 1, token);
          encoded.convert_tokens(plain, from.data(), to.data(), 3, 1);
          std::vector<std::byte> out(encoded.token_bytes());
          encoded.export_tokens(to.data(), 3, 1, out);
          bytes.insert(bytes.end(), out.begin(), out.end());
        }
      }
      late.reserve({&row}, {1}, step);
      step.rollback();
      ASSERT_TRUE(row.encoded());
      for (size_t g = 0; g < late.groups(); ++g)
        EXPECT_EQ(row.bytes(g, row.first_stored(g), 50 - row.first_stored(g)), expected[g]);
    }
}

}  // namespace
}  // namespace kvasir::kv
