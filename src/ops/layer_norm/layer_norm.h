// y = (x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias, over the last axis, with the population variance.
//
//   x [axis, vectors, width] f32  ->  y [axis, vectors, width] f32
//
// Numerics: f32. Mean first (corrected by the mean of what is left), then the mean of squared differences:
// three passes, each summed in 4 x lanes partial sums in ascending order that are then added pairwise. A
// vector (a row, or a head of it) is computed by one member.
#pragma once

#include <cstdint>
#include <vector>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

struct LayerNormKernels {
  // gain and bias may be null; offset is added to each gain.
  void (*vector)(const float* x, const float* gain, float offset, const float* bias, float* y, int64_t width,
                 float epsilon);
};
KVASIR_KERNEL_TABLE(LayerNormKernels, layer_norm_kernels)

// Gains and biases of consecutive vectors of a row.
struct LayerNormWeights {
  int64_t vectors = 1;
  const float* gain = nullptr;  // [width] for all of them, or with per_vector [vectors, width]; null: none
  const float* bias = nullptr;  // same shape; null: none
  bool per_vector = false;      // one gain a vector (cohere's q/k norm) instead of one for all
};

struct LayerNormOptions {
  int64_t vectors = 1;
  float epsilon = 1e-5f;
  float gain_offset = 0.0f;
  std::vector<LayerNormWeights> weights;  // covering `vectors`; empty: neither gain nor bias
};

// Appends the op; the result has x's shape. May work in place.
program::ValueId layer_norm(program::ProgramBuilder& builder, program::ValueId x,
                            const LayerNormOptions& options, IsaLevel isa);

}  // namespace kvasir::ops
