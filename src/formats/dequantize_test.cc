#include "formats/dequantize.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "formats/iq_grids.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

using F = StorageFormat;

std::vector<float> decode(F format, const std::vector<uint8_t>& bytes, int64_t cols) {
  WeightSource source;
  source.name = "test";
  source.format = format;
  source.rows = 1;
  source.cols = cols;
  source.data = reinterpret_cast<const std::byte*>(bytes.data());
  source.row_bytes = bytes.size();
  std::vector<float> out(static_cast<size_t>(cols));
  dequantize_row(source, 0, out);
  return out;
}

// The known-answer vectors of formats.md 4.6: block bytes (37 i + 11) mod 256 with scale fields replaced.
struct Patch {
  int offset;
  std::vector<uint8_t> bytes;
};
struct KnownAnswer {
  F format;
  std::vector<Patch> patches;
  std::vector<double> y;  // y0, y1, y(n/2-1), y(n/2), y(n-1)
  double sum;
  double weighted_sum;  // of (i + 1) y_i
};

const std::vector<uint8_t> kHalf = {0x00, 0x38};
const std::vector<uint8_t> kQuarter = {0x00, 0x34};

std::vector<KnownAnswer> known_answers() {
  return {
      {F::q4_0, {{0, kHalf}}, {-1.5, 1, -4, -1.5, 0}, -10.5, -259},
      {F::q4_1, {{0, kHalf}, {2, kQuarter}}, {7.75, 2.25, 5.25, 4.75, 6.25}, 130.5, 2123.5},
      {F::q5_0, {{0, kHalf}}, {4.5, -1, -6, 7, 0.5}, 7.5, 56},
      {F::q5_1, {{0, kHalf}, {2, kQuarter}}, {9.75, 12.25, 15.25, 9.75, 2.75}, 260.5, 4082.5},
      {F::q8_0, {{0, kHalf}}, {42.5, 61, -64, -45.5, -24}, -88, -4040},
      {F::q2_k, {{80, kHalf}, {82, kQuarter}}, {16.5, 0, 21, 3.75, 2.25}, 1029.5, 121565},
      {F::q3_k, {{108, kHalf}}, {40.5, -54, 36, 1, 21}, 479, 88572.5},
      {F::q4_k, {{0, kHalf}, {2, kQuarter}}, {157.75, -12.75, 40.5, 211.5, 24.25}, 27220, 3786420},
      {F::q5_k, {{0, kHalf}, {2, kQuarter}}, {405.75, -12.75, -1.5, 523.5, 54.25}, 58108, 8013724},
      {F::q6_k, {{208, kHalf}}, {-715.5, 848, 750, -175.5, -30}, 2306, 392210},
      {F::iq4_nl, {{0, kHalf}}, {-17.5, 12.5, -63.5, -17.5, 0.5}, -128.5, -3459.5},
      {F::iq4_xs, {{0, kHalf}}, {32.5, -0.5, 98, -292.5, -8}, -5502.5, -1045567},
      {F::mxfp4, {{0, {0x80}}}, {0, 6, -3, 3, 6}, 25, 638},
      {F::nvfp4, {{0, {0x38, 0x40, 0x30, 0x01}}}, {-6, 2, -4, -3, 0x1p-10}, -4.4892578125, -176.3291015625},
      {F::tq2_0, {{64, kHalf}}, {1, -.5, .5, 1, -.5}, 64.5, 8622.5},
      {F::tq1_0, {{52, kHalf}}, {-.5, -.5, -.5, 0, -.5}, -1, -65.5},
      {F::iq2_xxs, {{0, kHalf}}, {-29.5625, 29.5625, 13.5, -48.4375, -40.3125}, 381.875, 18396.5},
      {F::iq2_xs, {{0, kHalf}}, {-5.5, 17.1875, -.5, -9.5, -9.5}, 745.25, 61599.0625},
      {F::iq2_s, {{0, kHalf}}, {-72.5625, 42.1875, 2.5, -4.6875, 39.0625}, -400.3125, -31040.3125},
      {F::iq3_xxs, {{0, kHalf}}, {-6.5, 4.5, -137.5, -27.5, -7.5}, -342, 1511.5},
      {F::iq3_s, {{0, kHalf}}, {-40.5, 121.5, -42.5, -52.5, 112.5}, 728, 101395},
      {F::iq1_s, {{0, kHalf}}, {-1.3125, .1875, -.9375, -3.9375, -2.1875}, 10, -5914.5},
      {F::iq1_m, {}, {-.4375, 3.0625, -6.1875, .9375, -.9375}, 20.5, -1118},
      {F::q1_0, {{0, kHalf}}, {.5, -.5, -.5, .5, .5}, 0, -266},
      {F::q2_0, {{0, kHalf}}, {0, 0, 0, 0, .5}, 15, 406.5},
  };
}

