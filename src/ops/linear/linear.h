// Matrix products and embedding lookups as ops of a program; the arithmetic is ops/matmul's (matmul.h,
// packed_matrix.h).
//
//   embed     StepState.token_ids -> [tokens, hidden] f32: rows of a packed table (times its tensor scale),
//   or of the step's
//             external embeddings where an id is negative
//   prepare   x [axis, cols] f32 -> rows rounded as an activation mode wants them: once, for every product
//   that reads x linear    y [axis, out] f32: the parts' products side by side, each with its bias and
//   activation function;
//             with a residual, y = residual + that
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/isa.h"
#include "ops/matmul/matmul.h"
#include "program/program.h"

namespace kvasir::ops {

// Weights must outlive the program. While a program is only planned, `weight` may be empty (not packed yet):
// sizes come from the other fields alone.
struct LinearPart {
  const PackedMatrix* weight = nullptr;
  int64_t columns =
      0;  // of the output: the weight's rows, half of them with an epilogue that combines gate and up
  ActivationMode mode = ActivationMode::f32;
  Epilogue epilogue = Epilogue::none;
  const float* bias = nullptr;  // [weight rows], or null
  int64_t coarse_rows = 0;      // Matmul::coarse_rows
};

struct LinearInput {
  program::ValueId x;  // f32 [axis, cols]
  std::map<ActivationMode, program::ValueId>
      prepared;  // its forms (matmul_op.h), as the parts' modes need them
};

program::ValueId linear(program::ProgramBuilder& builder, const std::string& name, const LinearInput& input,
                        const std::vector<LinearPart>& parts, std::optional<program::ValueId> residual,
                        IsaLevel isa);

// What a recorded linear computes, for the op itself and for rewrites that put another one in its place.
struct RecordedLinear {
  struct Part {
    LinearPart part;
    size_t input = 0;   // index of the op's input that it reads
    int64_t first = 0;  // first output column
  };
  std::vector<Part> parts;
  bool has_residual = false;  // the op's last input
  int64_t cols = 0;
  IsaLevel isa = IsaLevel::generic;

  // Units of a piece that a member takes at a time, of `units` in all: a sixteenth of its share, whole pairs
  // of panels, and not less than is worth taking (16 KiB of weights).
  int64_t piece_units(int64_t units, int members) const;
  std::string describe() const;
  program::OpCost cost(int64_t rows) const;
  // One part's product in a step of `rows` rows, without a place for its results: the caller gives `out`,
  // `out_stride` and `out_first` in the columns of the part.
  Matmul product(const program::OpContext& context, const std::vector<program::ValueId>& inputs,
                 const Part& part, int64_t rows) const;
};
// A piece of a product whose results are used up at once: computed for kPieceRows rows at a time, each block
// to product.out, then done(first row, rows).
inline constexpr int64_t kPieceRows = 128;
template <typename Done>
void matmul_piece_by_rows(Matmul product, int64_t begin, int64_t end, Done&& done) {
  const PreparedRows all = product.input;
  for (int64_t row = 0; row < all.rows; row += kPieceRows) {
    product.input.data = all.data + static_cast<size_t>(row) * all.stride;
    product.input.rows = all.rows - row < kPieceRows ? all.rows - row : kPieceRows;
    matmul_piece(product, begin, end);
    done(row, product.input.rows);
  }
}
std::optional<RecordedLinear> recorded_linear(const program::Op& op);  // empty for any other op

}  // namespace kvasir::ops
