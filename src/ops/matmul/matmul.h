// out[row, o] = sum over k of input[row, k] * weight[o, k], and what may be fused onto it.
//
// Numerics, per element and independent of everything but the weight, its mode and the instruction-set level:
//   f32   acc = fma(w, x, acc) in ascending k (the generic level multiplies, then adds); w exact
//   bf16  as f32 with x rounded to bf16; bf16 weights in pairs of k on levels with a bf16 dot product
//   int8  per 32 columns: exact integer dot products, times the activation's scale, times the weight's, added
//         in ascending k; minima times the sum of the block's activations likewise
//   int16 as int8, twice: the sum of the codes, plus the sum of what they round away
// then, in this order: * tensor scale, + bias, activation function, + residual.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "ops/matmul/epilogue.h"
#include "ops/matmul/packed_matrix.h"
#include "ops/matmul/prepared_rows.h"

namespace kvasir::ops {

struct Matmul {
  PreparedRows input;  // cols == weight->cols()
  const PackedMatrix* weight = nullptr;
  float* out = nullptr;             // [input.rows, out columns]
  int64_t out_stride = 0;           // floats
  int64_t out_first = 0;            // the column that out[0] is: a piece may have memory of its own
  const float* bias = nullptr;      // [weight->rows()], in the order of the packed rows' parts
  const float* residual = nullptr;  // [input.rows, out columns], may be `out` itself
  int64_t residual_stride = 0;      // floats
  Epilogue epilogue = Epilogue::none;
  // Only these rows of the weight (an expert of a stack): multiples of 16 but for the matrix's end; out
  // column 0 is row weight_begin. {0, 0}: all. Stacked weights only.
  int64_t weight_begin = 0;
  int64_t weight_end = 0;
  // int16: rows of the weight, from the first, whole panels or all, that read only the codes of int8.
  int64_t coarse_rows = 0;
  IsaLevel isa = IsaLevel::generic;
};

// The share of `member` of `members`; all members must call it. Nothing is allocated, nothing throws;
// arguments are checked with check_matmul when a program is built.
void matmul(const Matmul& product, int member, int members);

// The same by pieces: units are 16 columns of the output each, the last one may be partial. Any division
// into [begin, end) gives the same bits.
int64_t matmul_units(const Matmul& product);
void matmul_piece(const Matmul& product, int64_t begin, int64_t end);

int64_t out_columns(const Matmul& product);

// KVASIR_CHECKs shapes and alignments; throws Error{unsupported} for int8 with a weight that has no integer
// form.
void check_matmul(const Matmul& product);

// Prepares rows [begin, end) of f32 input rows (`stride` floats apart) into `out` rows of
// prepared_row_bytes(cols, mode), `out_stride` bytes apart (int16: a multiple of 128). mode is not f32.
void prepare_activations(ActivationMode mode, const float* input, int64_t stride, int64_t cols, int64_t begin,
                         int64_t end, std::byte* out, size_t out_stride, IsaLevel isa);

// The same of columns [col_begin, col_end) of `rows` rows, which alone are at `input`; col_begin is a
// multiple of 32, col_end too or the row's end. Any division of a row gives the same bytes.
void prepare_columns(ActivationMode mode, const float* input, int64_t stride, int64_t cols, int64_t col_begin,
                     int64_t col_end, int64_t rows, std::byte* out, size_t out_stride, IsaLevel isa);

}  // namespace kvasir::ops
