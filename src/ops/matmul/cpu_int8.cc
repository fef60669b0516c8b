// int8 activations. Few rows: codes go from memory to the dot products. More rows: a chunk of a pair of
// panels is multiplied with a block of rows, in tiles; for many of them it is unpacked first.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

bool multiply_few_rows(const KernelCall& call, int64_t panel, const uint8_t* input, int rows, float* acc);

namespace {

#include "ops/matmul/tiles.h"

using Tile = void (*)(const CodeChunk* w, const uint8_t* const* packed, int blocks, const Int8Row& x,
                      int offset, float* acc, int acc_rows, Ahead& ahead);

// Sums in flight are rows * panels (twice that with two scales a block): sixteen measure best of 8 to 24 with
// 32 registers. Where a chunk is multiplied with no more than kDirectRows rows, its codes are not unpacked
// first: that costs more than taking them apart once a tile (up to 24 rows 5 to 16% on AMD's family 26; of
// 512 rows unpacked ones are 4% faster).
#if defined(__AVX512F__)
constexpr int kPanels = 2;
constexpr int kRows32 = 8, kRows16 = 7;
constexpr int kDirectRows = 24;
#else
constexpr int kPanels = 1;
constexpr int kRows32 = 2, kRows16 = 2;
constexpr int kDirectRows = 0;
#endif

struct Tiles {
  Tile most, four, two, one;
  int most_rows;
};
template <int kSub, bool kMinima, bool kWide, int kBits = 0, Table kTable = Table::none>
constexpr Tiles make_tiles() {
  constexpr int kMost = kSub == 16 ? kRows16 : kRows32;
  constexpr int kFour = kMost < 4 ? kMost : 4;
  constexpr Tile most = int8_tile<kMost, kPanels, kSub, kMinima, kWide, kBits, kTable>;
  constexpr Tile four = int8_tile<kFour, kPanels, kSub, kMinima, kWide, kBits, kTable>;
  constexpr Tile two = int8_tile<2, kPanels, kSub, kMinima, kWide, kBits, kTable>;
  constexpr Tile one = int8_tile<1, kPanels, kSub, kMinima, kWide, kBits, kTable>;
  return {most, four, two, one, kMost};
}
// Wide codes need a form of their own only where they are signed.
constexpr Tiles kTiles[8] = {make_tiles<32, false, false>(),       make_tiles<32, true, false>(),
                             make_tiles<16, false, false>(),       make_tiles<16, true, false>(),
                             make_tiles<32, false, kSignedWide>(), make_tiles<32, true, kSignedWide>(),
                             make_tiles<16, false, kSignedWide>(), make_tiles<16, true, kSignedWide>()};

// Tiles that read packed codes; null where a layout has none.
const Tiles* find_direct(const ComputeLayout& layout) {
#if defined(__AVX512F__)
  static constexpr Tiles kBits4[2] = {make_tiles<32, false, false, 4>(), make_tiles<32, true, false, 4>()};
  static constexpr Tiles kBits5[2] = {make_tiles<32, false, false, 5>(), make_tiles<32, true, false, 5>()};
  static constexpr Tiles kBits8[2] = {make_tiles<32, false, false, 8>(), make_tiles<32, true, false, 8>()};
  static constexpr Tiles kIq4 = make_tiles<32, false, false, 4, Table::iq4>();
  static constexpr Tiles kE2m1 = make_tiles<32, false, false, 4, Table::e2m1_doubled>();
  static_assert(!kSignedWide);
  if (layout.group == 16) return nullptr;
  if (layout.codes == CodeKind::table) return layout.table == Table::iq4 ? &kIq4 : &kE2m1;
  if (layout.codes != CodeKind::codes) return nullptr;
  if (layout.bits == 4) return &kBits4[layout.minima ? 1 : 0];
  if (layout.bits == 5) return &kBits5[layout.minima ? 1 : 0];
  if (layout.bits == 8) return &kBits8[layout.minima ? 1 : 0];
#else
  (void)layout;
#endif
  return nullptr;
}

// What is requested while the chunk of column `col` is multiplied with `tiles` tiles of rows: as many lines
// of its panels as it has, so far on; after a panel's last line come those of the one kPanels further on, its
// partner being read already.
Ahead request_from(const KernelWeight& weight, const uint8_t* const* panels, int64_t col, int cols, int tiles,
                   bool one_request) {
  const size_t distance = one_request ? kOneAhead : kFarAhead;
  const size_t here = static_cast<size_t>(col / kChunkCols) * weight.chunk_stride;
  const size_t rest = weight.panel_stride - here;
  size_t from = here + distance;
  size_t skipped = 0;
  while (from >= weight.panel_stride) {
    from -= weight.panel_stride;
    skipped += kPanels;
  }
  Ahead ahead;
  for (int p = 0; p < 2; ++p)
    ahead.at[p] = panels[p < kPanels ? p : 0] + skipped * weight.panel_stride + from;
  ahead.jump = (kPanels - 1) * weight.panel_stride;
  ahead.until_jump = static_cast<int>((weight.panel_stride - from) / 64);
  if (!one_request) ahead.nearer = panels[0] + here + kNearAhead - ahead.at[0];
  ahead.left = static_cast<int>((rest < weight.chunk_stride ? rest : weight.chunk_stride) / 64);
  ahead.lines = ahead.left / (cols / kBlockCols * tiles) + 1;
  return ahead;
}

void unpack_code_chunk(const KernelWeight& weight, const uint8_t* data, int cols, bool make_signed,
                       CodeChunk& out) {
  const int blocks = cols / kBlockCols;
  unpack_codes(weight, data, blocks, false, out.codes);
  if (make_signed) {
    const Bytes top = set1_byte(0x80);
    for (int q = 0; q < 8 * blocks; ++q) store(out.codes[q], bit_xor(load(out.codes[q]), top));
  }
}

}  // namespace

