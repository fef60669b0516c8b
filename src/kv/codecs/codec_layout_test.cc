// The codecs' bytes against the vectors of kv-cache.md 3 and the numpy reference
// (tools/oracles/kv_codec_goldens.py), and page layouts: canonical bytes in and out, copies, conversion.
#include "kv/codecs/codec_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace kvasir::kv {
namespace {

using Kind = PlaneCodec::Kind;

PlaneCodec plain(Dtype type) {
  return {Kind::plain, type};
}
PlaneCodec affine(int bits, int group, Dtype scale = Dtype::f16, Dtype type = Dtype::bf16) {
  return {Kind::affine, type, bits, group, scale};
}
PlaneCodec turbo_key(int bits) {
  return {Kind::turbo_key, Dtype::bf16, bits, 32};
}
PlaneCodec rotated(int bits) {
  return {Kind::rotated, Dtype::bf16, bits, 32};
}

PlaneCodec q_0(int bits, bool rotated = false) {
  return {rotated ? Kind::rotated_q_0 : Kind::q_0, Dtype::bf16, bits, 32};
}
PlaneCodec q8_0(bool rotated = false) {
  return q_0(8, rotated);
}

std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> out;
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) out.push_back(level);
  return out;
}

std::vector<std::byte> bytes_of(const void* data, size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  return {first, first + size};
}

// Canonical bytes of one vector, through a page of one head and one layer; the other plane is plain.
std::vector<std::byte> encoded(const PlaneCodec& codec, PlaneRole role, std::span<const float> x,
                               IsaLevel isa) {
  GroupGeometry g;
  g.layers = g.kv_heads = 1;
  g.head_dim_k = g.head_dim_v = static_cast<int>(x.size());
  g.codec =
      role == PlaneRole::key ? CodecPair{codec, plain(Dtype::f32)} : CodecPair{plain(Dtype::f32), codec};
  g.page_tokens = 16;
  const CodecLayout layout(g, isa);
  std::vector<std::byte> page(layout.page_bytes(), std::byte{0xFF});
  layout.append(page.data(), 0, 0, 5, x.data(), x.data());
  std::vector<std::byte> token(layout.token_bytes());
  layout.export_tokens(page.data(), 5, 1, token);
  const size_t size = (role == PlaneRole::key ? layout.key() : layout.value()).row_bytes();
  return role == PlaneRole::key ? bytes_of(token.data(), size)
                                : bytes_of(token.data() + token.size() - size, size);
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) out += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return out;
}

std::vector<float> x64() {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) x.push_back(static_cast<float>((37 * i) % 64 - 32) / 16.0f);
  return x;
}

