#include "formats/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

void require_finite(std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw_error(ErrorCode::invalid_input, "non-finite weight at element {}: cannot be encoded", i);
}

template <typename T>
void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// C's roundf: halves away from zero.
float round_away(float value) {
  return std::round(value);
}

float inverse_or_zero(float d) {
  return d != 0 ? 1.0f / d : 0.0f;
}

void encode_q8_0(const float* x, uint8_t* out) {
  float amax = 0;
  for (int j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[j]));
  const float d = amax / 127.0f;
  const float id = inverse_or_zero(d);
  store(out, f32_to_f16(d));
  for (int j = 0; j < 32; ++j) out[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(round_away(x[j] * id)));
}

// Q4_0 and Q5_0: the value of largest magnitude gets the code 0, so that d = value / -half.
void encode_symmetric(const float* x, int bits, uint8_t* codes, float* d) {
  float amax = 0;
  float extreme = 0;
  for (int j = 0; j < 32; ++j)
    if (std::fabs(x[j]) > amax) {
      amax = std::fabs(x[j]);
      extreme = x[j];
    }
  const auto half = static_cast<float>(1 << (bits - 1));
  *d = extreme / -half;
  const float id = inverse_or_zero(*d);
  for (int j = 0; j < 32; ++j)
    codes[j] = static_cast<uint8_t>(std::min((1 << bits) - 1, static_cast<int>(x[j] * id + half + 0.5f)));
}

// Q4_1 and Q5_1.
void encode_with_minimum(const float* x, int bits, uint8_t* codes, float* d, float* minimum) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  *minimum = *low;
  *d = (*high - *low) / static_cast<float>((1 << bits) - 1);
  const float id = inverse_or_zero(*d);
  for (int j = 0; j < 32; ++j)
    codes[j] = static_cast<uint8_t>(std::min((1 << bits) - 1, static_cast<int>((x[j] - *low) * id + 0.5f)));
}

// Nibbles of elements j and j + 16, then the fifth bits before them.
void store_nibbles(const uint8_t* codes, uint8_t* out) {
  for (int j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}
void store_fifth_bits(const uint8_t* codes, uint8_t* out) {
  uint32_t high = 0;
  for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>(codes[j] >> 4) << j;
  store(out, high);
}

void encode_mxfp4(const float* x, uint8_t* out) {
  float amax = 0;
  for (int j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[j]));
  // floor(log2 amax) - 2 + 127; ilogb is exact.
  out[0] = amax > 0 ? static_cast<uint8_t>(std::clamp(std::ilogb(amax) - 2 + 127, 0, 254)) : 0;
  const float half_scale = e8m0_half_to_f32(out[0]);
  uint8_t codes[32];
  for (int j = 0; j < 32; ++j) {
    int best = 0;
    float best_error = std::numeric_limits<float>::infinity();
    for (int c = 0; c < 16; ++c) {
      const float error =
          std::fabs(static_cast<float>(kE2m1Doubled[static_cast<size_t>(c)]) * half_scale - x[j]);
      if (error < best_error) {
        best = c;
        best_error = error;
      }
    }
    codes[j] = static_cast<uint8_t>(best);
  }
  store_nibbles(codes, out + 1);
}

void encode_block(StorageFormat format, const float* x, uint8_t* out) {
  uint8_t codes[32];
  float d = 0;
  float minimum = 0;
  switch (format) {
    case StorageFormat::q8_0:
      return encode_q8_0(x, out);
    case StorageFormat::mxfp4:
      return encode_mxfp4(x, out);
    case StorageFormat::q4_0:
      encode_symmetric(x, 4, codes, &d);
      store(out, f32_to_f16(d));
      return store_nibbles(codes, out + 2);
    case StorageFormat::q5_0:
      encode_symmetric(x, 5, codes, &d);
      store(out, f32_to_f16(d));
      store_fifth_bits(codes, out + 2);
      return store_nibbles(codes, out + 6);
    case StorageFormat::q4_1:
      encode_with_minimum(x, 4, codes, &d, &minimum);
      store(out, f32_to_f16(d));
      store(out + 2, f32_to_f16(minimum));
      return store_nibbles(codes, out + 4);
    default:
      KVASIR_CHECK(format == StorageFormat::q5_1);
      encode_with_minimum(x, 5, codes, &d, &minimum);
      store(out, f32_to_f16(d));
      store(out + 2, f32_to_f16(minimum));
      store_fifth_bits(codes, out + 4);
      return store_nibbles(codes, out + 8);
  }
}

}  // namespace

bool can_encode(StorageFormat format) {
  switch (format) {
    case StorageFormat::f64:
    case StorageFormat::f32:
    case StorageFormat::f16:
    case StorageFormat::bf16:
    case StorageFormat::f8_e4m3:
    case StorageFormat::q4_0:
    case StorageFormat::q4_1:
    case StorageFormat::q5_0:
    case StorageFormat::q5_1:
    case StorageFormat::q8_0:
    case StorageFormat::mxfp4:
      return true;
    default:
      return false;
  }
}

