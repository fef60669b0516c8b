// How one plane (K or V of one head) of a layer group is arranged in memory, in blocks of 16 tokens.
//
// A block is the right matrix of attention's products, 16 lanes wide. Keys have tokens in the lanes and
// channels along the product (scores of 16 keys at once); values have channels in the lanes and tokens along
// the product (16 channels of the output at once).
//
//   bf16      pairs along the product share a lane of 32 bits:
//             K: [pairs of channels][16 tokens][2]      V: [8 pairs of tokens][channels][2]
//   f32, f16  K: [channels][16 tokens]                  V: [16 tokens][channels]
//   codes     units of 32 channels x 16 tokens = 8 quad vectors, each 16 lanes times 4 codes along the
//   product (the
//             operand of 8-bit dot products), split by bits into planes of 8, 4, 2 or 1 bits (6 = 4 + 2, 5 =
//             4 + 1, 3 = 2 + 1). In a plane of w bits, 8 / w quad vectors share one vector of 64 bytes: quad
//             vector i lies in vector i / (8 / w), bits [i % (8 / w) * w, + w) of each byte, so that a shift
//             and a mask bring 64 codes into place. K: i = quad of channels, byte = token * 4 + channel % 4
//             V: i = 4 * (half of 16 channels) + quad of tokens, byte = channel % 16 * 4 + token % 4
//             Behind the codes: scales [groups][16 tokens], then offsets (biases, zeros) [groups][16 tokens].
//             Signed codes (turbo keys of 8 bits, q8_0) lie in memory plus 128.
//
// The channel past an odd dim of a bf16 K is zero. Loads of the last lanes of V may run past the plane; pages
// end with kReadSlack bytes for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/geometry.h"

namespace kvasir::kv {

inline constexpr int kBlockTokens = 16;
inline constexpr size_t kReadSlack = 128;

enum class PlaneRole : uint8_t { key, value };

// Plain facts, read by kernels of every instruction-set level.
struct PlaneFormat {
  PlaneCodec codec;
  PlaneRole role = PlaneRole::key;
  int dim = 0;                                 // channels
  int groups = 0;                              // scales per token; 0: plain
  int group = 0;                               // channels per scale
  bool has_offset = false;                     // affine biases, turbo-key zeros
  bool signed_codes = false;                   // bytes in two's complement; in memory plus 128
  int scale_size = 0;                          // bytes of a scale
  size_t code_bytes = 0;                       // of a block
  size_t scale_offset = 0, offset_offset = 0;  // bytes into a block
  size_t block_bytes = 0;

  // Canonical bytes of one token's row (kv-cache.md 2.1): codes (or plain elements), scales, offsets.
  size_t row_code_bytes = 0, row_scale_bytes = 0;
  size_t row_bytes() const { return row_code_bytes + row_scale_bytes * (has_offset ? 2 : 1); }

  bool plain() const { return groups == 0; }
};

// Throws Error{invalid_input} naming the reason when the codec cannot take `dim` channels.
PlaneFormat make_plane_format(const PlaneCodec& codec, PlaneRole role, int dim);

// The widths of the bit planes of a code, wide one first; the second is 0 when there is one plane only.
struct BitPlanes {
  int first;
  int second;
};
constexpr BitPlanes bit_planes(int bits) {
  return bits == 6   ? BitPlanes{4, 2}
         : bits == 5 ? BitPlanes{4, 1}
         : bits == 3 ? BitPlanes{2, 1}
                     : BitPlanes{bits, 0};
}

}  // namespace kvasir::kv
