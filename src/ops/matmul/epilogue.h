// What a product does with pairs of its sums before they are written.
#pragma once

#include <cstdint>

namespace kvasir::ops {

enum class Epilogue : uint8_t {
  none,
  swiglu,  // weight is interleaved (gate, up): out = silu(gate) * up, out has rows() / 2 columns
  geglu,   // likewise with the tanh form of gelu
};

}  // namespace kvasir::ops
