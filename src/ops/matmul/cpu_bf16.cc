// bf16 rows against bf16 weights: read straight from the packed panels, several at once so that enough sums
// are in flight to hide the latency of the dot product.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

void matmul_widened(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                    int64_t row_end);

namespace {

#include "ops/matmul/tiles.h"

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 2;
#endif
constexpr int kPanels = 4;

// The first tile asks for the lines at `next`, where that is not null.
template <int R, int P>
void run_tile(const uint8_t* const* w, int pairs, const uint8_t* x, size_t stride, int& row, float* acc,
              bool requests, const uint8_t* const* next) {
  x += stride * static_cast<size_t>(row);
  acc += 16 * row;
  if (P <= 2 && row == 0 && next != nullptr)
    bf16_tile<R, P, P <= 2>(w, pairs, x, stride, acc, kRowBlock, requests, next);
  else
    bf16_tile<R, P, false>(w, pairs, x, stride, acc, kRowBlock, requests, nullptr);
  row += R;
}
template <int P>
void run_tiles(const uint8_t* const* w, int pairs, const uint8_t* x, size_t stride, int rows, float* acc,
               bool requests, const uint8_t* const* next) {
  int r = 0;
  if constexpr (P <= 2)
    while (r + kTileRows <= rows) run_tile<kTileRows, P>(w, pairs, x, stride, r, acc, requests, next);
  if constexpr (kTileRows >= 8) {
    while (r + 4 <= rows) run_tile<4, P>(w, pairs, x, stride, r, acc, requests, next);
    while (r + 2 <= rows) run_tile<2, P>(w, pairs, x, stride, r, acc, requests, next);
  }
  while (r < rows) run_tile<1, P>(w, pairs, x, stride, r, acc, requests, next);
}

}  // namespace

void matmul_bf16(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                 int64_t row_end) {
  const KernelWeight& weight = call.weight;
  if (weight.layout.codes != CodeKind::bf16)
    return matmul_widened(call, unit_begin, unit_end, row_begin, row_end);
  const int unit_panels = call.epilogue == Epilogue::none ? 1 : 2;
  const int64_t panel_end = unit_end * unit_panels;
  // Few rows: four panels, else two and more rows.
  const int most = row_end - row_begin <= 4 ? kPanels : 2;
  const bool requests = !call.one_request;
  alignas(64) float acc[kPanels][kRowBlock][16];
  for (int64_t panel = unit_begin * unit_panels; panel < panel_end;) {
    const int64_t left = panel_end - panel;
    const int panels = left >= most ? most : left >= 2 ? 2 : 1;
    for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
      const int rows = static_cast<int>(smaller(kRowBlock, row_end - row));
      for (int p = 0; p < panels; ++p) __builtin_memset(acc[p], 0, static_cast<size_t>(rows) * 64);
      const uint8_t* w[kPanels];
      for (int p = 0; p < panels; ++p)
        w[p] = weight.data + static_cast<size_t>(panel + p) * weight.panel_stride;
      for (int64_t col = 0; col < weight.cols; col += kChunkCols) {
        const int pairs = static_cast<int>(smaller(kChunkCols, weight.cols - col)) / 2;
        const uint8_t* x = call.input + call.input_stride * static_cast<size_t>(row) + 2 * col;
        // Many rows of the first block: the next chunk, after the last one the first of the panels that come
        // next.
        const size_t here = static_cast<size_t>(col / kChunkCols) * weight.chunk_stride;
        const size_t on = col + kChunkCols < weight.cols
                              ? weight.chunk_stride
                              : static_cast<size_t>(panels) * weight.panel_stride - here;
        const uint8_t* chunks[kPanels];
        for (int p = 0; p < panels; ++p) chunks[p] = w[p] + on;
        const uint8_t* const* next = most == 2 && row == row_begin ? chunks : nullptr;
        switch (panels) {
          case 4:
            run_tiles<4>(w, pairs, x, call.input_stride, rows, acc[0][0], requests, next);
            break;
          case 2:
            run_tiles<2>(w, pairs, x, call.input_stride, rows, acc[0][0], requests, next);
            break;
          default:
            run_tiles<1>(w, pairs, x, call.input_stride, rows, acc[0][0], requests, next);
        }
        for (int p = 0; p < panels; ++p) w[p] += weight.chunk_stride;
      }
      for (int p = 0; p < panels; p += unit_panels)
        finish_unit(call, (panel + p) / unit_panels, row, rows, acc[p][0],
                    unit_panels == 2 ? acc[p + 1][0] : nullptr);
    }
    panel += panels;
  }
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
