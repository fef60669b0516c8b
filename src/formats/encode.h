// Encoders of the simple storage formats, one row at a time, for `kvasir synth` and tests (spec:
// formats.md 4.7, quantize-eval.md 2 and 3). K and IQ formats need searches for good codes and are read, not
// written; random_rows.h makes valid random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/storage_format.h"

namespace kvasir::formats {

// Plain real formats, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4.
bool can_encode(StorageFormat format);

// values.size() must be a multiple of the format's block, out as large as the blocks. Throws
// Error{invalid_input} for a value that is no finite number, Error{unsupported} for a format that
// can_encode() denies.
void encode_row(StorageFormat format, std::span<const float> values, std::span<std::byte> out);

// Where one row of an MLX tensor goes.
struct MlxRow {
  std::span<std::byte> codes;   // cols * bits / 8
  std::span<std::byte> scales;  // cols / group_size elements of the scale dtype
  std::span<std::byte> biases;  // affine only
};

// The affine rule of MLX on the CPU: codes from the unrounded scale and bias, which are then rounded to
// scale_dtype (f32, f16, bf16). Sizes as MLX has them; values.size() a multiple of group_size.
void encode_mlx_affine_row(std::span<const float> values, int bits, int group_size, Dtype scale_dtype,
                           const MlxRow& out);
// mlx_mxfp4, mlx_mxfp8, mlx_nvfp4 (without a tensor-wide scale).
void encode_mlx_float_row(StorageFormat format, std::span<const float> values, const MlxRow& out);

// Packs codes of `bits` bits, LSB first: code i occupies bits [i * bits, (i + 1) * bits) of `out`.
void pack_codes(std::span<const uint8_t> codes, int bits, std::span<std::byte> out);

}  // namespace kvasir::formats
