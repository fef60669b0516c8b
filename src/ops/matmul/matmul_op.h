// The ops that models record: rounding inputs, products, and rows of an embedding.
//
//   ValueId xq = prepare_activations(builder, x, mode, isa);          // once for all products that read x
//   ValueId qkv = matmul(builder, xq, mode, qkv_weight, {}, isa);     // [axis, out] f32
#pragma once

#include <optional>
#include <string>

#include "ops/matmul/matmul.h"
#include "program/program.h"

namespace kvasir::ops {

// x [axis, cols] f32 -> u8 [axis, prepared_row_bytes(cols, mode)]; with mode f32 x itself, nothing is
// recorded.
program::ValueId prepare_activations(program::ProgramBuilder& builder, program::ValueId x,
                                     ActivationMode mode, IsaLevel isa);

// What a recorded prepare_activations does, for rewrites; empty for any other op.
struct RecordedPrepare {
  ActivationMode mode = ActivationMode::f32;
  int64_t cols = 0;
  IsaLevel isa = IsaLevel::generic;
};
std::optional<RecordedPrepare> recorded_prepare(const program::Op& op);

struct MatmulOptions {
  std::string name = "product";              // of the result
  std::vector<int64_t> inner;                // its axes, for dumps; empty: {out columns}
  const float* bias = nullptr;               // [weight.rows()], must outlive the program
  std::optional<program::ValueId> residual;  // [axis, out columns] f32, added last
  Epilogue epilogue = Epilogue::none;
  int64_t weight_begin = 0;  // a range of the weight's rows (matmul.h)
  int64_t weight_end = 0;
};

// x as prepare_activations gave it for `mode` -> [axis, out columns] f32. The weight must outlive the
// program.
program::ValueId matmul(program::ProgramBuilder& builder, program::ValueId x, ActivationMode mode,
                        const PackedMatrix& weight, const MatmulOptions& options, IsaLevel isa);

// One row a token, times its tensor scale, times `scale`: [tokens, table.cols()] f32. Token ids are the
// step's; a negative id takes a row of StepState::external_embeddings as it is.
program::ValueId gather_rows(program::ProgramBuilder& builder, const PackedMatrix& table, float scale,
                             IsaLevel isa);

}  // namespace kvasir::ops
