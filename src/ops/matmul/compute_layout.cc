#include "ops/matmul/compute_layout.h"

#include "base/error.h"
#include "base/memory.h"

namespace kvasir::ops {
namespace {

using F = formats::StorageFormat;

ComputeLayout codes(int bits, int offset, ScaleKind scales, int group, bool minima = false) {
  ComputeLayout layout;
  layout.codes = CodeKind::codes;
  layout.scales = scales;
  layout.bits = static_cast<uint8_t>(bits);
  layout.offset = static_cast<uint8_t>(offset);
  layout.minima = minima;
  layout.group = static_cast<int16_t>(group);
  return layout;
}

ComputeLayout table(Table which, int offset, ScaleKind scales, int group) {
  ComputeLayout layout = codes(4, offset, scales, group);
  layout.codes = CodeKind::table;
  layout.table = which;
  return layout;
}

ComputeLayout plain(CodeKind kind, int bits) {
  ComputeLayout layout;
  layout.codes = kind;
  layout.bits = static_cast<uint8_t>(bits);
  return layout;
}

ComputeLayout grid(F format, int group) {
  ComputeLayout layout = codes(0, 64, ScaleKind::grid, group);
  layout.codes = CodeKind::grid;
  layout.grid = format;
  return layout;
}

ScaleKind scale_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return ScaleKind::f16;
    case Dtype::bf16:
      return ScaleKind::bf16;
    default:
      return ScaleKind::f32;
  }
}

// Bytes of a stored block of an IQ format without its scale d, as whole dwords.
int grid_dwords(F format) {
  switch (format) {
    case F::iq2_xxs:
      return 16;
    case F::iq2_xs:
      return 18;
    case F::iq2_s:
      return 20;
    case F::iq3_xxs:
      return 24;
    case F::iq3_s:
      return 27;
    case F::iq1_s:
      return 12;
    case F::iq1_m:
      return 14;
    default:
      return 0;
  }
}

size_t scale_bytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::f16:
    case ScaleKind::bf16:
      return 2;
    case ScaleKind::f32:
      return 4;
    default:
      return 1;
  }
}

}  // namespace

