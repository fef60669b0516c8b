#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace kvasir {
namespace {

struct DtypeInfo {
  std::string_view name;
  size_t size;
};

constexpr std::array<DtypeInfo, 13> kDtypes = {{{"f32", 4},
                                                {"f16", 2},
                                                {"bf16", 2},
                                                {"f64", 8},
                                                {"i8", 1},
                                                {"i16", 2},
                                                {"i32", 4},
                                                {"i64", 8},
                                                {"u8", 1},
                                                {"u16", 2},
                                                {"u32", 4},
                                                {"u64", 8},
                                                {"bool", 1}}};

const DtypeInfo& info(Dtype dtype) {
  KVASIR_CHECK(static_cast<size_t>(dtype) < kDtypes.size());
  return kDtypes[static_cast<size_t>(dtype)];
}

}  // namespace

size_t size_of(Dtype dtype) {
  return info(dtype).size;
}
std::string_view name(Dtype dtype) {
  return info(dtype).name;
}

std::optional<Dtype> dtype_from_name(std::string_view text) {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == text) return static_cast<Dtype>(i);
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Zero or subnormal: mantissa * 2^-24, exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {
    // Result is subnormal (or zero): adding 0.5 makes the FPU round to a multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace kvasir
