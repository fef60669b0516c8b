// Input rows of a matrix product as its activation mode rounds them: made once, read by every product that
// shares the input (q, k, v; gate, up).
//
// One prepared row of K columns (whole blocks of 32, padded with zeros: Kp):
//   f32   [K] f32: the input itself, nothing to prepare
//   bf16  [Kp] bf16
//   int8  [Kp] i8 codes; [Kb] f32 scales; [Kb] f32 scale * sum of codes; [2 * Kb] i16 sums of 16 codes;
//         Kb = Kp / 32 rounded up to a multiple of 8, the surplus zero
//   int16 two int8 rows, half a stride apart: the codes, and codes of what they round away
// Rows (int16: planes) lie a multiple of 64 bytes apart whose count of cache lines is odd: rows of a tile
// then fall into different cache sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/matmul/activation_mode.h"

namespace kvasir::ops {

constexpr int64_t prepared_cols(int64_t cols) {
  return (cols + 31) / 32 * 32;
}
constexpr int64_t prepared_blocks(int64_t cols) {
  return (prepared_cols(cols) / 32 + 7) / 8 * 8;
}

// Offsets in bytes inside an int8 row.
constexpr size_t int8_scales_offset(int64_t cols) {
  return (static_cast<size_t>(prepared_cols(cols)) + 63) / 64 * 64;
}
constexpr size_t int8_sums_offset(int64_t cols) {
  return int8_scales_offset(cols) + 4 * static_cast<size_t>(prepared_blocks(cols));
}
constexpr size_t int8_code_sums_offset(int64_t cols) {
  return int8_sums_offset(cols) + 4 * static_cast<size_t>(prepared_blocks(cols));
}

// Bytes of a prepared row: a function of columns and mode only.
constexpr size_t prepared_row_bytes(int64_t cols, ActivationMode mode) {
  size_t bytes = 0;
  switch (mode) {
    case ActivationMode::f32:
      return static_cast<size_t>(cols) * 4;
    case ActivationMode::bf16:
      bytes = static_cast<size_t>(prepared_cols(cols)) * 2;
      break;
    case ActivationMode::int8:
      bytes = int8_code_sums_offset(cols) + 4 * static_cast<size_t>(prepared_blocks(cols));
      break;
    case ActivationMode::int16:
      return 2 * prepared_row_bytes(cols, ActivationMode::int8);
  }
  const size_t lines = (bytes + 63) / 64;
  return (lines | 1) * 64;
}

// A view of prepared rows (f32: of the plain rows; then stride is any multiple of 4).
struct PreparedRows {
  ActivationMode mode = ActivationMode::f32;
  const std::byte* data = nullptr;
  size_t stride = 0;  // bytes
  int64_t rows = 0;
  int64_t cols = 0;
};

}  // namespace kvasir::ops
