#include "formats/dequantize.h"

#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/decode_blocks.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

template <typename Stored, typename Convert>
void decode_plain(const std::byte* row, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, row + i * sizeof value, sizeof value);
    out[i] = convert(value);
  }
}

// Element `index` of a row of f16, bf16 or f32.
float load_real(const std::byte* row, size_t index, Dtype dtype) {
  if (dtype == Dtype::f32) {
    float value;
    std::memcpy(&value, row + 4 * index, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, row + 2 * index, sizeof bits);
  return dtype == Dtype::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// Code `index` of a row of `bits`-bit codes, LSB first; a code may straddle two bytes.
uint32_t packed_code(const uint8_t* row, size_t row_bytes, size_t index, unsigned bits) {
  const size_t bit = index * bits;
  const size_t byte = bit / 8;
  const uint32_t next = byte + 1 < row_bytes ? row[byte + 1] : 0u;
  return ((row[byte] | next << 8) >> (bit % 8)) & ((1u << bits) - 1u);
}

void check_mlx(const WeightSource& source, int bits) {
  KVASIR_CHECK_MSG(source.scales != nullptr && source.group_size > 0 && source.cols % source.group_size == 0,
                   "{}: group size {} for {} columns", source.name, source.group_size, source.cols);
  KVASIR_CHECK_MSG(source.row_bytes >= (static_cast<size_t>(source.cols) * static_cast<size_t>(bits) + 7) / 8,
                   "{}: rows of {} bytes", source.name, source.row_bytes);
}

void decode_mlx_affine(const WeightSource& source, int64_t row, std::span<float> out) {
  const auto bits = static_cast<unsigned>(source.bits);
  KVASIR_CHECK(bits >= 1 && bits <= 8 && source.biases != nullptr);
  KVASIR_CHECK(source.scale_dtype == Dtype::f16 || source.scale_dtype == Dtype::bf16 ||
               source.scale_dtype == Dtype::f32);
  check_mlx(source, source.bits);
  const auto group = static_cast<size_t>(source.group_size);
  const size_t groups = out.size() / group;
  const size_t plane_row = static_cast<size_t>(row) * groups * size_of(source.scale_dtype);
  const auto* codes = source.row_data(row);
  for (size_t g = 0; g < groups; ++g) {
    const float scale = load_real(source.scales + plane_row, g, source.scale_dtype);
    const float bias = load_real(source.biases + plane_row, g, source.scale_dtype);
    for (size_t i = g * group; i < (g + 1) * group; ++i)
      out[i] = static_cast<float>(packed_code(codes, source.row_bytes, i, bits)) * scale + bias;
  }
}

void decode_scaled(const WeightSource& source, int64_t row, std::span<float> out) {
  KVASIR_CHECK_MSG(source.reader != nullptr && source.group_size > 0 && source.cols % source.group_size == 0,
                   "{}: group size {} for {} columns", source.name, source.group_size, source.cols);
  const auto group = static_cast<size_t>(source.group_size);
  const size_t groups = out.size() / group;
  std::vector<uint8_t> codes(out.size());
  std::vector<uint32_t> scales(groups);
  std::vector<uint16_t> zeros(groups);
  source.reader->read(source.first_row + row, 0, source.cols, codes.data(), scales.data(), zeros.data());
  for (size_t g = 0; g < groups; ++g) {
    const float scale = load_real(reinterpret_cast<const std::byte*>(&scales[g]), 0, source.scale_dtype);
    const float minimum = -static_cast<float>(zeros[g]) * scale;
    for (size_t i = g * group; i < (g + 1) * group; ++i) {
      if (source.format == StorageFormat::f8_scaled)
        out[i] = e4m3_to_f32(codes[i]) * scale;
      else if (source.zeros)
        out[i] = static_cast<float>(codes[i]) * scale + minimum;
      else
        out[i] = static_cast<float>(static_cast<int>(codes[i]) - (1 << (source.bits - 1))) * scale;
    }
  }
}

void decode_mlx_float(const WeightSource& source, int64_t row, std::span<float> out) {
  const bool fp8 = source.format == StorageFormat::mlx_mxfp8;
  check_mlx(source, fp8 ? 8 : 4);
  const auto group = static_cast<size_t>(source.group_size);
  const size_t groups = out.size() / group;
  const auto* codes = source.row_data(row);
  const auto* scales = reinterpret_cast<const uint8_t*>(source.scales) + static_cast<size_t>(row) * groups;
  for (size_t g = 0; g < groups; ++g) {
    const float scale =
        source.format == StorageFormat::mlx_nvfp4 ? e4m3_to_f32(scales[g]) : e8m0_to_f32(scales[g]);
    for (size_t i = g * group; i < (g + 1) * group; ++i)
      out[i] = (fp8 ? e4m3_to_f32(codes[i]) : kE2m1[packed_code(codes, source.row_bytes, i, 4)]) * scale;
  }
}

}  // namespace

void dequantize_row(const WeightSource& source, int64_t row, std::span<float> out) {
  KVASIR_CHECK_MSG(row >= 0 && row < source.rows, "{}: row {} of {}", source.name, row, source.rows);
  KVASIR_CHECK_MSG(static_cast<int64_t>(out.size()) == source.cols, "{}: {} floats for {} columns",
                   source.name, out.size(), source.cols);
  const StorageFormatInfo& format = info(source.format);
  const auto* data = reinterpret_cast<const std::byte*>(source.row_data(row));
  if (format.block_elements > 0)
    KVASIR_CHECK_MSG(source.cols % format.block_elements == 0 &&
                         source.row_bytes >= out.size() / static_cast<size_t>(format.block_elements) *
                                                 static_cast<size_t>(format.block_bytes),
                     "{}: rows of {} bytes for {} columns of {}", source.name, source.row_bytes, source.cols,
                     format.name);
  switch (source.format) {
    case StorageFormat::f64:
      return decode_plain<double>(data, out, [](double value) { return static_cast<float>(value); });
    case StorageFormat::f32:
      return decode_plain<float>(data, out, [](float value) { return value; });
    case StorageFormat::f16:
      return decode_plain<uint16_t>(data, out, f16_to_f32);
    case StorageFormat::bf16:
      return decode_plain<uint16_t>(data, out, bf16_to_f32);
    case StorageFormat::f8_e4m3:
      return decode_plain<uint8_t>(data, out, e4m3_to_f32);
    case StorageFormat::f8_e5m2:
      return decode_plain<uint8_t>(data, out, e5m2_to_f32);
    case StorageFormat::mlx_affine:
      return decode_mlx_affine(source, row, out);
    case StorageFormat::mlx_mxfp4:
    case StorageFormat::mlx_mxfp8:
    case StorageFormat::mlx_nvfp4:
      return decode_mlx_float(source, row, out);
    case StorageFormat::f8_scaled:
    case StorageFormat::int_scaled:
      return decode_scaled(source, row, out);
    default:
      break;
  }
  const BlockDecoder decode = block_decoder(source.format);
  if (decode == nullptr)
    throw_error(ErrorCode::unsupported,
                "{}: storage format {} holds no real numbers, expected a weight format",
                printable(source.name), format.name);
  const auto* block = reinterpret_cast<const uint8_t*>(data);
  const size_t blocks = out.size() / static_cast<size_t>(format.block_elements);
  for (size_t b = 0; b < blocks; ++b)
    decode(block + b * static_cast<size_t>(format.block_bytes),
           out.data() + b * static_cast<size_t>(format.block_elements));
}

}  // namespace kvasir::formats
