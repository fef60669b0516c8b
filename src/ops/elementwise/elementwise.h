// Small element-wise ops on f32 values [axis, width]; the result has the first operand's shape.
//
//   add         y = a + multiplier * b      residual connections; multiplier 1 adds without multiplying
//   scale       y = x * factor
//   divide      y = x / divisor
//   softcap     y = cap * tanh(x / cap)
//   add_bias    y = x + bias[column]
//   clamp       y = min(max(x, low), high)
//   scale_by_position   y = x * (1 + beta ln(1 + floor(position / original)))    Llama 4's and Ministral 3's
//   query scale
//
// Numerics: f32; `add` with a multiplier is one fused multiply-add where the level has it;
// scale_by_position's factor is computed in f64 and rounded once. An element's bits depend on its own inputs
// alone. All may work in place.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

struct ElementwiseKernels {
  void (*add)(const float* a, const float* b, float multiplier, float* y, int64_t count);  // also add_bias
  void (*scale)(const float* x, float factor, float* y, int64_t count);
  void (*divide)(const float* x, float divisor, float* y, int64_t count);
  void (*softcap)(const float* x, float cap, float* y, int64_t count);
  void (*clamp)(const float* x, float low, float high, float* y, int64_t count);
};
KVASIR_KERNEL_TABLE(ElementwiseKernels, elementwise_kernels)

program::ValueId add(program::ProgramBuilder& builder, program::ValueId a, program::ValueId b, IsaLevel isa,
                     float multiplier = 1.0f);
program::ValueId scale(program::ProgramBuilder& builder, program::ValueId x, float factor, IsaLevel isa);
program::ValueId divide(program::ProgramBuilder& builder, program::ValueId x, float divisor, IsaLevel isa);
program::ValueId softcap(program::ProgramBuilder& builder, program::ValueId x, float cap, IsaLevel isa);
program::ValueId add_bias(program::ProgramBuilder& builder, program::ValueId x, const float* bias,
                          IsaLevel isa);
program::ValueId clamp(program::ProgramBuilder& builder, program::ValueId x, float low, float high,
                       IsaLevel isa);
program::ValueId scale_by_position(program::ProgramBuilder& builder, program::ValueId x, double beta,
                                   double original, IsaLevel isa);

}  // namespace kvasir::ops
