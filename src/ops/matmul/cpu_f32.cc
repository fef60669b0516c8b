// f32 products: of f32 rows, or of bf16 rows widened, with weights expanded to f32 chunk by chunk.
#include "ops/matmul/kernel_base.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

#include "ops/matmul/tiles.h"

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 2;
#endif
constexpr int kPanels = 2;  // multiplied together

template <int P>
void run_tiles(const float* const* w, int cols, const uint8_t* x, size_t stride, int rows, float* acc) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows)
    f32_tile<kTileRows, P>(w, cols, x + stride * static_cast<size_t>(r), stride, acc + 16 * r, kRowBlock);
  if constexpr (kTileRows >= 8) {
    for (; r + 4 <= rows; r += 4)
      f32_tile<4, P>(w, cols, x + stride * static_cast<size_t>(r), stride, acc + 16 * r, kRowBlock);
    for (; r + 2 <= rows; r += 2)
      f32_tile<2, P>(w, cols, x + stride * static_cast<size_t>(r), stride, acc + 16 * r, kRowBlock);
  }
  for (; r < rows; ++r)
    f32_tile<1, P>(w, cols, x + stride * static_cast<size_t>(r), stride, acc + 16 * r, kRowBlock);
}

// Up to this many rows f16 weights go from the panel through a conversion into the multiply-adds; with more,
// a chunk is converted once for all of them.
constexpr int kFewF16Rows = 4;

template <int R, int P>
void f16_tile(const uint8_t* const* w, int cols, const float* x, float* acc) {
  Floats a[P][R];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) a[p][r] = load(acc + 16 * (p * kRowBlock + r));
#pragma GCC unroll 4
  for (int c = 0; c < cols; ++c) {
    for (int p = 0; p < P; ++p) {
      if (c % 2 == 0) request(w[p] + 32 * c);
      const Floats weight = load_f16x16(w[p] + 32 * c);
      for (int r = 0; r < R; ++r) a[p][r] = fma(weight, set1(x[kChunkCols * r + c]), a[p][r]);
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) store(acc + 16 * (p * kRowBlock + r), a[p][r]);
}

// x: f32 rows, kChunkCols apart.
template <int P>
void run_f16_tiles(const uint8_t* const* w, int cols, const float* x, int rows, float* acc) {
  for (int r = 0; r < rows;) {
    const int left = rows - r;
    const int step = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (step == 4) f16_tile<4, P>(w, cols, x + kChunkCols * r, acc + 16 * r);
    if (step == 2) f16_tile<2, P>(w, cols, x + kChunkCols * r, acc + 16 * r);
    if (step == 1) f16_tile<1, P>(w, cols, x + kChunkCols * r, acc + 16 * r);
    r += step;
  }
}

// Input rows of bf16 as f32, a chunk at a time.
void widen(const uint8_t* x, size_t stride, int rows, int cols, float* out) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; c += 16)
      store(out + kChunkCols * r + c, load_bf16x16(x + stride * static_cast<size_t>(r) + 2 * c));
}

template <bool kBf16Input>
void multiply(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
              int64_t row_end) {
  const KernelWeight& weight = call.weight;
  const bool direct = weight.layout.codes == CodeKind::f32;
  const bool few_f16 =
      kBf16Input && weight.layout.codes == CodeKind::f16 && row_end - row_begin <= kFewF16Rows;
  const int unit_panels = call.epilogue == Epilogue::none ? 1 : 2;
  const int64_t panel_end = unit_end * unit_panels;
  alignas(64) float acc[kPanels][kRowBlock][16];
  alignas(64) float values[kPanels][kChunkCols * kPanelRows];
  alignas(64) float widened[kBf16Input ? kRowBlock * kChunkCols : 1];
  for (int64_t panel = unit_begin * unit_panels; panel < panel_end; panel += kPanels) {
    const int panels = panel_end - panel >= 2 ? 2 : 1;
    for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
      const int rows = static_cast<int>(smaller(kRowBlock, row_end - row));
      __builtin_memset(acc, 0, sizeof acc);
      const uint8_t* data[kPanels] = {
          weight.data + static_cast<size_t>(panel) * weight.panel_stride,
          weight.data + static_cast<size_t>(panel + panels - 1) * weight.panel_stride};
      for (int64_t col = 0; col < weight.cols; col += kChunkCols) {
        // Columns that pad the weight are zero in it; the input need not have them.
        const int stored = static_cast<int>(smaller(kChunkCols, weight.cols - col));
        const int cols = static_cast<int>(smaller(kChunkCols, call.cols - col));
        if (few_f16) {
          const uint8_t* x = call.input + call.input_stride * static_cast<size_t>(row) + 2 * col;
          widen(x, call.input_stride, rows, (cols + 15) / 16 * 16, widened);
          if (panels == 2)
            run_f16_tiles<2>(data, cols, widened, rows, acc[0][0]);
          else
            run_f16_tiles<1>(data, cols, widened, rows, acc[0][0]);
          for (int p = 0; p < panels; ++p) data[p] += weight.chunk_stride;
          continue;
        }
        const float* w[kPanels];
        for (int p = 0; p < panels; ++p) {
          if (row == row_begin) request_chunk(data[p], weight.chunk_stride);
          if (direct) {
            w[p] = reinterpret_cast<const float*>(data[p]);
          } else {
            expand(weight, data[p], stored, values[p]);
            w[p] = values[p];
          }
          data[p] += weight.chunk_stride;
        }
        const uint8_t* x =
            call.input + call.input_stride * static_cast<size_t>(row) + (kBf16Input ? 2 : 4) * col;
        size_t stride = call.input_stride;
        if constexpr (kBf16Input) {
          widen(x, stride, rows, (cols + 15) / 16 * 16, widened);
          x = reinterpret_cast<const uint8_t*>(widened);
          stride = kChunkCols * 4;
        }
        if (panels == 2)
          run_tiles<2>(w, cols, x, stride, rows, acc[0][0]);
        else
          run_tiles<1>(w, cols, x, stride, rows, acc[0][0]);
      }
      if (unit_panels == 2) {
        finish_unit(call, panel / 2, row, rows, acc[0][0], acc[1][0]);
      } else {
        for (int p = 0; p < panels; ++p) finish_unit(call, panel + p, row, rows, acc[p][0], nullptr);
      }
    }
  }
}

}  // namespace

void matmul_f32(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                int64_t row_end) {
  multiply<false>(call, unit_begin, unit_end, row_begin, row_end);
}

void matmul_widened(const KernelCall& call, int64_t unit_begin, int64_t unit_end, int64_t row_begin,
                    int64_t row_end) {
  multiply<true>(call, unit_begin, unit_end, row_begin, row_end);
}

void unpack_lane(const KernelWeight& weight, int64_t panel, int lane, int64_t col_begin, int64_t count,
                 float* out) {
  alignas(64) float values[kChunkCols * kPanelRows];
  const int64_t col_end = col_begin + count;
  for (int64_t chunk = col_begin / kChunkCols; chunk * kChunkCols < col_end; ++chunk) {
    const int64_t first = chunk * kChunkCols;
    const int stored = static_cast<int>(smaller(kChunkCols, weight.cols - first));
    expand(weight,
           weight.data + static_cast<size_t>(panel) * weight.panel_stride +
               static_cast<size_t>(chunk) * weight.chunk_stride,
           stored, values);
    const int64_t begin = first < col_begin ? col_begin - first : 0;
    const int64_t end = smaller(stored, col_end - first);
    for (int64_t c = begin; c < end; ++c) out[first + c - col_begin] = values[16 * c + lane];
  }
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
