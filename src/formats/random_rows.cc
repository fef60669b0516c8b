#include "formats/random_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "formats/decode_blocks.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

// SplitMix64's output function: a bijection that mixes all bits.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

uint64_t random_bits(uint64_t seed, uint64_t index) {
  return mix(mix(seed) + index);
}

// The f16 scale field(s) of each format with random codes, and how large the minimum's scale is beside the
// scale's, so that the values' mean is about 0: E[scale code] * E[value code] / E[minimum code].
struct ScaleFields {
  int d;            // byte offset; -1: not a plain f16 field
  int dmin = -1;    // byte offset of the scale of minima; -1: none
  float ratio = 0;  // dmin = ratio * d
};
ScaleFields scale_fields(StorageFormat format) {
  switch (format) {
    case StorageFormat::q2_k:
      return {80, 82, 1.5f};
    case StorageFormat::q3_k:
      return {108};
    case StorageFormat::q4_k:
      return {0, 2, 7.5f};
    case StorageFormat::q5_k:
      return {0, 2, 15.5f};
    case StorageFormat::q6_k:
      return {208};
    case StorageFormat::tq1_0:
      return {52};
    case StorageFormat::tq2_0:
      return {64};
    case StorageFormat::nvfp4:
    case StorageFormat::iq1_m:
      return {-1};
    default:
      return {0};
  }
}

void store_f16(uint8_t* at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

// Writes the scale of one block of random codes.
void set_scale(StorageFormat format, float scale, uint8_t* block) {
  if (format == StorageFormat::nvfp4) {
    // Four scale bytes; bit 7 means nothing and stays clear.
    const uint8_t byte = std::max<uint8_t>(f32_to_e4m3(scale), 1);
    for (int s = 0; s < 4; ++s) block[s] = byte;
    return;
  }
  if (format == StorageFormat::iq1_m) {
    const uint16_t bits = f32_to_f16(scale);
    for (int k = 0; k < 4; ++k)
      block[49 + 2 * k] = static_cast<uint8_t>((block[49 + 2 * k] & 15) | ((bits >> (4 * k)) & 15) << 4);
    return;
  }
  const ScaleFields fields = scale_fields(format);
  store_f16(block + fields.d, scale);
  if (fields.dmin >= 0) store_f16(block + fields.dmin, scale * fields.ratio);
}

void random_bytes(uint64_t seed, uint64_t index, uint8_t* out, size_t count) {
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t bits = random_bits(seed, (index << 6) + i / 8);  // blocks have less than 64 * 8 bytes
    std::memcpy(out + i, &bits, std::min<size_t>(8, count - i));
  }
}

// Random codes of one block. TQ2_0 holds ternary digits in two bits: 3 becomes 1.
void random_codes(StorageFormat format, uint64_t seed, uint64_t index, uint8_t* block) {
  const auto size = static_cast<size_t>(info(format).block_bytes);
  random_bytes(seed, index, block, size);
  if (format != StorageFormat::tq2_0) return;
  for (size_t i = 0; i < size; ++i)
    block[i] &= static_cast<uint8_t>(~((block[i] & (block[i] >> 1) & 0x55) << 1));
}

constexpr size_t kLargestBlock = 256;

}  // namespace

float random_normal(uint64_t seed, uint64_t index) {
  // Box-Muller in double: the logarithm's argument lies in (0, 1].
  const uint64_t bits = random_bits(seed, index);
  const double u = static_cast<double>((bits >> 32) + 1) * 0x1p-32;
  const double v = static_cast<double>(bits & 0xFFFFFFFFu) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

RandomRows::RandomRows(StorageFormat format, float deviation, uint64_t seed)
    : format_(format), deviation_(deviation), seed_(seed) {
  const StorageFormatInfo& storage = info(format);
  const bool foreign = format == StorageFormat::f8_scaled || format == StorageFormat::int_scaled;
  if ((storage.block_elements == 0 && !foreign) || can_encode(format)) return;
  const BlockDecoder decode = block_decoder(format);
  if (format == StorageFormat::f8_e5m2 || decode == nullptr)
    throw_error(ErrorCode::unsupported, "storage format {}: random weights cannot be made in it",
                storage.name);
  // The root mean square of random codes under scale 1, over blocks enough for 1 %.
  double sum = 0;
  uint8_t block[kLargestBlock];
  float values[256];
  constexpr uint64_t kSamples = 64;
  for (uint64_t i = 0; i < kSamples; ++i) {
    random_codes(format, mix(seed), i, block);
    set_scale(format, 1.0f, block);
    decode(block, values);
    for (int k = 0; k < storage.block_elements; ++k)
      sum += static_cast<double>(values[k]) * static_cast<double>(values[k]);
  }
  scale_ =
      deviation / static_cast<float>(std::sqrt(
                      sum / static_cast<double>(kSamples * static_cast<uint64_t>(storage.block_elements))));
}

void RandomRows::random_block(uint64_t index, uint8_t* block) const {
  random_codes(format_, seed_, index, block);
  // Scales vary from block to block, as in real files.
  const float spread = 0.75f + 0.5f * static_cast<float>(random_bits(~seed_, index) >> 40) * 0x1p-24f;
  set_scale(format_, scale_ * spread, block);
}

void RandomRows::fill(int64_t row, int64_t cols, std::span<std::byte> out) const {
  const StorageFormatInfo& storage = info(format_);
  KVASIR_CHECK(storage.block_elements > 0 && cols % storage.block_elements == 0);
  const auto blocks = static_cast<size_t>(cols / storage.block_elements);
  const auto block_bytes = static_cast<size_t>(storage.block_bytes);
  KVASIR_CHECK(out.size() == blocks * block_bytes);
  if (can_encode(format_)) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] =
          deviation_ * random_normal(seed_, static_cast<uint64_t>(row) * static_cast<uint64_t>(cols) + i);
    return encode_row(format_, values, out);
  }
  for (size_t b = 0; b < blocks; ++b)
    random_block(static_cast<uint64_t>(row) * blocks + b,
                 reinterpret_cast<uint8_t*>(out.data()) + b * block_bytes);
}

void RandomRows::fill_mlx(int64_t row, int64_t cols, int bits, int group_size, Dtype scale_dtype,
                          const MlxRow& out) const {
  std::vector<float> values(static_cast<size_t>(cols));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] =
        deviation_ * random_normal(seed_, static_cast<uint64_t>(row) * static_cast<uint64_t>(cols) + i);
  if (format_ == StorageFormat::mlx_affine)
    encode_mlx_affine_row(values, bits, group_size, scale_dtype, out);
  else
    encode_mlx_float_row(format_, values, out);
}

}  // namespace kvasir::formats
