// Super-blocks of 256 elements whose codes are rows of grid tables (spec: formats.md 4.4). Element i:
// sub-block b = i / 32, row p = (i % 32) / 8, place e = i % 8. All products are exact in f32, so their order
// does not matter.
#include "formats/decode_blocks.h"
#include "formats/iq_grids.h"

namespace kvasir::formats {
namespace {

void signed_row(const int8_t* grid, int count, uint32_t signs, float scale, float* out) {
  for (int e = 0; e < count; ++e) {
    const float value = scale * static_cast<float>(grid[e]);
    out[e] = (signs >> e) & 1u ? -value : value;
  }
}

}  // namespace

void decode_iq2_xxs(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int b = 0; b < 8; ++b) {
    const uint8_t* rows = block + 2 + 8 * b;
    const uint32_t word = load_u32(rows + 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (int p = 0; p < 4; ++p)
      signed_row(kIq2XxsGrid[rows[p]].data(), 8, iq_sign_byte((word >> (7 * p)) & 127u), scale,
                 out + 32 * b + 8 * p);
  }
}

void decode_iq2_xs(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int b = 0; b < 8; ++b)
    for (int p = 0; p < 4; ++p) {
      const uint32_t code = load_u16(block + 2 + 2 * (4 * b + p));
      const int c = (block[66 + b] >> (4 * (p / 2))) & 15;
      const float scale = d * (0.5f + static_cast<float>(c)) * 0.25f;
      signed_row(kIq2XsGrid[code & 511u].data(), 8, iq_sign_byte(code >> 9), scale, out + 32 * b + 8 * p);
    }
}

void decode_iq2_s(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint8_t* low = block + 2;
  const uint8_t* signs = block + 34;
  const uint8_t* high = block + 66;
  const uint8_t* scales = block + 74;
  for (int b = 0; b < 8; ++b)
    for (int p = 0; p < 4; ++p) {
      const int c = (scales[b] >> (4 * (p / 2))) & 15;
      const float scale = d * (0.5f + static_cast<float>(c)) * 0.25f;
      const int row = low[4 * b + p] | ((high[b] >> (2 * p)) & 3) << 8;
      signed_row(kIq2SGrid[static_cast<size_t>(row)].data(), 8, signs[4 * b + p], scale,
                 out + 32 * b + 8 * p);
    }
}

void decode_iq3_xxs(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint8_t* codes = block + 2;
  for (int b = 0; b < 8; ++b) {
    const uint32_t word = load_u32(block + 66 + 4 * b);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (int p = 0; p < 4; ++p) {
      const uint32_t signs = iq_sign_byte((word >> (7 * p)) & 127u);
      float* row = out + 32 * b + 8 * p;
      signed_row(kIq3XxsGrid[codes[8 * b + 2 * p]].data(), 4, signs, scale, row);
      signed_row(kIq3XxsGrid[codes[8 * b + 2 * p + 1]].data(), 4, signs >> 4, scale, row + 4);
    }
  }
}

void decode_iq3_s(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint8_t* codes = block + 2;
  const uint8_t* high = block + 66;
  const uint8_t* signs = block + 74;
  const uint8_t* scales = block + 106;
  for (int b = 0; b < 8; ++b) {
    const int c = (scales[b / 2] >> (4 * (b % 2))) & 15;
    const float scale = d * static_cast<float>(1 + 2 * c);
    for (int k = 0; k < 8; ++k) {
      const int row = codes[8 * b + k] | ((high[b] >> k) & 1) << 8;
      const uint32_t sign_bits = static_cast<uint32_t>(signs[4 * b + k / 2]) >> (4 * (k % 2));
      signed_row(kIq3SGrid[static_cast<size_t>(row)].data(), 4, sign_bits, scale, out + 32 * b + 4 * k);
    }
  }
}

void decode_iq1_s(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int b = 0; b < 8; ++b) {
    const uint32_t high = load_u16(block + 34 + 2 * b);
    const float scale = d * static_cast<float>(2 * ((high >> 12) & 7u) + 1);
    const float delta = high & 0x8000u ? -0.125f : 0.125f;
    for (int p = 0; p < 4; ++p) {
      const uint32_t row = block[2 + 4 * b + p] | ((high >> (3 * p)) & 7u) << 8;
      for (int e = 0; e < 8; ++e)
        out[32 * b + 8 * p + e] = scale * (static_cast<float>(kIq1Grid[row][static_cast<size_t>(e)]) + delta);
    }
  }
}

void decode_iq1_m(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 32;
  uint32_t scales[4];
  uint32_t d_bits = 0;
  for (int k = 0; k < 4; ++k) {
    scales[k] = load_u16(block + 48 + 2 * k);
    d_bits |= (scales[k] >> 12) << (4 * k);
  }
  const float d = f16_to_f32(static_cast<uint16_t>(d_bits));
  for (int b = 0; b < 8; ++b)
    for (int p = 0; p < 4; ++p) {
      const uint32_t nibble = (static_cast<uint32_t>(high[2 * b + p / 2]) >> (4 * (p % 2))) & 15u;
      const uint32_t s = (scales[b / 2] >> (6 * (b % 2) + 3 * (p / 2))) & 7u;
      const float scale = d * static_cast<float>(2 * s + 1);
      const float delta = nibble & 8u ? -0.125f : 0.125f;
      const uint32_t row = low[4 * b + p] | (nibble & 7u) << 8;
      for (int e = 0; e < 8; ++e)
        out[32 * b + 8 * p + e] = scale * (static_cast<float>(kIq1Grid[row][static_cast<size_t>(e)]) + delta);
    }
}

}  // namespace kvasir::formats
