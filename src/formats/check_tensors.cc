#include "formats/check_tensors.h"

#include <cmath>
#include <initializer_list>
#include <vector>

#include "base/error.h"
#include "formats/decode_blocks.h"
#include "formats/dequantize.h"

namespace kvasir::formats {
namespace {

bool f16_is_finite(const uint8_t* at) {
  return (load_u16(at) & 0x7C00u) != 0x7C00u;
}

// Whether every scale of the block at `block` is a number.
bool block_is_valid(StorageFormat format, const uint8_t* block) {
  const auto halves_at = [&](std::initializer_list<int> offsets) {
    for (const int offset : offsets)
      if (!f16_is_finite(block + offset)) return false;
    return true;
  };
  switch (format) {
    case StorageFormat::q4_1:
    case StorageFormat::q5_1:
    case StorageFormat::q4_k:
    case StorageFormat::q5_k:
      return halves_at({0, 2});
    case StorageFormat::q2_k:
      return halves_at({80, 82});
    case StorageFormat::q3_k:
      return halves_at({108});
    case StorageFormat::q6_k:
      return halves_at({208});
    case StorageFormat::tq1_0:
      return halves_at({52});
    case StorageFormat::tq2_0:
      return halves_at({64});
    case StorageFormat::mxfp4:
      return block[0] != 255;
    case StorageFormat::nvfp4:
      for (int s = 0; s < 4; ++s)
        if ((block[s] & 0x7F) == 0x7F) return false;
      return true;
    case StorageFormat::iq1_m: {
      unsigned bits = 0;  // the f16 scale lies in the upper nibbles of four 16-bit words
      for (unsigned k = 0; k < 4; ++k) bits |= static_cast<unsigned>(block[48 + 2 * k + 1] >> 4) << (4 * k);
      return (bits & 0x7C00u) != 0x7C00u;
    }
    default:
      return halves_at({0});
  }
}

[[noreturn]] void invalid_scale(const WeightSource& source, int64_t block) {
  throw_error(ErrorCode::corrupt_file, "tensor {}, block {}: invalid scale: expected a finite number",
              printable(source.name), block);
}

void check_blocks(const WeightSource& source, const StorageFormatInfo& format) {
  const int64_t per_row = source.cols / format.block_elements;
  for (int64_t r = 0; r < source.rows; ++r) {
    const auto* row = source.row_data(r);
    for (int64_t b = 0; b < per_row; ++b)
      if (!block_is_valid(source.format, row + b * format.block_bytes))
        invalid_scale(source, r * per_row + b);
  }
}

bool mlx_scale_is_valid(const WeightSource& source, const std::byte* plane, int64_t group) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(plane);
  switch (source.scale_dtype) {
    case Dtype::f32:
      return (load_u32(bytes + 4 * group) & 0x7F800000u) != 0x7F800000u;
    case Dtype::bf16:
      return (load_u16(bytes + 2 * group) & 0x7F80u) != 0x7F80u;
    case Dtype::f16:
      return f16_is_finite(bytes + 2 * group);
    default:
      return source.format == StorageFormat::mlx_nvfp4 ? (bytes[group] & 0x7F) != 0x7F : bytes[group] != 255;
  }
}

}  // namespace

void check_finite(const WeightSource& source) {
  const StorageFormatInfo& format = info(source.format);
  // What comes through a reader is checked by its values: a scale that is no number makes each of them none.
  if (format.block_elements == 0 && source.reader == nullptr) {
    const int64_t groups = source.rows * (source.cols / source.group_size);
    for (int64_t g = 0; g < groups; ++g)
      if (!mlx_scale_is_valid(source, source.scales, g) ||
          (source.biases != nullptr && !mlx_scale_is_valid(source, source.biases, g)))
        invalid_scale(source, g);
    if (source.format != StorageFormat::mlx_mxfp8) return;  // only E4M3 codes can be NaN
  } else if (format.block_elements > 1) {
    return check_blocks(source, format);
  }
  switch (source.format) {
    case StorageFormat::f64:
    case StorageFormat::f32:
    case StorageFormat::f16:
    case StorageFormat::bf16:
    case StorageFormat::f8_e4m3:
    case StorageFormat::f8_e5m2:
    case StorageFormat::mlx_mxfp8:
    case StorageFormat::f8_scaled:
    case StorageFormat::int_scaled:
      break;
    default:
      return;
  }
  std::vector<float> row(static_cast<size_t>(source.cols));
  for (int64_t r = 0; r < source.rows; ++r) {
    dequantize_row(source, r, row);
    for (size_t c = 0; c < row.size(); ++c)
      if (!std::isfinite(row[c]))
        throw_error(ErrorCode::corrupt_file, "tensor {}: non-finite value at row {}, column {}: got {}",
                    printable(source.name), r, c, row[c]);
  }
}

}  // namespace kvasir::formats