void encode_row(StorageFormat format, std::span<const float> values, std::span<std::byte> out) {
  if (!can_encode(format))
    throw_error(
        ErrorCode::unsupported,
        "storage format {} cannot be encoded: expected a plain format, q4_0, q4_1, q5_0, q5_1, q8_0 or mxfp4",
        name(format));
  const auto block = static_cast<size_t>(info(format).block_elements);
  const auto block_bytes = static_cast<size_t>(info(format).block_bytes);
  KVASIR_CHECK(values.size() % block == 0 && out.size() == values.size() / block * block_bytes);
  require_finite(values);
  auto* bytes = reinterpret_cast<uint8_t*>(out.data());
  if (block > 1) {
    for (size_t b = 0; b < values.size() / block; ++b)
      encode_block(format, values.data() + b * block, bytes + b * block_bytes);
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t* at = bytes + i * block_bytes;
    switch (format) {
      case StorageFormat::f64:
        store(at, static_cast<double>(values[i]));
        break;
      case StorageFormat::f32:
        store(at, values[i]);
        break;
      case StorageFormat::f16:
        store(at, f32_to_f16(values[i]));
        break;
      case StorageFormat::bf16:
        store(at, f32_to_bf16(values[i]));
        break;
      default:
        *at = f32_to_e4m3(values[i]);
        break;
    }
  }
}

void pack_codes(std::span<const uint8_t> codes, int bits, std::span<std::byte> out) {
  KVASIR_CHECK(bits >= 1 && bits <= 8 && out.size() == (codes.size() * static_cast<size_t>(bits) + 7) / 8);
  std::fill(out.begin(), out.end(), std::byte{0});
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t bit = i * static_cast<size_t>(bits);
    const unsigned shifted = static_cast<unsigned>(codes[i]) << (bit % 8);
    out[bit / 8] |= static_cast<std::byte>(shifted & 255u);
    if (shifted > 255u) out[bit / 8 + 1] |= static_cast<std::byte>(shifted >> 8);
  }
}

namespace {

void store_real(std::byte* plane, size_t index, Dtype dtype, float value) {
  auto* at = reinterpret_cast<uint8_t*>(plane) + index * size_of(dtype);
  switch (dtype) {
    case Dtype::f32:
      return store(at, value);
    case Dtype::f16:
      return store(at, f32_to_f16(value));
    case Dtype::bf16:
      return store(at, f32_to_bf16(value));
    default:
      KVASIR_CHECK(false);
  }
}

// E8M0 of ceil(log2 s), exact: MLX on the CPU.
uint8_t e8m0_ceil(float s) {
  if (s == 0) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(s, &exponent);
  const int log2 = mantissa == 0.5f ? exponent - 1 : exponent;
  return static_cast<uint8_t>(std::clamp(log2, -127, 127) + 127);
}

}  // namespace

void encode_mlx_affine_row(std::span<const float> values, int bits, int group_size, Dtype scale_dtype,
                           const MlxRow& out) {
  const auto group = static_cast<size_t>(group_size);
  KVASIR_CHECK(bits >= 2 && bits <= 8 && group > 0 && values.size() % group == 0);
  const size_t groups = values.size() / group;
  KVASIR_CHECK(out.scales.size() == groups * size_of(scale_dtype) && out.biases.size() == out.scales.size());
  require_finite(values);
  std::vector<uint8_t> codes(values.size());
  const auto largest = static_cast<float>((1 << bits) - 1);
  for (size_t g = 0; g < groups; ++g) {
    const std::span<const float> w = values.subspan(g * group, group);
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    // The edge of larger magnitude gets the code 0; the step is shifted so that zero is a code.
    const bool negative_edge = std::fabs(*low) > std::fabs(*high);
    float scale = std::max((*high - *low) / largest, 1e-7f);
    if (!negative_edge) scale = -scale;
    const float edge = negative_edge ? *low : *high;
    const float q0 = std::nearbyint(edge / scale);
    float bias = 0;
    if (q0 != 0) {
      scale = edge / q0;
      bias = edge;
    }
    for (size_t k = 0; k < group; ++k)
      codes[g * group + k] =
          static_cast<uint8_t>(std::clamp(std::nearbyint((w[k] - bias) / scale), 0.0f, largest));
    store_real(out.scales.data(), g, scale_dtype, scale);
    store_real(out.biases.data(), g, scale_dtype, bias);
  }
  pack_codes(codes, bits, out.codes);
}

void encode_mlx_float_row(StorageFormat format, std::span<const float> values, const MlxRow& out) {
  const bool nvfp4 = format == StorageFormat::mlx_nvfp4;
  const bool fp8 = format == StorageFormat::mlx_mxfp8;
  KVASIR_CHECK(nvfp4 || fp8 || format == StorageFormat::mlx_mxfp4);
  const size_t group = nvfp4 ? 16 : 32;
  KVASIR_CHECK(values.size() % group == 0 && out.scales.size() == values.size() / group);
  require_finite(values);
  std::vector<uint8_t> codes(values.size());
  for (size_t g = 0; g < values.size() / group; ++g) {
    float amax = 0;
    for (size_t k = g * group; k < (g + 1) * group; ++k) amax = std::max(amax, std::fabs(values[k]));
    const float s = amax / (fp8 ? 448.0f : 6.0f);
    const uint8_t byte = nvfp4 ? f32_to_e4m3(s) : e8m0_ceil(s);
    const float decoded = nvfp4 ? e4m3_to_f32(byte) : e8m0_to_f32(byte);
    const float inverse = nvfp4 ? inverse_or_zero(decoded) : std::ldexp(1.0f, 127 - static_cast<int>(byte));
    out.scales[g] = static_cast<std::byte>(byte);
    for (size_t k = g * group; k < (g + 1) * group; ++k)
      codes[k] = fp8 ? f32_to_e4m3(values[k] * inverse) : f32_to_e2m1(values[k] * inverse);
  }
  pack_codes(codes, fp8 ? 8 : 4, out.codes);
}

}  // namespace kvasir::formats
