// The non-linear function of an MLP, alone or times the up projection.
//
//   y = f(gate)        gate [axis, width] f32 -> y [axis, width] f32
//   y = f(gate) * up   up as gate
//
//   silu       x / (1 + e^-x)
//   gelu_tanh  0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   gelu_erf   0.5 x (1 + erf(x / sqrt 2))
//   relu2      max(x, 0)^2
//   xielu      x > 0: alpha_p x^2 + beta x;  else (expm1(min(x, epsilon)) - x) alpha_n + beta x     (Huang et
//   al. 2024)
//
// Numerics: f32, no rounding between f and the product; functions of ops/vector_math-inl.h. An element's bits
// depend on its own inputs alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

enum class ActivationFunction : uint8_t { silu, gelu_tanh, gelu_erf, relu2, xielu };
std::string_view name(ActivationFunction function);

// alpha_p and alpha_n as they enter the formula: softplus of the stored one, and beta + softplus of the
// stored one.
struct XieluParameters {
  float alpha_p = 0;
  float alpha_n = 0;
  float beta = 0;
  float epsilon = 0;
};

struct ActivationKernels {
  // up may be null. y may be gate or up.
  void (*apply)(ActivationFunction function, const XieluParameters& xielu, const float* gate, const float* up,
                float* y, int64_t count);
};
KVASIR_KERNEL_TABLE(ActivationKernels, activation_kernels)

program::ValueId activation(program::ProgramBuilder& builder, ActivationFunction function,
                            program::ValueId gate, std::optional<program::ValueId> up, IsaLevel isa,
                            const XieluParameters& xielu = {});

}  // namespace kvasir::ops
