// Compute layouts: the few forms in which matmul reads weights.
//
// A weight [rows = out, cols = in] is cut into panels of 16 rows. A panel is cut into chunks of 256 columns,
// a chunk into blocks of 32 columns. Inside a chunk the 16 rows are interleaved, so that a vector of 16 lanes
// holds the same columns of 16 rows: lane r is row r, sums run along the columns inside a lane, and no sum
// ever crosses lanes. The order of a row's sum is therefore fixed by the weight alone.
//
// Codes of a block are bit planes of 64-byte vectors. A "quad" is 4 consecutive columns: byte 4 * lane + t is
// column 4 * quad + t of row `lane`, which is the operand form of the 8-bit dot products. A block has 8
// quads:
//   8 bits  8 vectors, one a quad
//   4 bits  4 vectors; vector i: low nibbles are quad i, high nibbles quad i + 4
//   2 bits  2 vectors; vector i: bit field f (2 bits) is quad 4 * i + f
//   1 bit   1 vector; bit q is quad q
// 3 bits are a 2- and a 1-bit plane, 5 bits a 4- and a 1-bit plane, 6 bits a 4- and a 2-bit plane (low bits
// first). Scales follow the codes of their chunk. Every format is re-arranged, never re-quantized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "formats/storage_format.h"

namespace kvasir::ops {

inline constexpr int kPanelRows = 16;
inline constexpr int kBlockCols = 32;
inline constexpr int kChunkCols = 256;

enum class CodeKind : uint8_t {
  f32,   // [col][16] f32
  f16,   // [col][16] f16
  bf16,  // [col pair][16][2] bf16
  e4m3,  // quads of 8-bit floats
  e5m2,
  codes,  // bit planes: value = (code - offset) * scale + minimum
  table,  // 4-bit planes, a code's value is looked up
  trits,  // five ternary digits a byte, as TQ1_0 stores them: 13 vectors [4 bytes of each row] a chunk
  grid,   // IQ1, IQ2, IQ3: dwords of the stored block, [dword][16]
};

enum class Table : uint8_t { none, iq4, e2m1_doubled, e2m1_signed_zero };

enum class ScaleKind : uint8_t {
  none,
  f16,  // [group][16] f16; minima, where there are any, after all scales in the same form
  bf16,
  f32,
  e8m0,        // [group][16] u8: 2^(x - 127)
  e8m0_half,   // 2^(x - 128), as GGUF's MXFP4
  e4m3_half,   // MLX's NVFP4, codes stored doubled: e4m3(x) / 2
  ue4m3_half,  // GGUF's NVFP4
  // Two levels, one super-block a chunk.
  k4,      // Q4_K, Q5_K: [3][16] u32 of 6-bit fields (8 scales, 8 minima), d [16] f16, dmin [16] f16
  k6,      // Q6_K: [16][16] i8, d [16] f16
  k2,      // Q2_K: [16][16] u8 (scale low nibble, minimum high nibble), d, dmin
  k3,      // Q3_K: [3][16] u32 of sixteen 6-bit fields, d
  iq4_xs,  // [16] u32 and [16] u16 of eight 6-bit fields, d
  grid,    // inside the grid's dwords, d [16] f16
};

struct ComputeLayout {
  CodeKind codes = CodeKind::f32;
  ScaleKind scales = ScaleKind::none;
  Table table = Table::none;
  formats::StorageFormat grid = formats::StorageFormat::f32;  // which IQ format, when codes == grid
  uint8_t bits = 32;                                          // of a code
  uint8_t offset = 0;                                         // subtracted from a code
  bool minima = false;                                        // value has a per-group addend
  // The addend is not stored but minus (zero_base + a stored integer of `bits` bits) times the scale: after
  // the scales, [group][16] u8, or of up to 4 bits [pair of groups][16] u8, the first in the low nibble.
  bool zeros = false;
  uint8_t zero_base = 0;
  int16_t group = 0;  // columns per (sub-)scale; 0: none

  bool operator==(const ComputeLayout&) const = default;
  // Integer kernels work on sub-blocks of 32 columns, or 16 where the scale is finer.
  int sub_block() const { return group == 16 ? 16 : 32; }
  bool integer() const {
    return codes == CodeKind::codes || codes == CodeKind::table || codes == CodeKind::trits ||
           codes == CodeKind::grid;
  }
};

// Throws Error{unsupported} for formats that hold no weights (integers, bool) and Error{corrupt_file} for
// columns that are no multiple of the block, naming the tensor.
ComputeLayout compute_layout(const formats::WeightSource& source);
std::string describe(const ComputeLayout& layout);  // "4-bit codes, f16 scales and minima per 32"

// Columns as stored: whole pairs for bf16, whole blocks for everything with codes, cols itself otherwise.
int64_t padded_cols(const ComputeLayout& layout, int64_t cols);
// Bytes of a chunk of `cols` (padded) columns, cols <= kChunkCols; and of a whole panel.
size_t code_bytes(const ComputeLayout& layout, int64_t cols);
size_t zero_bytes(const ComputeLayout& layout, int64_t cols);
size_t chunk_bytes(const ComputeLayout& layout, int64_t cols);
size_t panel_bytes(const ComputeLayout& layout, int64_t cols);

}  // namespace kvasir::ops