TEST(Dequantize, KnownAnswers) {
  for (const KnownAnswer& known : known_answers()) {
    SCOPED_TRACE(name(known.format));
    std::vector<uint8_t> block(static_cast<size_t>(info(known.format).block_bytes));
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(37 * i + 11);
    if (known.format ==
        F::iq1_m) {  // the f16 scale's nibbles: 0, 0, 8, 3 in the upper halves of four 16-bit words
      const uint8_t nibbles[4] = {0, 0, 8, 3};
      for (size_t k = 0; k < 4; ++k)
        block[49 + 2 * k] = static_cast<uint8_t>((block[49 + 2 * k] & 15) | nibbles[k] << 4);
    }
    for (const Patch& patch : known.patches)
      std::copy(patch.bytes.begin(), patch.bytes.end(), block.begin() + patch.offset);
    const int n = info(known.format).block_elements;
    const std::vector<float> y = decode(known.format, block, n);
    const std::vector<double> picked = {y[0], y[1], y[n / 2 - 1], y[n / 2], y[n - 1]};
    EXPECT_EQ(picked, known.y);
    double sum = 0;
    double weighted = 0;
    for (int i = 0; i < n; ++i) {
      sum += y[i];
      weighted += (i + 1) * static_cast<double>(y[i]);
    }
    EXPECT_EQ(sum, known.sum);
    EXPECT_EQ(weighted, known.weighted_sum);
  }
}

std::string sha256_16(const void* data, size_t size) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(static_cast<const unsigned char*>(data), size, digest);
  std::string hex;
  for (int i = 0; i < 8; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

// formats.md 4.4: digests of ggml's tables.
TEST(IqGrids, AreGgmls) {
  EXPECT_EQ(sha256_16(kIq2XxsGrid.data(), sizeof kIq2XxsGrid), "05826b5d3e472a3a");
  EXPECT_EQ(sha256_16(kIq2XsGrid.data(), sizeof kIq2XsGrid), "06e47aaca60b4dc1");
  EXPECT_EQ(sha256_16(kIq2SGrid.data(), sizeof kIq2SGrid), "e1aa1473412b0552");
  EXPECT_EQ(sha256_16(kIq3XxsGrid.data(), sizeof kIq3XxsGrid), "46e35f5a997efdee");
  EXPECT_EQ(sha256_16(kIq3SGrid.data(), sizeof kIq3SGrid), "bd1af4945a1717c6");
  EXPECT_EQ(sha256_16(kIq1Grid.data(), sizeof kIq1Grid), "07540ffc1aeaf6ad");
}

TEST(Dequantize, PlainFormats) {
  EXPECT_EQ(decode(F::f32, {0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0}, 2), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(decode(F::f16, {0x00, 0x3C, 0x01, 0x00}, 2), (std::vector<float>{1.0f, 0x1p-24f}));
  EXPECT_EQ(decode(F::bf16, {0x80, 0x3F, 0x40, 0xC0}, 2), (std::vector<float>{1.0f, -3.0f}));
  EXPECT_EQ(decode(F::f64, {0, 0, 0, 0, 0, 0, 0xF8, 0x3F}, 1), (std::vector<float>{1.5f}));
  EXPECT_EQ(decode(F::f8_e4m3, {0x38, 0x7E, 0x01, 0x88}, 4),
            (std::vector<float>{1.0f, 448.0f, 0x1p-9f, -0x1p-6f}));
  EXPECT_EQ(decode(F::f8_e5m2, {0x3C, 0xC0, 0x01}, 3), (std::vector<float>{1.0f, -2.0f, 0x1p-16f}));
}

TEST(Dequantize, IntegersAreRefusedByName) {
  try {
    decode(F::i32, {1, 0, 0, 0}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("test: storage format i32"), std::string::npos);
  }
}

// formats.md 0.2: the scalar formats, by their definitions.
TEST(SmallFloats, E4m3FollowsItsDefinition) {
  for (int byte = 0; byte < 256; ++byte) {
    const int e = (byte >> 3) & 15;
    const int m = byte & 7;
    const float value = e4m3_to_f32(static_cast<uint8_t>(byte));
    if (e == 15 && m == 7) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude = e == 0 ? std::ldexp(m, -9) : std::ldexp(1 + m / 8.0, e - 7);
    EXPECT_EQ(value, byte & 0x80 ? -magnitude : magnitude) << byte;
    EXPECT_EQ(std::signbit(value), (byte & 0x80) != 0);
  }
}

TEST(SmallFloats, Scales) {
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_f32(1), 0x1p-126f);
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127f);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(e8m0_half_to_f32(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 128)) << byte;
  EXPECT_EQ(ue4m3_to_f32(0x00), 0.0f);
  EXPECT_EQ(ue4m3_to_f32(0x7F), 0.0f);
  EXPECT_EQ(ue4m3_to_f32(0xFF), 480.0f);
  EXPECT_EQ(ue4m3_to_f32(0xB8), 1.0f);
  for (int byte = 1; byte < 0x7F; ++byte)
    EXPECT_EQ(ue4m3_to_f32(static_cast<uint8_t>(byte)), e4m3_to_f32(static_cast<uint8_t>(byte)));
}