ComputeLayout compute_layout(const formats::WeightSource& source) {
  const auto layout = [&]() -> ComputeLayout {
    switch (source.format) {
      case F::f64:
      case F::f32:
        return plain(CodeKind::f32, 32);
      case F::f16:
        return plain(CodeKind::f16, 16);
      case F::bf16:
        return plain(CodeKind::bf16, 16);
      case F::f8_e4m3:
        return plain(CodeKind::e4m3, 8);
      case F::f8_e5m2:
        return plain(CodeKind::e5m2, 8);
      case F::q4_0:
        return codes(4, 8, ScaleKind::f16, 32);
      case F::q4_1:
        return codes(4, 0, ScaleKind::f16, 32, true);
      case F::q5_0:
        return codes(5, 16, ScaleKind::f16, 32);
      case F::q5_1:
        return codes(5, 0, ScaleKind::f16, 32, true);
      case F::q8_0:
        return codes(8, 128, ScaleKind::f16, 32);
      case F::iq4_nl:
        return table(Table::iq4, 128, ScaleKind::f16, 32);
      case F::mxfp4:
        return table(Table::e2m1_doubled, 12, ScaleKind::e8m0_half, 32);
      case F::nvfp4:
        return table(Table::e2m1_doubled, 12, ScaleKind::ue4m3_half, 16);
      case F::mlx_mxfp4:
        return table(Table::e2m1_signed_zero, 12, ScaleKind::e8m0_half, 32);
      case F::mlx_nvfp4:
        return table(Table::e2m1_signed_zero, 12, ScaleKind::e4m3_half, 16);
      case F::q1_0:
        return codes(1, 1, ScaleKind::f16, 128);
      case F::q2_0:
        return codes(2, 1, ScaleKind::f16, 64);
      case F::q2_k:
        return codes(2, 0, ScaleKind::k2, 16, true);
      case F::q3_k:
        return codes(3, 4, ScaleKind::k3, 16);
      case F::q4_k:
        return codes(4, 0, ScaleKind::k4, 32, true);
      case F::q5_k:
        return codes(5, 0, ScaleKind::k4, 32, true);
      case F::q6_k:
        return codes(6, 32, ScaleKind::k6, 16);
      case F::iq4_xs:
        return table(Table::iq4, 128, ScaleKind::iq4_xs, 32);
      case F::tq2_0:
        return codes(2, 1, ScaleKind::f16, 256);
      case F::tq1_0: {
        ComputeLayout trits = codes(0, 1, ScaleKind::f16, 256);
        trits.codes = CodeKind::trits;
        return trits;
      }
      case F::iq2_xxs:
      case F::iq3_xxs:
      case F::iq3_s:
      case F::iq1_s:
        return grid(source.format, 32);
      case F::iq2_xs:
      case F::iq2_s:
      case F::iq1_m:
        return grid(source.format, 16);
      case F::mlx_affine:
        return codes(source.bits, 0, scale_of(source.scale_dtype), source.group_size, true);
      case F::int_scaled: {
        ComputeLayout scaled = codes(source.bits, source.zeros ? 0 : 1 << (source.bits - 1),
                                     scale_of(source.scale_dtype), source.group_size, source.zeros);
        scaled.zeros = source.zeros;
        scaled.zero_base = source.zero_base;
        return scaled;
      }
      case F::f8_scaled: {
        ComputeLayout scaled = plain(CodeKind::e4m3, 8);
        scaled.scales = scale_of(source.scale_dtype);
        scaled.group = static_cast<int16_t>(source.group_size);
        return scaled;
      }
      case F::mlx_mxfp8: {
        ComputeLayout mx = plain(CodeKind::e4m3, 8);
        mx.scales = ScaleKind::e8m0;
        mx.group = 32;
        return mx;
      }
      default:
        throw_error(
            ErrorCode::unsupported,
            "{}: a matrix of format {} cannot be a weight, expected a floating-point or quantized format",
            printable(source.name), formats::name(source.format));
    }
  }();
  const formats::StorageFormatInfo& format = formats::info(source.format);
  const int multiple = format.block_elements > 0 ? format.block_elements : source.group_size;
  if (multiple <= 0 || source.cols % multiple != 0)
    throw_error(ErrorCode::corrupt_file, "{}: {} columns, expected a multiple of {} for format {}",
                printable(source.name), source.cols, multiple, format.name);
  if (source.format == F::mlx_affine && !(source.bits == 2 || source.bits == 3 || source.bits == 4 ||
                                          source.bits == 5 || source.bits == 6 || source.bits == 8))
    throw_error(ErrorCode::unsupported, "{}: affine codes of {} bits, expected 2, 3, 4, 5, 6 or 8",
                printable(source.name), source.bits);
  return layout;
}

std::string describe(const ComputeLayout& layout) {
  const auto base = [&]() -> std::string {
    switch (layout.codes) {
      case CodeKind::f32:
        return "f32";
      case CodeKind::f16:
        return "f16";
      case CodeKind::bf16:
        return "bf16";
      case CodeKind::e4m3:
        return "f8 e4m3";
      case CodeKind::e5m2:
        return "f8 e5m2";
      case CodeKind::codes:
        return fmt::format("{}-bit codes", layout.bits);
      case CodeKind::table:
        return layout.table == Table::iq4 ? "4-bit iq4 table" : "4-bit e2m1 table";
      case CodeKind::trits:
        return "packed ternary codes";
      case CodeKind::grid:
        return fmt::format("{} grid", formats::name(layout.grid));
    }
    return "?";
  }();
  const char* scales = [&] {
    switch (layout.scales) {
      case ScaleKind::none:
        return "";
      case ScaleKind::f16:
        return "f16";
      case ScaleKind::bf16:
        return "bf16";
      case ScaleKind::f32:
        return "f32";
      case ScaleKind::e8m0:
      case ScaleKind::e8m0_half:
        return "e8m0";
      case ScaleKind::e4m3_half:
      case ScaleKind::ue4m3_half:
        return "e4m3";
      case ScaleKind::k4:
      case ScaleKind::k3:
      case ScaleKind::iq4_xs:
        return "two-level 6-bit";
      case ScaleKind::k6:
        return "two-level 8-bit";
      case ScaleKind::k2:
      case ScaleKind::grid:
        return "two-level 4-bit";
    }
    return "?";
  }();
  if (layout.scales == ScaleKind::none) return base;
  return fmt::format("{}, {} scales{} per {}", base, scales,
                     layout.zeros    ? " and zero points"
                     : layout.minima ? " and minima"
                                     : "",
                     layout.group);
}

