// Random weights that are valid in any storage format, for `kvasir synth`, tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>

#include "formats/encode.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

// A normally distributed value of mean 0 and deviation 1 that depends on (seed, index) alone.
float random_normal(uint64_t seed, uint64_t index);

// Rows whose values have about mean 0 and the given root mean square. Formats with an encoder get encoded
// normal values; the others (K, IQ, ternary, NVFP4) random codes under scales that give that size. A row's
// bytes depend on (format, deviation, seed, row, columns) alone, so rows can be made in any order and on any
// thread.
class RandomRows {
 public:
  // Throws Error{unsupported} for formats that hold no real numbers.
  RandomRows(StorageFormat format, float deviation, uint64_t seed);

  // GGUF block formats and plain formats. out.size() = cols / block_elements * block_bytes.
  void fill(int64_t row, int64_t cols, std::span<std::byte> out) const;
  // MLX formats; bits, group_size and scale_dtype are those of mlx_affine and ignored for the others.
  void fill_mlx(int64_t row, int64_t cols, int bits, int group_size, Dtype scale_dtype,
                const MlxRow& out) const;

 private:
  void random_block(uint64_t index, uint8_t* block) const;

  StorageFormat format_;
  float deviation_;
  uint64_t seed_;
  float scale_ = 0;  // of a block with random codes: gives the deviation
};

}  // namespace kvasir::formats
