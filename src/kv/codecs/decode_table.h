// What the codes of a plane mean, as a table that kernels look codes up in.
//
//   value = scale * table[code] + offset',   offset' = bias + scale * center  (affine)
//                                            offset' = scale * (zero + center)  (turbo keys)
//                                            none                               (rotated: table = codebook)
//
// Integer codes are centred (table[code] = code - center), which keeps products small beside their sum; they
// are exact in bf16. Codebook entries are rounded to bf16 for the bf16 dot products only.
#pragma once

#include <cstdint>

#include "kv/codecs/plane.h"

namespace kvasir::kv {

struct DecodeTable {
  alignas(64) float values[256];
  alignas(64) uint16_t bf16[256];
  float center = 0;
};

// Entries past 2^bits repeat the table, so that an index may carry bits of its neighbours above `bits`.
DecodeTable make_decode_table(const PlaneFormat& format);

}  // namespace kvasir::kv