// P5, P7: kv-cache.md 3.2 and 3.3: codes, then the scales and offsets of the groups, little-endian.
TEST(KvCodecs, VectorX64) {
  struct Expected {
    PlaneCodec codec;
    PlaneRole role;
    const char* bytes;
  };
  const auto af = [](int bits, int group) { return affine(bits, group, Dtype::bf16); };
  const Expected table[] = {
      {af(2, 32), PlaneRole::key,
       "d82d76cbed768bdd72bbdc62b7dc2db7"
       "803f783f"
       "00c0f8bf"},
      {af(3, 32), PlaneRole::value,
       "68ac139577a6face58272aef4cf59db13e34de89ca3b637d"
       "003ff83e"
       "00c0f8bf"},
      {af(4, 32), PlaneRole::key,
       "90c2e5183a6c8fb2d4f6295c7ea0c3f6184b6d9fb2e4073a5c8fa1d3f6294b7e"
       "803e783e"
       "00c0f8bf"},
      {af(5, 32), PlaneRole::value,
       "4016acf813d464e6e1b048b72fc955dc056af0f250d4a3d997e426eec02c58f527ead1ecc761d16e"
       "003ef83d"
       "00c0f8bf"},
      {af(6, 32), PlaneRole::key,
       "40a9bc54ee0d68235f7c68ac50adfd64e24e78279c4c6ced20a13a75f68f472be11c602a71b57f43dad0982f1a6c746f"
       "803d783d"
       "00c0f8bf"},
      {af(8, 64), PlaneRole::value,
       "009629bf51e87a0ca235cb5df48618af41d76aff9225bb4de476089e31c759f08214ab3dd366fc8e20b749df72049a2dc355e"
       "c7e10a739cf62f88a1cb345"
       "db6e"
       "7c3c"
       "00c0"},
      {turbo_key(8), PlaneRole::key,
       "8116a93ed267fa8d22b54bde7306992ec157ea7f12a53ace63f6891eb147da6f02922cbb55e57f0e9e38c862f1811bab45d46"
       "efe8d27b751e17b0a9a34c4"
       "5eed"
       "f023af23"
       "00c000c0"},
      {turbo_key(5), PlaneRole::key,
       "4096abf813f464e6e1a848b72fcb55fc8569f0ea50d4a3d997e426eec02c58f527ead1ecc761d16e"
       "1130df2f"
       "00cc00cc"},
      {turbo_key(4), PlaneRole::key,
       "90c3e5183a6c8fb2d4f7395b7ea1c3e6184a6d9fb2e507395c8ea1d4f6284b7d"
       "33341134"
       "00c800c8"},
      {turbo_key(2), PlaneRole::key,
       "d86db6dbed769bed66bbdd62b7d96eb7"
       "403d153d"
       "00c000c0"},
      {rotated(3), PlaneRole::value,
       "aa93519f257613247e65b62254448f49b72b940acf9bd644"
       "d03c6c3c"},
      {rotated(4), PlaneRole::value,
       "b53b73486e5c857a5751857d8a63a7214854d986426ae64558a4d2d766752a43"
       "d03c6c3c"},
      {rotated(2), PlaneRole::value,
       "3964776945794a09469e601d96dc5542"
       "d03c6c3c"},
      {rotated(5), PlaneRole::key,
       "cb5e831c4cbce1c5607d6f8dc5e076341ae62a2931a125758b0551d6f84251a94af6dbadad570d4a"
       "d03c6c3c"},
      {rotated(8), PlaneRole::value,
       "6f9aa158617a8367c075a470728497817e6f476d7284b57b94865a757b974b508866616f8ab075865561947476ba6f62866b6"
       "a984eb47fb476786d7e9556"
       "6067"
       "d03c6c3c"},
  };
  for (IsaLevel isa : levels())
    for (const Expected& e : table)
      EXPECT_EQ(hex(encoded(e.codec, e.role, x64(), isa)), e.bytes) << e.codec.bits << " " << name(isa);
}

