// Encoders: one token's vector of one head into its slot of a block. Compiled once per instruction-set level
// for speed; the bytes are the same on all of them (IEEE f32 in the order of kv-cache.md 3, no contraction).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "kv/codecs/plane.h"

namespace kvasir::kv {

// One token's row of one plane, taken apart.
inline constexpr int kMaxCodecDim = 1024;  // quantized planes
struct TokenCodes {
  uint8_t codes[kMaxCodecDim];         // low `bits` bits; signed ones in two's complement
  uint32_t scales[kMaxCodecDim / 32];  // stored bit patterns
  uint32_t offsets[kMaxCodecDim / 32];
};

struct CodecKernels {
  // x [format.dim] f32 of any values; rounded to the plain dtype first, then encoded.
  void (*append)(const PlaneFormat& format, std::byte* block, int slot, const float* x);
  // The same for quantized planes, without writing a block.
  void (*encode)(const PlaneFormat& format, const float* x, TokenCodes& out);
};
KVASIR_KERNEL_TABLE(CodecKernels, codec_kernels)

}  // namespace kvasir::kv
