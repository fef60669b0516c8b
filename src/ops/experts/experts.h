// A mixture of experts: routing, the chosen experts' MLPs, and their weighted sum.
//
//   x [tokens, hidden] f32, router logits [tokens, experts] f32  ->  y [tokens, hidden] f32 (plus a residual)
//
//   p = softmax(logits); the `used` largest are chosen, ties to the lower index; w = p, or p over the sum of
//   the chosen y = sum over the chosen, in descending p (ties: lower index first), of w_e * down_e(act(gate_e
//   x) * up_e x)
//
// Numerics: softmax and the sum in f32; the sum of a token runs over its own experts in router order (a fused
// multiply-add a term), then the residual is added. Rows of a product are independent of each other
// (ops/matmul), so a token's bits do not depend on which tokens share its experts, its step, or the team's
// size.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/isa.h"
#include "ops/matmul/matmul.h"
#include "program/program.h"

namespace kvasir::ops {

struct ExpertsKernels {
  // Chooses `used` of `count` experts for one token: indices and weights in router order. `scratch` holds
  // [count] f32.
  void (*route)(const float* logits, int64_t count, int64_t used, bool normalize, float* scratch,
                int32_t* chosen, float* weights);
  // y[0 .. width) = residual (or 0) + sum over k of weights[k] * rows[k][0 .. width)
  void (*combine)(const float* const* rows, const float* weights, int64_t used, const float* residual,
                  float* y, int64_t width);
};
KVASIR_KERNEL_TABLE(ExpertsKernels, experts_kernels)

struct ExpertWeights {
  const PackedMatrix* gate_up = nullptr;  // interleaved (gate, up)
  const PackedMatrix* down = nullptr;
};

struct ExpertsOptions {
  std::vector<ExpertWeights> experts;  // must outlive the program
  int64_t used = 0;
  bool normalize = false;
  ActivationMode gate_up_mode = ActivationMode::f32, down_mode = ActivationMode::f32;
  Epilogue epilogue = Epilogue::swiglu;
};

// `prepared` is x as prepare_activations gave it for gate_up_mode.
program::ValueId experts(program::ProgramBuilder& builder, program::ValueId prepared,
                         program::ValueId router_logits, const ExpertsOptions& options,
                         std::optional<program::ValueId> residual, IsaLevel isa);

}  // namespace kvasir::ops
