// What every codec promises of any vector (kv-cache.md 19): decoded here from canonical bytes, by the
// formulas of kv-cache.md 3 in float64, so that nothing of the kernels' own decoding is trusted.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "kv/codecs/codec_layout.h"
#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv {
namespace {

#include "kv/codecs/rotation-inl.h"

using Kind = PlaneCodec::Kind;

// Canonical bytes of one vector, as keys: codes, scales, offsets.
std::vector<std::byte> encoded(const PlaneCodec& codec, std::span<const float> x) {
  GroupGeometry g;
  g.layers = g.kv_heads = 1;
  g.head_dim_k = g.head_dim_v = static_cast<int>(x.size());
  g.codec = {codec, {Kind::plain, Dtype::f32}};
  g.page_tokens = 16;
  const CodecLayout layout(g, best_isa_level());
  std::vector<std::byte> page(layout.page_bytes(), std::byte{0xFF}), token(layout.token_bytes());
  layout.append(page.data(), 0, 0, 5, x.data(), x.data());
  layout.export_tokens(page.data(), 5, 1, token);
  token.resize(layout.key().row_bytes());
  return token;
}

double stored_at(const std::byte* at, Dtype type) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, type == Dtype::f32 ? 4 : 2);
  if (type == Dtype::f16) return static_cast<double>(f16_to_f32(static_cast<uint16_t>(bits)));
  return static_cast<double>(std::bit_cast<float>(type == Dtype::f32 ? bits : bits << 16));
}

struct Decoded {
  std::vector<double> values;           // un-rotated
  std::vector<double> scales, offsets;  // as stored, of each group
};

Decoded decoded(const PlaneCodec& codec, size_t dim, const std::vector<std::byte>& bytes) {
  Decoded out;
  out.values.resize(dim);
  if (codec.kind == Kind::plain) {
    const size_t size = codec.plain == Dtype::f32 ? 4 : 2;
    for (size_t i = 0; i < dim; ++i) out.values[i] = stored_at(bytes.data() + i * size, codec.plain);
    return out;
  }
  const auto bits = static_cast<size_t>(codec.bits), group = static_cast<size_t>(codec.group);
  const Dtype type = codec.kind == Kind::affine ? codec.scale_dtype : Dtype::f16;
  const size_t size = type == Dtype::f32 ? 4 : 2, groups = dim / group;
  const std::byte* scales = bytes.data() + dim * bits / 8;
  for (size_t g = 0; g < groups; ++g) {
    out.scales.push_back(stored_at(scales + g * size, type));
    if (codec.kind == Kind::affine || codec.kind == Kind::turbo_key)
      out.offsets.push_back(stored_at(scales + (groups + g) * size, type));
  }
  for (size_t i = 0; i < dim; ++i) {
    unsigned code = 0;
    for (size_t b = 0; b < bits; ++b)
      code |= ((std::to_integer<unsigned>(bytes[(i * bits + b) / 8]) >> ((i * bits + b) % 8)) & 1u) << b;
    const double s = out.scales[i / group];
    const auto whole = static_cast<double>(bits == 8 ? static_cast<int>(static_cast<int8_t>(code)) : 0);
    const double half = static_cast<double>(1u << (bits - 1));
    switch (codec.kind) {
      case Kind::affine:
        out.values[i] = s * code + out.offsets[i / group];
        break;
      case Kind::turbo_key:
        out.values[i] = ((bits == 8 ? whole : code) + out.offsets[i / group]) * s;
        break;
      case Kind::rotated:
        out.values[i] = static_cast<double>(std::bit_cast<float>(codebook(codec.bits).centroids[code])) * s;
        break;
      default:
        out.values[i] = (bits == 8 ? whole : code - half) * s;
    }
  }
  if (codec.kind == Kind::rotated || codec.kind == Kind::rotated_q_0) {
    std::vector<double>& y = out.values;
    for (size_t h = 1; h < dim; h *= 2)
      for (size_t i = 0; i < dim; ++i)
        if ((i & h) == 0) {
          const double a = y[i], b = y[i + h];
          y[i] = a + b;
          y[i + h] = a - b;
        }
    const uint64_t* signs = rotation_signs(static_cast<int>(dim));
    for (size_t i = 0; i < dim; ++i)
      y[i] *= ((signs[i / 64] >> (i % 64)) & 1u ? -1.0 : 1.0) / std::sqrt(static_cast<double>(dim));
  }
  return out;
}