int64_t padded_cols(const ComputeLayout& layout, int64_t cols) {
  switch (layout.codes) {
    case CodeKind::f32:
    case CodeKind::f16:
      return cols;
    case CodeKind::bf16:
      return (cols + 1) / 2 * 2;
    default:
      return (cols + kBlockCols - 1) / kBlockCols * kBlockCols;
  }
}

size_t code_bytes(const ComputeLayout& layout, int64_t cols) {
  if (layout.codes == CodeKind::trits) return 13 * 64;
  if (layout.codes == CodeKind::grid) return static_cast<size_t>(grid_dwords(layout.grid)) * 64;
  return static_cast<size_t>(cols) * kPanelRows * layout.bits / 8;
}

size_t zero_bytes(const ComputeLayout& layout, int64_t cols) {
  if (!layout.zeros) return 0;
  const auto groups = static_cast<size_t>((cols + layout.group - 1) / layout.group);
  return (layout.bits <= 4 ? (groups + 1) / 2 : groups) * kPanelRows;
}

size_t chunk_bytes(const ComputeLayout& layout, int64_t cols) {
  size_t bytes = code_bytes(layout, cols);
  constexpr size_t kHalves = kPanelRows * 2;  // one f16 a row
  switch (layout.scales) {
    case ScaleKind::none:
      break;
    case ScaleKind::k4:
      bytes += 3 * 64 + 2 * kHalves;
      break;
    case ScaleKind::k6:
      bytes += 256 + kHalves;
      break;
    case ScaleKind::k2:
      bytes += 256 + 2 * kHalves;
      break;
    case ScaleKind::k3:
      bytes += 3 * 64 + kHalves;
      break;
    case ScaleKind::iq4_xs:
      bytes += 64 + 32 + kHalves;
      break;
    case ScaleKind::grid:
      bytes += layout.grid == F::iq1_m ? 0 : kHalves;  // IQ1_M's d is spread over its dwords
      break;
    default: {
      const auto groups = static_cast<size_t>((cols + layout.group - 1) / layout.group);
      const size_t planes = layout.minima && !layout.zeros ? 2 : 1;
      bytes += groups * kPanelRows * scale_bytes(layout.scales) * planes + zero_bytes(layout, cols);
    }
  }
  // Whole chunks of two-level layouts start on a cache line where that costs under 2%.
  if (cols == kChunkCols) {
    const size_t aligned = align_up(bytes, kCacheLine);
    if ((aligned - bytes) * 50 <= bytes) bytes = aligned;
  }
  return bytes;
}

size_t panel_bytes(const ComputeLayout& layout, int64_t cols) {
  const int64_t padded = padded_cols(layout, cols);
  size_t bytes = static_cast<size_t>(padded / kChunkCols) * chunk_bytes(layout, kChunkCols);
  if (padded % kChunkCols != 0) bytes += chunk_bytes(layout, padded % kChunkCols);
  return align_up(bytes, kCacheLine);
}

}  // namespace kvasir::ops
