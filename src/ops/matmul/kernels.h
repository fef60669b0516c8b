// The functions that exist once per instruction-set level, and the plain structs that they take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "ops/matmul/compute_layout.h"
#include "ops/matmul/epilogue.h"

namespace kvasir::ops {

class PackedMatrix;
struct ActivationKernels;

// What a kernel must know of a packed weight.
struct KernelWeight {
  ComputeLayout layout;
  const uint8_t* data = nullptr;  // panel 0
  size_t panel_stride = 0;
  size_t chunk_stride = 0;       // bytes of a whole chunk
  int64_t cols = 0;              // padded
  size_t chunk_codes = 0;        // bytes of a whole chunk's codes
  const int8_t* grid = nullptr;  // rows of the grid table
};

struct KernelCall {
  KernelWeight weight;
  const uint8_t* input = nullptr;  // prepared rows
  size_t input_stride = 0;         // bytes; int8: from plane to plane
  int planes = 1;                  // int8: input rows whose sums are added to one output row
  int64_t cols = 0;                // unpadded columns of the input
  float* out = nullptr;
  int64_t out_stride = 0;          // floats
  int64_t out_first = 0;           // column of the product that out[0] is
  const float* bias = nullptr;     // of panel row 0; interleaved: gate's
  const float* bias_up = nullptr;  // interleaved: up's
  const float* residual = nullptr;
  int64_t residual_stride = 0;
  float tensor_scale = 1.0f;     // interleaved: gate's
  float tensor_scale_up = 1.0f;  // interleaved: up's
  int64_t out_cols = 0;          // real output columns: the last panel may be partial
  Epilogue epilogue = Epilogue::none;
  const ActivationKernels* activation = nullptr;  // what the epilogue calls
  // Few rows: lines of codes are requested once, not in two steps, and lines of bf16, read as four streams,
  // not at all. Measured: 7 to 17% faster on AMD's family 26, slower on Intel's.
  bool one_request = false;
};

// Rows [row_begin, row_end) (int8: planes, `planes` of them a row) against units [unit_begin, unit_end): a
// unit is a panel, or a pair of panels when the epilogue combines gate and up.
using MatmulFunction = void (*)(const KernelCall& call, int64_t unit_begin, int64_t unit_end,
                                int64_t row_begin, int64_t row_end);

// Columns [begin, end) of rows of `cols`, rounded; begin is a multiple of 32, end too or cols.
struct PrepareCall {
  const float* input;  // column begin of the first row
  int64_t stride;      // floats
  int64_t rows;
  int64_t begin, end, cols;
  uint8_t* out;  // the first prepared row
  size_t out_stride;
};

struct MatmulKernels {
  MatmulFunction f32;   // f32 input rows
  MatmulFunction bf16;  // bf16 input rows
  MatmulFunction int8;  // int8 input rows; integer layouts only
  void (*prepare_bf16)(const PrepareCall& call);
  void (*prepare_int8)(const PrepareCall& call);
  void (*prepare_int16)(const PrepareCall& call);
  void (*unpack_lane)(const KernelWeight& weight, int64_t panel, int lane, int64_t col_begin, int64_t count,
                      float* out);
};

KVASIR_KERNEL_TABLE(MatmulKernels, matmul_kernels)

KernelWeight kernel_weight(const PackedMatrix& matrix);

}  // namespace kvasir::ops