std::string label(const PlaneCodec& codec) {
  return fmt::format("kind {}, {} bits, groups of {}, scales {}", static_cast<int>(codec.kind), codec.bits,
                     codec.group, static_cast<int>(codec.scale_dtype));
}

PlaneCodec affine(int bits, int group, Dtype scale) {
  return {Kind::affine, Dtype::f32, bits, group, scale};
}

// P7: R is orthogonal, and is D^-1/2 times the Sylvester-Hadamard matrix times the signs.
TEST(CodecProperties, TheRotationIsOrthogonal) {
  for (const int dim : {64, 128, 256, 512}) {
    const uint64_t* signs = rotation_signs(dim);
    const auto n = static_cast<size_t>(dim);
    std::vector<std::vector<float>> columns;
    for (size_t j = 0; j < n; ++j) {
      std::vector<float> unit(n, 0.0f), column(n);
      unit[j] = 1;
      rotate(unit.data(), signs, column.data(), dim);
      const double sign = (signs[j / 64] >> (j % 64)) & 1u ? -1 : 1;
      for (size_t i = 0; i < n; ++i)
        ASSERT_NEAR(column[i], sign * (std::popcount(i & j) % 2 != 0 ? -1 : 1) / std::sqrt(dim), 1e-7);
      std::vector<float> back = column;
      unrotate(back.data(), signs, dim);
      for (size_t i = 0; i < n; ++i) ASSERT_NEAR(back[i], unit[i], 1e-6) << dim;
      columns.push_back(std::move(column));
    }
    for (size_t a = 0; a < n; ++a)
      for (size_t b = a; b < n; ++b) {
        double rows = 0, product = 0;
        for (size_t i = 0; i < n; ++i) {
          product += static_cast<double>(columns[a][i]) * static_cast<double>(columns[b][i]);
          rows += static_cast<double>(columns[i][a]) * static_cast<double>(columns[i][b]);
        }
        ASSERT_NEAR(product, a == b, 1e-6) << dim;  // R^T R
        ASSERT_NEAR(rows, a == b, 1e-6) << dim;     // R R^T
      }
  }
}

// P7: three bits leave 0.030 to 0.040 of the variance of Gaussian vectors.
TEST(CodecProperties, ThreeBitsOfGaussianVectors) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const size_t dim : {64u, 128u, 256u, 512u}) {
    const PlaneCodec codec{Kind::rotated, Dtype::f32, 3, 32};
    double error = 0, norm = 0;
    for (int vector = 0; vector < 200; ++vector) {
      std::vector<float> x(dim);
      for (float& v : x) v = normal(random);
      const Decoded got = decoded(codec, dim, encoded(codec, x));
      for (size_t i = 0; i < dim; ++i) {
        const auto v = static_cast<double>(x[i]);
        error += (got.values[i] - v) * (got.values[i] - v);
        norm += v * v;
      }
    }
    EXPECT_GT(error / norm, 0.030) << dim;
    EXPECT_LT(error / norm, 0.040) << dim;
  }
}

