// How the input rows of a matrix product are rounded before they meet the weights.
#pragma once

#include <string_view>

#include "formats/storage_format.h"

namespace kvasir::ops {

enum class ActivationMode : unsigned char {
  f32,    // not rounded
  bf16,   // each element to bf16 (nearest, ties to even); products and sums in f32
  int8,   // symmetric, 8 bits, one f32 scale per row and 32 columns; integer products exact, sums in f32
  int16,  // two planes of int8: what int8 rounds away is rounded again with a scale 254 times finer
};

std::string_view name(ActivationMode mode);

// int8 and int16 need weights that are small integers times a scale; f32 and bf16 work with every weight.
bool supports(ActivationMode mode, formats::StorageFormat format);

// What "auto" means for a weight of this format: int8 where the weight has an integer form, f32 for f32 and
// f64 weights, bf16 for f16, bf16 and the 8-bit floats.
ActivationMode automatic_mode(formats::StorageFormat format);

}  // namespace kvasir::ops