// formats.md 2.2: byte vectors of packed codes. Scales 1 and biases 0 make the values the codes.
TEST(DequantizeMlx, BitOrder) {
  const struct {
    int bits;
    std::vector<uint8_t> bytes;
    std::vector<float> codes;
  } cases[] = {
      {2, {0x39}, {1, 2, 3, 0}},
      {3, {0xd1, 0x58, 0x1f}, {1, 2, 3, 4, 5, 6, 7, 0}},
      {4, {0x21, 0x43, 0x65, 0x87}, {1, 2, 3, 4, 5, 6, 7, 8}},
      {5, {0x41, 0x0c, 0x52, 0xcc, 0x01}, {1, 2, 3, 4, 5, 6, 7, 0}},
      {6, {0x81, 0x30, 0x10}, {1, 2, 3, 4}},
      {8, {0, 1, 200, 255}, {0, 1, 200, 255}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.bits);
    // Repeat the pattern over a group of 32, in the second of two rows.
    const size_t repeat = 32 / c.codes.size();
    std::vector<uint8_t> bytes(static_cast<size_t>(4 * c.bits), 0xFF);
    std::vector<float> expected;
    for (size_t r = 0; r < repeat; ++r) {
      bytes.insert(bytes.end(), c.bytes.begin(), c.bytes.end());
      expected.insert(expected.end(), c.codes.begin(), c.codes.end());
    }
    const std::vector<float> scales = {9, 1};
    const std::vector<float> biases = {9, 0};
    WeightSource source;
    source.format = F::mlx_affine;
    source.rows = 2;
    source.cols = 32;
    source.bits = c.bits;
    source.group_size = 32;
    source.row_bytes = static_cast<size_t>(4 * c.bits);
    source.data = reinterpret_cast<const std::byte*>(bytes.data());
    source.scale_dtype = Dtype::f32;
    source.scales = reinterpret_cast<const std::byte*>(scales.data());
    source.biases = reinterpret_cast<const std::byte*>(biases.data());
    std::vector<float> out(32);
    dequantize_row(source, 1, out);
    EXPECT_EQ(out, expected);
  }
}

TEST(DequantizeMlx, AffineWithNegativeBf16ScalesAndTwoGroups) {
  std::vector<uint8_t> codes(32);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>((2 * i) % 16 | ((2 * i + 1) % 16) << 4);
  const uint16_t scales[2] = {0xBE80, 0x3F00};  // -0.25, 0.5
  const uint16_t biases[2] = {0x3F80, 0xC000};  // 1, -2
  WeightSource source;
  source.format = F::mlx_affine;
  source.rows = 1;
  source.cols = 64;
  source.bits = 4;
  source.group_size = 32;
  source.row_bytes = 32;
  source.data = reinterpret_cast<const std::byte*>(codes.data());
  source.scale_dtype = Dtype::bf16;
  source.scales = reinterpret_cast<const std::byte*>(scales);
  source.biases = reinterpret_cast<const std::byte*>(biases);
  std::vector<float> out(64);
  dequantize_row(source, 0, out);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out[i],
              i < 32 ? 1.0f - 0.25f * static_cast<float>(i % 16) : -2.0f + 0.5f * static_cast<float>(i % 16));
}

TEST(DequantizeMlx, FloatModes) {
  std::vector<uint8_t> codes(32);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(i);
  WeightSource source;
  source.rows = 1;
  source.cols = 32;
  source.data = reinterpret_cast<const std::byte*>(codes.data());
  source.scale_dtype = Dtype::u8;
  std::vector<float> out(32);

  source.format = F::mlx_mxfp8;
  source.group_size = 32;
  source.row_bytes = 32;
  const uint8_t two = 128;
  source.scales = reinterpret_cast<const std::byte*>(&two);
  dequantize_row(source, 0, out);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], 2.0f * e4m3_to_f32(static_cast<uint8_t>(i)));

  for (int i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(i | (15 - i) << 4);
  source.format = F::mlx_mxfp4;
  source.row_bytes = 16;
  dequantize_row(source, 0, out);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[2 * i], 2.0f * kE2m1[i]);
    EXPECT_EQ(out[2 * i + 1], 2.0f * kE2m1[15 - i]);
  }

  source.format = F::mlx_nvfp4;
  source.group_size = 16;
  const uint8_t e4m3_scales[2] = {0x38, 0x41};  // 1, 2.25
  source.scales = reinterpret_cast<const std::byte*>(e4m3_scales);
  dequantize_row(source, 0, out);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(out[2 * i], (i < 8 ? 1.0f : 2.25f) * kE2m1[i]);
}

}  // namespace
}  // namespace kvasir::formats