void matmul_int8(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end) {
  const KernelWeight& weight = call.weight;
  const ComputeLayout& layout = weight.layout;
  const bool make_signed = kSignedWide && wide_codes(layout);
  const int offset = static_cast<int>(layout.offset) - (make_signed ? 128 : 0);
  const Tiles& unpacked =
      kTiles[(layout.minima ? 1 : 0) + (layout.group == 16 ? 2 : 0) + (make_signed ? 4 : 0)];
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

  if (row_end - row_begin <= (layout.group == 16 ? kFewRows16 : kFewRows)) {
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
    const Tiles* direct = rows <= kDirectRows ? find_direct(layout) : nullptr;
    const Tiles& tiles = direct != nullptr ? *direct : unpacked;
    for (int64_t panel = unit_begin * unit_panels; panel < panel_end; panel += 2) {
      const int panels = panel_end - panel >= 2 ? 2 : 1;
      for (int p = 0; p < panels; ++p) __builtin_memset(acc[p], 0, static_cast<size_t>(rows) * 64);
      for (int first = 0; first < panels; first += kPanels) {
        const uint8_t* begin[kPanels];
        // A last panel without a partner is its own: the second sums are never looked at.
        for (int p = 0; p < kPanels; ++p)
          begin[p] =
              weight.data + static_cast<size_t>(first + p < panels ? panel + first + p : panel + first) *
                                weight.panel_stride;
        for (int64_t col = 0; col < weight.cols; col += kChunkCols) {
          const int cols = static_cast<int>(smaller(kChunkCols, weight.cols - col));
          const uint8_t* packed[kPanels];
          for (int p = 0; p < kPanels; ++p) {
            packed[p] = begin[p] + static_cast<size_t>(col / kChunkCols) * weight.chunk_stride;
            if (direct == nullptr) unpack_code_chunk(weight, packed[p], cols, make_signed, chunks[p]);
            unpack_scales(weight, packed[p], cols, chunks[p]);
          }
          Ahead ahead;
          if (row == row_begin)
            ahead = request_from(weight, begin, col, cols, (rows + tiles.most_rows - 1) / tiles.most_rows,
                                 call.one_request);
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
            tile(chunks, packed, cols / kBlockCols, input, offset, acc[first][r], kInt8RowBlock, ahead);
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
