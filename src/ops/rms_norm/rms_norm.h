// y = x / sqrt(mean(x^2) + epsilon) * gain, over the last axis.
//
//   x [axis, vectors, width] f32  ->  y [axis, vectors, width] f32
//
// One vector is the whole row (vectors = 1: a layer's norm; also the "full" norm of a q or k projection) or
// one head of it (vectors = heads, width = head_dim: the q/k norm). A row's vectors may be cut into segments
// with gains of their own, so that q and k, side by side in a fused projection, are normed by one op.
//
// Numerics: everything in f32. The sum of squares of a vector is kept in 4 x lanes partial sums, filled in
// ascending order, then added pairwise: one order per instruction-set level, the same for every row. The
// scale 1 / sqrt(mean + epsilon) is a correctly rounded square root and division, and multiplies x before the
// gain does. A vector is computed by one member.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

struct RmsNormKernels {
  // gain may be null (no gain); offset is added to each gain in f32 (1 for "plus one" gains).
  void (*vector)(const float* x, const float* gain, float offset, float* y, int64_t width, float epsilon);
};
KVASIR_KERNEL_TABLE(RmsNormKernels, rms_norm_kernels)

struct RmsNormGain {
  int64_t vectors = 1;          // how many consecutive vectors of the row use it
  const float* data = nullptr;  // [width], or null: no gain. Must outlive the program
};

struct RmsNormOptions {
  int64_t vectors = 1;  // vectors per row
  float epsilon = 1e-5f;
  float gain_offset = 0.0f;        // 1: gains are stored minus one
  std::vector<RmsNormGain> gains;  // covering `vectors` in order; empty: no gain
};

// The gain of each vector of a row [vectors], null where there is none.
std::vector<const float*> gain_of_vectors(const RmsNormOptions& options);

// Appends the op; the result has x's shape. May work in place.
program::ValueId rms_norm(program::ProgramBuilder& builder, program::ValueId x, const RmsNormOptions& options,
                          IsaLevel isa);

// What a recorded op does, for rewrites; empty for any other op.
struct RecordedRmsNorm {
  RmsNormOptions options;
  int64_t width = 0;
  IsaLevel isa = IsaLevel::generic;
};
std::optional<RecordedRmsNorm> recorded_rms_norm(const program::Op& op);

}  // namespace kvasir::ops
