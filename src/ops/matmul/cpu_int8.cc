// int8 activations. Few rows: codes go from memory to the dot products. Many rows: a chunk of a pair of
// panels is unpacked once and multiplied with a block of rows.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

bool multiply_few_rows(const KernelCall& call, int64_t panel, const uint8_t* input, int rows, float* acc);

namespace {

#include "ops/matmul/tiles.h"

using Tile = void (*)(const CodeChunk* w, int blocks, const Int8Row& x, int offset, float* acc, int acc_rows,
                      Ahead& ahead);

// Sums in flight are rows * panels (twice that with two scales a block): sixteen measure best of 8 to 24 with
// 32 registers.
#if defined(__AVX512F__)
constexpr int kPanels = 2;
constexpr int kRows32 = 8, kRows16 = 7;
#else
constexpr int kPanels = 1;
constexpr int kRows32 = 2, kRows16 = 2;
#endif

struct Tiles {
  Tile most, four, two, one;
  int most_rows;
};
template <int kSub, bool kMinima, bool kWide>
constexpr Tiles make_tiles() {
  constexpr int kMost = kSub == 16 ? kRows16 : kRows32;
  constexpr int kFour = kMost < 4 ? kMost : 4;
  constexpr Tile most = int8_tile<kMost, kPanels, kSub, kMinima, kWide>;
  constexpr Tile four = int8_tile<kFour, kPanels, kSub, kMinima, kWide>;
  constexpr Tile two = int8_tile<2, kPanels, kSub, kMinima, kWide>;
  constexpr Tile one = int8_tile<1, kPanels, kSub, kMinima, kWide>;
  return {most, four, two, one, kMost};
}
// Wide codes need a form of their own only where they are signed.
constexpr Tiles kTiles[8] = {make_tiles<32, false, false>(),       make_tiles<32, true, false>(),
                             make_tiles<16, false, false>(),       make_tiles<16, true, false>(),
                             make_tiles<32, false, kSignedWide>(), make_tiles<32, true, kSignedWide>(),
                             make_tiles<16, false, kSignedWide>(), make_tiles<16, true, kSignedWide>()};

void unpack_chunk(const KernelWeight& weight, const uint8_t* data, int cols, bool make_signed,
                  CodeChunk& out) {
  const int blocks = cols / kBlockCols;
  unpack_codes(weight, data, blocks, false, out.codes);
  if (make_signed) {
    const Bytes top = set1_byte(0x80);
    for (int q = 0; q < 8 * blocks; ++q) store(out.codes[q], bit_xor(load(out.codes[q]), top));
  }
  unpack_scales(weight, data, cols, out);
}

}  // namespace

void matmul_int8(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end) {
  const KernelWeight& weight = call.weight;
  const ComputeLayout& layout = weight.layout;
  const bool make_signed = kSignedWide && wide_codes(layout);
  const int offset = static_cast<int>(layout.offset) - (make_signed ? 128 : 0);
  const Tiles& tiles = kTiles[(layout.minima ? 1 : 0) + (layout.group == 16 ? 2 : 0) + (make_signed ? 4 : 0)];
  const int unit_panels = call.epilogue == Epilogue::none ? 1 : 2;
  const int64_t panel_end = unit_end * unit_panels;
  const size_t scales = int8_scales_offset(call.cols), sums = int8_sums_offset(call.cols),
               code_sums = int8_code_sums_offset(call.cols);
  alignas(64) float acc[2][kInt8RowBlock][16];
  CodeChunk chunks[kPanels];

  const auto finish = [&](int64_t panel, int panels, int64_t row, int rows) {
    if (call.planes == 2) {
      row /= 2;
      rows /= 2;
      for (int p = 0; p < (unit_panels == 2 ? 2 : panels); ++p)
        for (int r = 0; r < rows; ++r) store(acc[p][r], add(load(acc[p][2 * r]), load(acc[p][2 * r + 1])));
    }
    if (unit_panels == 2) {
      finish_unit(call, panel / 2, row, rows, acc[0][0], acc[1][0]);
    } else {
      for (int p = 0; p < panels; ++p) finish_unit(call, panel + p, row, rows, acc[p][0], nullptr);
    }
  };

  if (row_end - row_begin <= kFewRows) {
    const uint8_t* x = call.input + call.input_stride * static_cast<size_t>(row_begin);
    const int rows = static_cast<int>(row_end - row_begin);
    int64_t panel = unit_begin * unit_panels;
    for (; panel < panel_end; panel += unit_panels) {
      bool done = multiply_few_rows(call, panel, x, rows, acc[0][0]);
      if (unit_panels == 2) done = done && multiply_few_rows(call, panel + 1, x, rows, acc[1][0]);
      if (!done) break;
      finish(panel, 1, row_begin, rows);
    }
    if (panel >= panel_end) return;  // else: a layout without such a kernel
  }

  // A piece's panels stay in the second-level cache from one block of rows to the next; so does the block.
  for (int64_t row = row_begin; row < row_end; row += kInt8RowBlock) {
    const int rows = static_cast<int>(smaller(kInt8RowBlock, row_end - row));
    for (int64_t panel = unit_begin * unit_panels; panel < panel_end; panel += 2) {
      const int panels = panel_end - panel >= 2 ? 2 : 1;
      __builtin_memset(acc, 0, sizeof acc);
      for (int first = 0; first < panels; first += kPanels) {
        for (int64_t col = 0; col < weight.cols; col += kChunkCols) {
          const int cols = static_cast<int>(smaller(kChunkCols, weight.cols - col));
          Ahead ahead = {};
          for (int p = 0; p < kPanels; ++p) {
            // A last panel without a partner is its own: the second sums are never looked at.
            const int64_t index = first + p < panels ? panel + first + p : panel + first;
            const uint8_t* data = weight.data + static_cast<size_t>(index) * weight.panel_stride +
                                  static_cast<size_t>(col / kChunkCols) * weight.chunk_stride;
            ahead.at[p] = data;
            unpack_chunk(weight, data, cols, make_signed, chunks[p]);
          }
          if (row == row_begin) {
            if (kPanels == 1) ahead.at[1] = ahead.at[0];
            ahead.end = ahead.at[0] + weight.chunk_stride;
            const int tiles_to_come = (rows + tiles.most_rows - 1) / tiles.most_rows;
            ahead.lines = static_cast<int>(weight.chunk_stride / 64) / (8 * tiles_to_come) + 1;
          }
          const uint8_t* x = call.input + call.input_stride * static_cast<size_t>(row);
          const auto block = static_cast<size_t>(col / kBlockCols);
          Int8Row input{x + col, x + scales + 4 * block, x + sums + 4 * block, x + code_sums + 4 * block,
                        call.input_stride};
          for (int r = 0; r < rows;) {
            const int left = rows - r;
            const int step = left >= tiles.most_rows ? tiles.most_rows : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            const Tile tile = step == tiles.most_rows ? tiles.most
                              : step == 4             ? tiles.four
                              : step == 2             ? tiles.two
                                                      : tiles.one;
            tile(chunks, cols / kBlockCols, input, offset, acc[first][r], kInt8RowBlock, ahead);
            input.advance(step);
            r += step;
          }
        }
      }
      finish(panel, panels, row, rows);
    }
  }
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