// P5, P7.
TEST(KvCodecs, GoldensOfTheReference) {
  std::ifstream file(std::string(KVASIR_TEST_DATA) + "/kv_codecs/goldens.bin", std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  ASSERT_GT(data.size(), 8u);
  const char* at = data.data();
  const auto read = [&at](auto& value) {
    std::memcpy(&value, at, sizeof(value));
    at += sizeof(value);
  };
  uint32_t vectors, channels;
  read(vectors);
  read(channels);
  std::vector<float> x(static_cast<size_t>(vectors) * channels);
  std::memcpy(x.data(), at, x.size() * 4);
  at += x.size() * 4;
  const Dtype types[] = {Dtype::f32, Dtype::f16, Dtype::bf16};
  int records = 0;
  while (at < data.data() + data.size()) {
    uint8_t kind, bits, group, type, scale, options;
    uint16_t dim;
    uint32_t size;
    read(kind), read(bits), read(group), read(type), read(scale), read(options), read(dim), read(size);
    PlaneCodec codec{static_cast<Kind>(kind), types[type], bits, group, types[scale]};
    codec.gpu_compat = (options & 1) != 0;
    codec.guard = (options & 2) == 0;
    const bool huge = (options & 4) != 0;
    for (uint32_t v = 0; v < vectors; ++v, at += size) {
      std::vector<float> row(x.begin() + v * channels, x.begin() + v * channels + dim);
      for (float& value : row) value *= huge ? 128.0f : 1.0f;
      for (IsaLevel isa : levels())
        for (PlaneRole role : {PlaneRole::key, PlaneRole::value}) {
          if (codec.kind == Kind::turbo_key && role == PlaneRole::value) continue;
          ASSERT_EQ(hex(encoded(codec, role, row, isa)), hex(bytes_of(at, size)))
              << "kind " << int{kind} << " bits " << int{bits} << " group " << int{group} << " dim " << dim
              << " options " << int{options} << " vector " << v << " " << name(isa);
        }
    }
    ++records;
  }
  EXPECT_EQ(records, 36 + 8 + 20 + 12 + 2 * (8 + 4) + 3 * 2 + 4 + 4 * 4);
}

// What a group of q8_0 is, by hand: the largest magnitude, 254, becomes 127 steps of 2.
TEST(KvCodecs, Q8_0ByHand) {
  std::vector<float> x(32, 0.0f);
  x[0] = -254;
  x[1] = 3;  // 1.5 steps: to the even 2
  x[2] = 5;  // 2.5 steps: to the even 2
  x[31] = 253;
  for (IsaLevel isa : levels()) {
    const auto bytes = encoded({Kind::q_0, Dtype::f32, 8, 32}, PlaneRole::key, x, isa);
    ASSERT_EQ(bytes.size(), 34u);
    EXPECT_EQ(hex(std::span(bytes).first(3)), "810202");
    EXPECT_EQ(hex(std::span(bytes).subspan(31)), "7e0040");  // 126.5 to 126; 2 as f16
  }
}

// Groups that 4 bits hold without a rest come back as they were: whole numbers -8 to 7 times a scale of f16.
TEST(KvCodecs, Q4_0OfWholeNumbersIsThem) {
  std::vector<float> x(32, 0.0f);
  x[0] = -16;  // the largest magnitude: 8 steps of 2
  x[1] = 14;
  x[2] = 2;
  x[3] = -2;
  for (IsaLevel isa : levels()) {
    auto bytes = encoded({Kind::q_0, Dtype::f32, 4, 32}, PlaneRole::key, x, isa);
    ASSERT_EQ(bytes.size(), 18u);
    EXPECT_EQ(hex(std::span(bytes).first(3)), "f07988");     // codes plus 8: 0 15, 9 7, 8 8
    EXPECT_EQ(hex(std::span(bytes).subspan(15)), "880040");  // 2 as f16
    for (float& v : x) v = -v;                               // 16 becomes -8 steps of -2
    bytes = encoded({Kind::q_0, Dtype::f32, 4, 32}, PlaneRole::key, x, isa);
    EXPECT_EQ(hex(std::span(bytes).first(3)), "f07988");
    EXPECT_EQ(hex(std::span(bytes).subspan(15)), "8800c0");  // -2
    for (float& v : x) v = -v;
    bytes = encoded({Kind::q_0, Dtype::f32, 4, 32}, PlaneRole::key, std::vector<float>(32, 0.0f), isa);
    EXPECT_EQ(hex(std::span(bytes).subspan(14)), "88880000");  // zeros are zeros
  }
}

// Of Gaussian vectors the searched scale leaves less than the largest magnitude as a scale does, and, from 3
// bits on, than the Lloyd-Max codebook of as many bits (mean squared errors of unit variance: 0.0345, 0.0095,
// 0.0025).
TEST(KvCodecs, SearchedScalesLoseLessThanTheCodebooks) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const double codebook[] = {0, 0, 0, 0.0345, 0.0095, 0.0025};
  for (int bits : {3, 4, 5}) {
    const double n = 1 << (bits - 1);
    double error = 0, largest_as_scale = 0;
    int count = 0;
    for (int vector = 0; vector < 200; ++vector) {
      std::vector<float> x(64);
      for (float& v : x) v = normal(random);
      const auto bytes = encoded({Kind::q_0, Dtype::f32, bits, 32}, PlaneRole::key, x, best_isa_level());
      for (size_t g = 0; g < 2; ++g) {
        uint16_t scale;
        std::memcpy(&scale, bytes.data() + static_cast<size_t>(64 * bits / 8) + 2 * g, 2);
        double top = 0;
        for (size_t i = 0; i < 32; ++i)
          if (std::abs(x[32 * g + i]) > std::abs(top)) top = static_cast<double>(x[32 * g + i]);
        for (size_t i = 0; i < 32; ++i, ++count) {
          const double v = static_cast<double>(x[32 * g + i]);
          unsigned code = 0;
          for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
            const size_t at = (32 * g + i) * static_cast<size_t>(bits) + b;
            code |= ((std::to_integer<unsigned>(bytes[at / 8]) >> (at % 8)) & 1u) << b;
          }
          const double got = static_cast<double>(f16_to_f32(scale)) * (code - n);
          error += (got - v) * (got - v);
          const double plain = std::clamp(std::rint(v * -n / top), -n, n - 1) * top / -n;
          largest_as_scale += (plain - v) * (plain - v);
        }
      }
    }
    EXPECT_LT(error, 0.93 * largest_as_scale) << bits;
    EXPECT_LT(error / count, codebook[bits]) << bits;
  }
}

