// Element types and their scalar conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace kvasir {

enum class Dtype : uint8_t { f32, f16, bf16, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean };

size_t size_of(Dtype dtype);                                  // bytes of one element
std::string_view name(Dtype dtype);                           // "f32", "bf16", ...
std::optional<Dtype> dtype_from_name(std::string_view name);  // inverse of name()

// bf16 is the upper half of an f32. Rounding is to nearest, ties to even; a NaN stays a (quiet) NaN.
inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16, exact in both directions (round to nearest, ties to even; subnormals kept; overflow to
// infinity).
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

}  // namespace kvasir
