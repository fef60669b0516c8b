// int8 activations: panel by panel, a chunk's codes are unpacked once and multiplied with a block of rows.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

#include "ops/matmul/tiles.h"

using Tile = void (*)(const CodeChunk& w, int blocks, const Int8Row& x, int offset, float* acc);

// Tiles of 8, 4, 2 and 1 rows; levels with few registers stop at 2.
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 2;
#endif

struct Tiles {
  Tile rows8, rows4, rows2, rows1;
};
template <int kSub, bool kMinima, bool kWide>
constexpr Tiles make_tiles() {
  return {kTileRows >= 8 ? int8_tile<kTileRows, kSub, kMinima, kWide> : nullptr,
          kTileRows >= 8 ? int8_tile<kTileRows / 2, kSub, kMinima, kWide> : nullptr,
          int8_tile<2, kSub, kMinima, kWide>, int8_tile<1, kSub, kMinima, kWide>};
}
constexpr Tiles kTiles[8] = {make_tiles<32, false, false>(), make_tiles<32, true, false>(),
                             make_tiles<16, false, false>(), make_tiles<16, true, false>(),
                             make_tiles<32, false, true>(),  make_tiles<32, true, true>(),
                             make_tiles<16, false, true>(),  make_tiles<16, true, true>()};

}  // namespace

void matmul_int8(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end) {
  const KernelWeight& weight = call.weight;
  const ComputeLayout& layout = weight.layout;
  const bool wide = kSignedWide && wide_codes(layout);
  const int offset = static_cast<int>(layout.offset) - (wide ? 128 : 0);
  const Tiles& tiles = kTiles[(layout.minima ? 1 : 0) + (layout.group == 16 ? 2 : 0) + (wide ? 4 : 0)];
  const int panels = call.epilogue == Epilogue::none ? 1 : 2;
  const size_t scales = int8_scales_offset(call.cols), sums = int8_sums_offset(call.cols),
               code_sums = int8_code_sums_offset(call.cols);
  alignas(64) float acc[2][kRowBlock][16];
  CodeChunk chunk;
  for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
    for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
      const int rows = static_cast<int>(smaller(kRowBlock, row_end - row));
      for (int p = 0; p < panels; ++p) {
        const uint8_t* data = weight.data + static_cast<size_t>(unit * panels + p) * weight.panel_stride;
        __builtin_memset(acc[p], 0, static_cast<size_t>(rows) * 64);
        for (int64_t col = 0; col < weight.cols; col += kChunkCols, data += weight.chunk_stride) {
          const int cols = static_cast<int>(smaller(kChunkCols, weight.cols - col));
          const int blocks = cols / kBlockCols;
          unpack_codes(layout, data, blocks, false, chunk.codes);
          if (wide) {
            const Bytes top = set1_byte(0x80);
            for (int q = 0; q < 8 * blocks; ++q) store(chunk.codes[q], bit_xor(load(chunk.codes[q]), top));
          }
          unpack_scales(layout, data + code_bytes_of(layout, cols), cols, chunk);
          const uint8_t* x = call.input + call.input_stride * static_cast<size_t>(row);
          const auto block = static_cast<size_t>(col / kBlockCols);
          Int8Row input{x + col, x + scales + 4 * block, x + sums + 4 * block, x + code_sums + 4 * block,
                        call.input_stride};
          for (int r = 0; r < rows;) {
            const int left = rows - r;
            const int step = left >= kTileRows             ? kTileRows
                             : left >= 4 && kTileRows >= 8 ? 4
                             : left >= 2                   ? 2
                                                           : 1;
            const Tile tile = step == 8   ? tiles.rows8
                              : step == 4 ? tiles.rows4
                              : step == 2 ? tiles.rows2
                                          : tiles.rows1;
            tile(chunk, blocks, input, offset, acc[p][r]);
            const size_t skip = call.input_stride * static_cast<size_t>(step);
            input.codes += skip;
            input.scales += skip;
            input.sums += skip;
            input.code_sums += skip;
            r += step;
          }
        }
      }
      finish_unit(call, unit, row, rows, acc[0][0], acc[1][0]);
    }
  }
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
