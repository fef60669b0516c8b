// How the bytes of a tensor encode its values: one row of a table per storage format.
//
// A reader (safetensors, GGUF, MLX folder) describes a tensor with one of these; the de-quantizers
// (dequantize.h) are the definition of its values, and packing (src/ops/matmul) turns it into a compute
// layout without loss. Adding a format is one enumerator, one row in storage_format.cc, one de-quantizer, and
// one line in the packer's table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace kvasir::formats {

enum class StorageFormat : uint8_t {
  // Plain elements.
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  boolean,
  // GGUF blocks of 32 (ggml's names).
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  iq4_nl,
  mxfp4,
  nvfp4,
  q1_0,
  q2_0,
  // GGUF super-blocks of 256.
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq4_xs,
  tq1_0,
  tq2_0,
  // MLX: packed codes with separate tensors of scales (and biases).
  mlx_affine,
  mlx_mxfp4,
  mlx_mxfp8,
  mlx_nvfp4,
  // Of other tools, read through a RowReader: E4M3 codes with scales by tensor, row or block; unsigned codes
  // less a zero point (of their group, or the middle of the codes), times a scale.
  f8_scaled,
  int_scaled,
};

struct StorageFormatInfo {
  StorageFormat format;
  std::string_view name;  // "q4_K" as ggml prints it, "bf16", "mlx-affine", ...
  int block_elements;     // elements per block along a row (1: plain; 0: see WeightSource::group_size)
  int block_bytes;        // bytes per block (0: the MLX formats, whose codes and scales lie apart)
  bool has_integer_form;  // values are scale * small integer (+ minimum): activation mode int8 is possible
};

const StorageFormatInfo& info(StorageFormat format);
// Whether its elements stand for reals: weights may be of it. (Plain integers and truth values are not.)
bool holds_reals(StorageFormat format);
std::string_view name(StorageFormat format);
std::optional<StorageFormat> storage_format_from_name(std::string_view name);  // case-insensitive
std::span<const StorageFormatInfo> all_storage_formats();

// Hands out rows of a matrix whose stored form is no row of codes: another tool's tensors, packed along their
// columns or with scales by block (foreign_weights.h). Safe to use from several threads.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // Columns [col, col + count) of a row, where col is a multiple of the group: the codes one a byte; of each
  // group that is touched the bits of its scale (in the source's scale_dtype) and, of int_scaled, its zero
  // point. Throws Error{corrupt_file} for values that contradict the checkpoint's configuration.
  virtual void read(int64_t row, int64_t col, int64_t count, uint8_t* codes, uint32_t* scales,
                    uint16_t* zeros) const = 0;
};

// One matrix [rows, cols] as it lies in its file: a linear weight is [out, in]. A view: the mapping must
// outlive it.
struct WeightSource {
  std::string name;  // as messages should call it
  StorageFormat format = StorageFormat::f32;
  int64_t rows = 0;                 // out features
  int64_t cols = 0;                 // in features
  const std::byte* data = nullptr;  // row r begins at data + r * row_bytes; any alignment
  size_t row_bytes = 0;
  // Formats with scales apart only. Row r of scales (and biases) begins at scales + r * (cols / group_size) *
  // size_of(scale_dtype).
  int bits = 0;        // mlx_affine: 2, 3, 4, 5, 6, 8; int_scaled: 2, 4, 8
  int group_size = 0;  // mlx_affine: 32, 64, 128; mxfp4/mxfp8: 32; nvfp4: 16; *_scaled: 32, 64, 128, 256
  Dtype scale_dtype =
      Dtype::f16;  // mlx_affine, int_scaled: f16, bf16, f32; mx*: u8 (E8M0); nvfp4: u8 (E4M3); f8_scaled: f32
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  float tensor_scale = 1.0f;  // nvfp4: a scale of the whole tensor (GGUF: applied to the product's result)
  // The file has such a scale, whatever its value: known from headers, so that plan and load agree on what
  // can share a matrix.
  bool own_scale = false;
  // The *_scaled formats only: in place of data, scales and biases. Row r is row first_row + r of the reader.
  std::shared_ptr<const RowReader> reader = nullptr;
  int64_t first_row = 0;
  // int_scaled: whether groups have zero points of their own, in [zero_base, zero_base + 2^bits); otherwise
  // all are 2^(bits - 1).
  bool zeros = false;
  uint8_t zero_base = 0;

  size_t stored_bytes() const;  // everything a loader reads for it: codes, scales, biases, zero points
  // Where row r is stored; null where a reader stands in for data.
  const uint8_t* row_data(int64_t row) const {
    if (data == nullptr) return nullptr;
    return reinterpret_cast<const uint8_t*>(data) + static_cast<size_t>(row) * row_bytes;
  }
};

}  // namespace kvasir::formats