std::vector<CodecPair> pairs() {
  return {{plain(Dtype::bf16), plain(Dtype::bf16)},
          {plain(Dtype::f32), plain(Dtype::f16)},
          {affine(4, 32), affine(8, 64)},
          {affine(3, 64), affine(5, 32, Dtype::f32)},
          {turbo_key(8), rotated(3)},
          {turbo_key(5), rotated(2)},
          {rotated(5), affine(6, 64)},
          {affine(2, 32), plain(Dtype::bf16)},
          {rotated(8), rotated(4)},
          {q8_0(), q8_0(true)},
          {q8_0(true), affine(4, 32)},
          {q_0(3), q_0(4, true)},
          {q_0(5, true), q_0(6)}};
}

GroupGeometry geometry_of(const CodecPair& codec, int page_tokens) {
  GroupGeometry g;
  g.layers = 2;
  g.kv_heads = 3;
  g.head_dim_k = 64;
  g.head_dim_v = 128;
  g.codec = codec;
  g.page_tokens = page_tokens;
  return g;
}

void fill(const CodecLayout& layout, std::byte* page, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const GroupGeometry& g = layout.geometry();
  std::vector<float> k(static_cast<size_t>(g.head_dim_k)), v(static_cast<size_t>(g.head_dim_v));
  for (int slot = 0; slot < g.page_tokens; ++slot)
    for (int layer = 0; layer < g.layers; ++layer)
      for (int head = 0; head < g.kv_heads; ++head) {
        for (float& x : k) x = normal(random);
        for (float& x : v) x = normal(random);
        layout.append(page, layer, head, slot, k.data(), v.data());
      }
}

std::vector<std::byte> exported(const CodecLayout& layout, const std::byte* page, int first, int count) {
  std::vector<std::byte> out(static_cast<size_t>(count) * layout.token_bytes());
  layout.export_tokens(page, first, count, out);
  return out;
}

// P6.
TEST(CodecLayout, CanonicalBytesGoInAndOut) {
  for (const CodecPair& codec : pairs()) {
    for (int page_tokens : {4, 16, 64}) {
      const CodecLayout layout(geometry_of(codec, page_tokens), best_isa_level());
      std::vector<std::byte> page(layout.page_bytes(), std::byte{0xFF}), other(page);
      fill(layout, page.data(), 1);
      const auto whole = exported(layout, page.data(), 0, page_tokens);
      layout.import_tokens(other.data(), 0, page_tokens, whole);
      EXPECT_EQ(exported(layout, other.data(), 0, page_tokens), whole);
      // Slots are independent: tokens one by one, and copies of part of a page.
      std::vector<std::byte> third(layout.page_bytes(), std::byte{0xFF});
      for (int slot = page_tokens - 1; slot > 0; --slot)
        layout.import_tokens(third.data(), slot, 1, exported(layout, page.data(), slot, 1));
      layout.copy_tokens(page.data(), third.data(), 0, 1);
      EXPECT_EQ(exported(layout, third.data(), 0, page_tokens), whole);
      std::vector<std::byte> fourth(layout.page_bytes(), std::byte{0xAA});
      fill(layout, fourth.data(), 2);
      const auto before = exported(layout, fourth.data(), 0, page_tokens);
      layout.copy_tokens(page.data(), fourth.data(), 1, page_tokens - 2);
      auto after = before;
      const size_t t = layout.token_bytes();
      std::memcpy(after.data() + t, whole.data() + t, whole.size() - 2 * t);
      EXPECT_EQ(exported(layout, fourth.data(), 0, page_tokens), after);
    }
  }
}