// Vectors of many kinds; `most`: the largest magnitude of the huge ones.
std::vector<std::vector<float>> vectors(size_t dim, float most) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> out;
  const auto add = [&](const auto& value) {
    std::vector<float>& x = out.emplace_back(dim);
    for (size_t i = 0; i < dim; ++i) x[i] = value(i);
  };
  for (int i = 0; i < 20; ++i) add([&](size_t) { return normal(random); });
  for (int i = 0; i < 10; ++i) add([&](size_t) { return 30.0f + normal(random); });     // far from zero
  for (int i = 0; i < 10; ++i) add([&](size_t) { return -std::abs(normal(random)); });  // one sign
  for (int i = 0; i < 5; ++i)  // a few large channels
    add([&](size_t c) { return normal(random) * (c % 29 == 3 ? 50.0f : 1.0f); });
  for (const float constant : {0.0f, -0.0f, 1.0f, -3.5f, 1e-3f, 1000.0f, most, -most})
    add([&](size_t) { return constant; });
  add([&](size_t c) { return c % 2 == 0 ? most : -most; });
  add([&](size_t c) { return c == 7 ? most : 0.0f; });
  add([&](size_t) { return normal(random) * 1e-6f; });
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  add([&](size_t c) { return static_cast<float>(c) * kTiny; });
  add([&](size_t) { return kTiny; });
  add([&](size_t c) { return c % 3 == 0 ? kTiny : -std::numeric_limits<float>::min(); });
  return out;
}

// P5: half a step between the offset and its far end, a step beyond it, and what rounding the two to their
// type may move.
TEST(CodecProperties, AffineErrorsAreBounded) {
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128})
      for (const Dtype type : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
        const PlaneCodec codec = affine(bits, group, type);
        const double unit = type == Dtype::f32 ? 0x1p-24 : type == Dtype::f16 ? 0x1p-11 : 0x1p-8;
        const double least = type == Dtype::f16 ? 0x1p-25 : 0;  // half of its smallest number
        const double top = (1 << bits) - 1;
        for (const std::vector<float>& x : vectors(128, 60000.0f)) {
          const Decoded got = decoded(codec, 128, encoded(codec, x));
          for (size_t i = 0; i < 128; ++i) {
            const size_t g = i / static_cast<size_t>(group);
            const auto v = static_cast<double>(x[i]);
            const double s = got.scales[g], offset = got.offsets[g];
            const double step = std::abs(s) * (1 + 2 * unit) + least;
            const double slack =
                top * (step * unit + least) + std::abs(offset) * 2 * unit + least + std::abs(v) * 0x1p-22;
            const double low = std::min(offset, offset + top * s), high = std::max(offset, offset + top * s);
            const bool between = v >= low + slack && v <= high - slack;
            ASSERT_LE(std::abs(got.values[i] - v), (between ? step / 2 : step) + slack)
                << label(codec) << " element " << i << " is " << v;
          }
        }
      }
}

// P8 and P5: whatever is finite comes back finite; what f16 scales cannot hold included, with the guard on.
TEST(CodecProperties, FiniteVectorsDecodeFinite) {
  std::vector<PlaneCodec> codecs = {{Kind::plain, Dtype::f32}, {Kind::plain, Dtype::bf16}};
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const Dtype type : {Dtype::f32, Dtype::f16, Dtype::bf16}) codecs.push_back(affine(bits, 64, type));
  for (const int bits : {2, 4, 5, 8}) codecs.push_back({Kind::turbo_key, Dtype::f32, bits, 32});
  for (const int bits : {2, 3, 4, 5, 8}) codecs.push_back({Kind::rotated, Dtype::f32, bits, 32});
  for (const int bits : {3, 4, 5, 6, 8})
    for (const Kind kind : {Kind::q_0, Kind::rotated_q_0}) codecs.push_back({kind, Dtype::f32, bits, 32});
  for (const PlaneCodec& codec : codecs)
    for (const float most : {60000.0f, 1e30f}) {
      // MLX's affine rule has no guard: an f16 bias ends at 65504, as a plain f16 value does.
      if (codec.kind == Kind::affine && codec.scale_dtype == Dtype::f16 && most > 65504) continue;
      size_t lost = 0;
      for (const std::vector<float>& x : vectors(64, most))
        for (const double value : decoded(codec, 64, encoded(codec, x)).values) lost += !std::isfinite(value);
      EXPECT_EQ(lost, 0u) << label(codec) << ", up to " << most;
    }
}

}  // namespace
}  // namespace kvasir::kv
