// One row's part of a chunk, taken out of its storage format: codes one a byte, scales as stored. What the
// packer interleaves; internal to packing.
#pragma once

#include <cstdint>

#include "ops/matmul/compute_layout.h"

namespace kvasir::ops {

struct RowChunk {
  alignas(64)
      uint8_t codes[kChunkCols];    // unsigned codes (offset not subtracted), or plain bytes of 8-bit floats
  alignas(64) uint32_t dwords[32];  // trits and grids: the stored bytes
  // One level: scales[group] and minima[group] as their stored bits.
  uint32_t scales[16];
  uint32_t minima[16];  // of a layout with zero points: these, less its base
  // Two levels: sub-scales and sub-minima as their stored integers, d and dmin as f16 bits.
  uint8_t sub_scales[16];
  uint8_t sub_minima[16];
  uint16_t d;
  uint16_t dmin;
};

// Columns [col, col + cols) of a row of a source whose layout is `layout`; col is a multiple of kChunkCols
// from the first packed column, cols <= kChunkCols. Codes up to the next block boundary are zeroed.
void extract(const formats::WeightSource& source, const ComputeLayout& layout, int64_t row, int64_t col,
             int cols, RowChunk& out);

// Why the scales of an extracted chunk are not finite: the column of the first bad group, or -1 when all are.
int non_finite_column(const ComputeLayout& layout, int cols, const RowChunk& chunk);

}  // namespace kvasir::ops