// P12: a token that is converted later has the bytes of one that was encoded on append.
TEST(CodecLayout, ConversionEqualsEncodingOnAppend) {
  for (const CodecPair& codec : pairs()) {
    const GroupGeometry g = geometry_of(codec, 32);
    GroupGeometry stage = g;
    stage.codec = {plain(codec.k.plain), plain(codec.v.plain)};
    const CodecLayout layout(g, best_isa_level()), source(stage, best_isa_level());
    std::vector<std::byte> direct(layout.page_bytes()), converted(layout.page_bytes(), std::byte{0xFF}),
        raw(source.page_bytes());
    fill(layout, direct.data(), 3);
    fill(source, raw.data(), 3);
    layout.convert_tokens(source, raw.data(), converted.data(), 0, 20);
    layout.convert_tokens(source, raw.data(), converted.data(), 20, 12);
    EXPECT_EQ(exported(layout, converted.data(), 0, 32), exported(layout, direct.data(), 0, 32));
  }
}

// kv-cache.md 2.1 and 17: planes of a token in order, bytes per token.
TEST(CodecLayout, TokenBytes) {
  const auto bytes = [](const CodecPair& codec, int dim) {
    GroupGeometry g = geometry_of(codec, 64);
    g.layers = g.kv_heads = 1;
    g.head_dim_k = g.head_dim_v = dim;
    return CodecLayout(g, best_isa_level()).token_bytes();
  };
  EXPECT_EQ(bytes({plain(Dtype::bf16), plain(Dtype::bf16)}, 128), 512u);
  EXPECT_EQ(bytes({turbo_key(8), rotated(3)}, 128), 200u);
  EXPECT_EQ(bytes({affine(4, 64), affine(4, 64)}, 64), 72u);
  EXPECT_EQ(bytes({q8_0(), q8_0()}, 96), 2u * (96 + 6));  // as llama.cpp's blocks of 34 bytes
  EXPECT_EQ(bytes({q8_0(true), q8_0(true)}, 64), 136u);
  EXPECT_EQ(bytes({q_0(5), q_0(4, true)}, 64), 44u + 36u);  // as llama.cpp's blocks of 22 and 18 bytes
  EXPECT_EQ(bytes({rotated(4), rotated(4)}, 64), 72u);
  // A page takes no more than its tokens' bytes where nothing is odd.
  GroupGeometry g = geometry_of({affine(8, 64), rotated(4)}, 64);
  const CodecLayout layout(g, best_isa_level());
  EXPECT_EQ(layout.page_bytes(), 64 * layout.token_bytes());
}

TEST(CodecLayout, RefusesWhatACodecCannotTake) {
  const auto message = [](const CodecPair& codec, int dim) -> std::string {
    GroupGeometry g = geometry_of(codec, 64);
    g.head_dim_k = g.head_dim_v = dim;
    try {
      PageLayout::make(g, IsaLevel::generic);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return {};
  };
  const PlaneCodec bf16 = plain(Dtype::bf16);
  EXPECT_THAT(message({affine(7, 64), bf16}, 64),
              testing::HasSubstr("7 bits are not supported (2, 3, 4, 5, 6, 8)"));
  EXPECT_THAT(message({bf16, affine(4, 16)}, 64),
              testing::HasSubstr("group 16 is not supported (32, 64, 128)"));
  EXPECT_THAT(message({affine(4, 64), bf16}, 96), testing::HasSubstr("does not divide head_dim 96"));
  EXPECT_THAT(message({bf16, rotated(4)}, 96),
              testing::HasSubstr("head_dim 96 must be one of 64, 128, 256, 512"));
  EXPECT_THAT(message({q8_0(true), bf16}, 96),
              testing::HasSubstr("head_dim 96 must be one of 64, 128, 256, 512"));
  EXPECT_THAT(message({bf16, q8_0()}, 48), testing::HasSubstr("group 32 does not divide head_dim 48"));
  EXPECT_THAT(message({turbo_key(3), bf16}, 64), testing::HasSubstr("3 bits are not supported (2, 4, 5, 8)"));
  EXPECT_THAT(message({bf16, turbo_key(8)}, 64), testing::HasSubstr("encodes keys, not values"));
  EXPECT_THAT(message({plain(Dtype::i8), bf16}, 64), testing::HasSubstr("is not f32, f16 or bf16"));
  EXPECT_EQ(message({bf16, bf16}, 7), "");
}

}  // namespace
}  // namespace kvasir::kv
