// Constants of the rotated codec (kv-cache.md 3.3): codebooks, and the sign vector of the rotation
// R = D^-1/2 * Hadamard * diag(sigma), D in 64, 128, 256, 512.
#pragma once

#include <cstdint>

namespace kvasir::kv {

struct Codebook {
  const uint32_t* centroids;   // [size] f32 bit patterns, ascending
  const uint32_t* boundaries;  // [size - 1]; code = number of boundaries below the value
  int size;
};
Codebook codebook(int bits);  // bits in 2 3 4 5 8

// Bit i set: sigma_i = -1. Null where the rotation has no such size.
const uint64_t* rotation_signs(int dim);

}  // namespace kvasir::kv
