#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvasir {
namespace {

// binary16 by its definition, in f64.
double f16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Dtype, F16DecodesEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (((bits >> 10) & 31) != 31) {
      ASSERT_EQ(static_cast<double>(value), f16_value(static_cast<uint16_t>(bits))) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    } else if ((bits & 1023) == 0) {
      ASSERT_TRUE(std::isinf(value));
    } else {
      ASSERT_TRUE(std::isnan(value));
    }
  }
}

TEST(Dtype, F16RoundTripsEveryNumber) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (((bits >> 10) & 31) == 31 && (bits & 1023) != 0) continue;  // NaN payloads are not kept
    ASSERT_EQ(f32_to_f16(f16_to_f32(static_cast<uint16_t>(bits))), bits);
  }
}

TEST(Dtype, F16RoundsToNearestEven) {
  // Between two neighbours the nearer wins, the even one at the midpoint: a, midpoint and values just beside
  // it.
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = f16_to_f32(bits), high = f16_to_f32(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(f32_to_f16(middle), (bits & 1) != 0 ? bits + 1 : bits) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, low)), bits) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), bits + 1) << bits;
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xFC00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::infinity()), 0x7C00);
}

TEST(Dtype, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7F7F; ++bits) {
    const uint32_t middle = (bits << 16) | 0x8000;
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), (bits & 1) != 0 ? bits + 1 : bits);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), bits);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), bits + 1);
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Dtype, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(Dtype::boolean); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
  }
  EXPECT_EQ(size_of(Dtype::bf16), 2u);
  EXPECT_EQ(size_of(Dtype::f64), 8u);
  EXPECT_FALSE(dtype_from_name("f8").has_value());
}

}  // namespace
}  // namespace kvasir
