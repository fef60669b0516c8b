// Scalar formats of 8 and 4 bits (OCP 8-bit floating point and OCP microscaling formats), decoded exactly to
// f32.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace kvasir::formats {

// E4M3 "fn": no infinity; 0x7F and 0xFF are NaN.
inline float e4m3_to_f32(uint8_t byte) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80u) << 24;
  const uint32_t exponent = (byte >> 3) & 15u;
  const uint32_t mantissa = byte & 7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// E5M2 is the upper byte of an IEEE binary16.
inline float e5m2_to_f32(uint8_t byte) {
  return f16_to_f32(static_cast<uint16_t>(byte << 8));
}

// ggml's unsigned E4M3 scale: bit 7 is ignored, 0x7F reads as 0 (but 0xFF as 480: only the exact byte is
// special).
inline float ue4m3_to_f32(uint8_t byte) {
  if (byte == 0x7F) return 0.0f;
  const uint32_t exponent = (byte >> 3) & 15u;
  const uint32_t mantissa = byte & 7u;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
}

// 2^(byte - 127). 0 gives the subnormal 2^-127; 255 (NaN in OCP) gives infinity, as MLX does: a scan refuses
// it.
inline float e8m0_to_f32(uint8_t byte) {
  return std::bit_cast<float>(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}

// 2^(byte - 128): ggml's MXFP4 scale, half of E8M0, for codes that are stored doubled.
inline float e8m0_half_to_f32(uint8_t byte) {
  return std::bit_cast<float>(byte < 2 ? 0x00200000u << byte : (byte - 1u) << 23);
}

// E2M1 by code; 8 is -0.
inline constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
// E2M1 doubled, as the integers that ggml multiplies with; code 8 is +0 there.
inline constexpr std::array<int8_t, 16> kE2m1Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};

// ggml's non-linear 4-bit codebook (IQ4_NL, IQ4_XS).
inline constexpr std::array<int8_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};

// Encoders (formats.md 0.2). E4M3: round to nearest, ties to even; 448 and more, infinity and NaN give the
// largest code.
inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x43E00000u) return sign | 0x7E;  // 448 and above
  if (magnitude < 0x3C800000u) {  // below 2^-6: a multiple of 2^-9, rounded by the addition of 2^14
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

// E2M1: nearest, ties to even codes; the sign bit is kept (also of zeros); NaN gives 7.
inline uint8_t f32_to_e2m1(float value) {
  if (value != value) return 7;
  const float magnitude = value < 0 ? -value : value;
  const int code = magnitude > 5        ? 7
                   : magnitude >= 3.5f  ? 6
                   : magnitude > 2.5f   ? 5
                   : magnitude >= 1.75f ? 4
                   : magnitude > 1.25f  ? 3
                   : magnitude >= 0.75f ? 2
                   : magnitude > 0.25f  ? 1
                                        : 0;
  return static_cast<uint8_t>(code | (std::bit_cast<uint32_t>(value) >> 28 & 8u));
}

}  // namespace kvasir::formats
