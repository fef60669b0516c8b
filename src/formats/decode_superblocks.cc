// Super-blocks of 256 elements without grid tables. Element i of a K type: half h = i / 128, quarter j = (i %
// 128) / 32, lane l = i % 32 (spec: formats.md 4.4).
#include "formats/decode_blocks.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

// The packed 6-bit scale and minimum of sub-block b (0..7) of Q4_K and Q5_K, in 12 bytes.
struct ScaleMin {
  int scale;
  int minimum;
};
ScaleMin k_scale_min(const uint8_t* s, int b) {
  if (b < 4) return {s[b] & 63, s[b + 4] & 63};
  return {(s[b + 4] & 15) | (s[b - 4] >> 6) << 4, (s[b + 4] >> 4) | (s[b] >> 6) << 4};
}

}  // namespace

void decode_q2_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* codes = block + 16;
  const float d = load_f16(block + 80);
  const float dmin = load_f16(block + 82);
  for (int h = 0; h < 2; ++h)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) {
        const int packed = scales[8 * h + 2 * j + l / 16];
        const int q = (codes[32 * h + l] >> (2 * j)) & 3;
        out[128 * h + 32 * j + l] = d * static_cast<float>(packed & 15) * static_cast<float>(q) -
                                    dmin * static_cast<float>(packed >> 4);
      }
}

void decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t* high = block;
  const uint8_t* codes = block + 32;
  const uint8_t* s = block + 96;
  const float d = load_f16(block + 108);
  for (int h = 0; h < 2; ++h)
    for (int j = 0; j < 4; ++j)
      for (int half = 0; half < 2; ++half) {
        const int k = 8 * h + 2 * j + half;
        const int packed = ((s[k % 8] >> (4 * (k / 8))) & 15) | ((s[8 + k % 4] >> (2 * (k / 4))) & 3) << 4;
        const float scale = d * static_cast<float>(packed - 32);
        for (int l = 16 * half; l < 16 * half + 16; ++l) {
          const int q = ((codes[32 * h + l] >> (2 * j)) & 3) - ((high[l] >> (4 * h + j)) & 1 ? 0 : 4);
          out[128 * h + 32 * j + l] = scale * static_cast<float>(q);
        }
      }
}

void decode_q4_k(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  const uint8_t* codes = block + 16;
  for (int b = 0; b < 8; ++b) {
    const ScaleMin packed = k_scale_min(block + 4, b);
    const float scale = d * static_cast<float>(packed.scale);
    const float minimum = dmin * static_cast<float>(packed.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = (codes[32 * (b / 2) + l] >> (4 * (b % 2))) & 15;
      out[32 * b + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_q5_k(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* codes = block + 48;
  for (int b = 0; b < 8; ++b) {
    const ScaleMin packed = k_scale_min(block + 4, b);
    const float scale = d * static_cast<float>(packed.scale);
    const float minimum = dmin * static_cast<float>(packed.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = ((codes[32 * (b / 2) + l] >> (4 * (b % 2))) & 15) + 16 * ((high[l] >> b) & 1);
      out[32 * b + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float d = load_f16(block + 208);
  for (int h = 0; h < 2; ++h)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) {
        const int nibble = (low[64 * h + l + 32 * (j % 2)] >> (4 * (j / 2))) & 15;
        const int q = (nibble | ((high[32 * h + l] >> (2 * j)) & 3) << 4) - 32;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[8 * h + 2 * j + l / 16]));
        out[128 * h + 32 * j + l] = scale * static_cast<float>(q);
      }
}

void decode_iq4_xs(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint32_t high = load_u16(block + 2);
  const uint8_t* low = block + 4;
  const uint8_t* codes = block + 8;
  for (int b = 0; b < 8; ++b) {
    const int packed = ((low[b / 2] >> (4 * (b % 2))) & 15) | static_cast<int>((high >> (2 * b)) & 3u) << 4;
    const float scale = d * static_cast<float>(packed - 32);
    for (int l = 0; l < 16; ++l) {
      out[32 * b + l] = scale * static_cast<float>(kIq4Values[codes[16 * b + l] & 15]);
      out[32 * b + l + 16] = scale * static_cast<float>(kIq4Values[codes[16 * b + l] >> 4]);
    }
  }
}

namespace {
// The n-th ternary digit of a byte that holds five of them as a fixed-point fraction of 3^5: -1, 0 or 1.
float ternary_digit(uint8_t byte, int n) {
  static constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  const auto shifted = static_cast<uint8_t>(byte * kPowers[n]);
  return static_cast<float>(((shifted * 3) >> 8) - 1);
}
}  // namespace

void decode_tq1_0(const uint8_t* block, float* out) {
  const float d = load_f16(block + 52);
  for (int n = 0; n < 5; ++n)
    for (int m = 0; m < 32; ++m) *out++ = ternary_digit(block[m], n) * d;
  for (int n = 0; n < 5; ++n)
    for (int m = 0; m < 16; ++m) *out++ = ternary_digit(block[32 + m], n) * d;
  for (int n = 0; n < 4; ++n)
    for (int m = 0; m < 4; ++m) *out++ = ternary_digit(block[48 + m], n) * d;
}

void decode_tq2_0(const uint8_t* block, float* out) {
  const float d = load_f16(block + 64);
  for (int g = 0; g < 2; ++g)
    for (int n = 0; n < 4; ++n)
      for (int m = 0; m < 32; ++m) *out++ = static_cast<float>(((block[32 * g + m] >> (2 * n)) & 3) - 1) * d;
}

}  // namespace kvasir::formats
