// What the codes of a plane mean to attention, code = the bits that lie in memory.
//
// In f32:       value = scale * values[code] + offset'
//               offset' = bias + scale * center (affine), scale * (zero + center - stored_bias) (turbo keys)
//               values[code] = code - center, or the codebook's entry. Centred codes keep products small
//               beside their sum.
// As integers:  value = scale * code + offset'', offset'' = bias (affine), scale * (zero - stored_bias)
// (turbo keys)
//               value = scale * byte_scale * (bytes[code] - 128), the codebook on 8 bits (rotated):
//               byte_scale is chosen so that the squared error of the entries is least. A codebook of 256
//               entries has no such form.
//               value = scale * (code - byte_center), whole numbers around zero without an offset (qN_0)
#pragma once

#include <cstdint>

#include "kv/codecs/plane.h"

namespace kvasir::kv {

struct DecodeTable {
  alignas(64) float values[256];
  alignas(64) uint8_t value_bytes[4][256];  // byte b of values[code]
  alignas(64) uint8_t bytes[64];            // 64 entries, repeated past 2^bits
  float center = 0;
  float stored_bias = 0;  // signed codes lie in memory plus this
  float byte_scale = 1;
  bool has_bytes = false;   // the integer form exists
  bool looks_up = false;    // bytes[] is needed
  int32_t byte_center = 0;  // integer form: bytes stand for themselves minus this
};

DecodeTable make_decode_table(const PlaneFormat& format);

}  // namespace kvasir::kv
