#include "formats/storage_format.h"

#include <array>

#include "base/ascii.h"
#include "base/error.h"

namespace kvasir::formats {
namespace {

using F = StorageFormat;

// One row per format, in the order of the enumeration.
constexpr std::array kFormats = std::to_array<StorageFormatInfo>({
    {F::f64, "f64", 1, 8, false},
    {F::f32, "f32", 1, 4, false},
    {F::f16, "f16", 1, 2, false},
    {F::bf16, "bf16", 1, 2, false},
    {F::f8_e4m3, "f8_e4m3", 1, 1, false},
    {F::f8_e5m2, "f8_e5m2", 1, 1, false},
    {F::i8, "i8", 1, 1, false},
    {F::i16, "i16", 1, 2, false},
    {F::i32, "i32", 1, 4, false},
    {F::i64, "i64", 1, 8, false},
    {F::u8, "u8", 1, 1, false},
    {F::u16, "u16", 1, 2, false},
    {F::u32, "u32", 1, 4, false},
    {F::u64, "u64", 1, 8, false},
    {F::boolean, "bool", 1, 1, false},
    {F::q4_0, "q4_0", 32, 18, true},
    {F::q4_1, "q4_1", 32, 20, true},
    {F::q5_0, "q5_0", 32, 22, true},
    {F::q5_1, "q5_1", 32, 24, true},
    {F::q8_0, "q8_0", 32, 34, true},
    {F::iq4_nl, "iq4_nl", 32, 18, true},
    {F::mxfp4, "mxfp4", 32, 17, true},
    {F::nvfp4, "nvfp4", 64, 36, true},
    {F::q1_0, "q1_0", 128, 18, true},
    {F::q2_0, "q2_0", 64, 18, true},
    {F::q2_k, "q2_K", 256, 84, true},
    {F::q3_k, "q3_K", 256, 110, true},
    {F::q4_k, "q4_K", 256, 144, true},
    {F::q5_k, "q5_K", 256, 176, true},
    {F::q6_k, "q6_K", 256, 210, true},
    {F::iq1_s, "iq1_s", 256, 50, true},
    {F::iq1_m, "iq1_m", 256, 56, true},
    {F::iq2_xxs, "iq2_xxs", 256, 66, true},
    {F::iq2_xs, "iq2_xs", 256, 74, true},
    {F::iq2_s, "iq2_s", 256, 82, true},
    {F::iq3_xxs, "iq3_xxs", 256, 98, true},
    {F::iq3_s, "iq3_s", 256, 110, true},
    {F::iq4_xs, "iq4_xs", 256, 136, true},
    {F::tq1_0, "tq1_0", 256, 54, true},
    {F::tq2_0, "tq2_0", 256, 66, true},
    {F::mlx_affine, "mlx-affine", 0, 0, true},
    {F::mlx_mxfp4, "mlx-mxfp4", 0, 0, true},
    {F::mlx_mxfp8, "mlx-mxfp8", 0, 0, false},
    {F::mlx_nvfp4, "mlx-nvfp4", 0, 0, true},
    {F::f8_scaled, "f8-scaled", 0, 0, false},
    {F::int_scaled, "int-scaled", 0, 0, true},
});

constexpr bool in_enumeration_order() {
  for (size_t i = 0; i < kFormats.size(); ++i)
    if (static_cast<size_t>(kFormats[i].format) != i) return false;
  return true;
}
static_assert(in_enumeration_order(), "kFormats has one row per StorageFormat, in its order");
static_assert(kFormats.size() == static_cast<size_t>(F::int_scaled) + 1);

}  // namespace

const StorageFormatInfo& info(StorageFormat format) {
  KVASIR_CHECK(static_cast<size_t>(format) < kFormats.size());
  return kFormats[static_cast<size_t>(format)];
}

bool holds_reals(StorageFormat format) {
  return format < F::i8 || format > F::boolean;
}

std::string_view name(StorageFormat format) {
  return info(format).name;
}

std::optional<StorageFormat> storage_format_from_name(std::string_view text) {
  for (const StorageFormatInfo& row : kFormats)
    if (equal_ignoring_case(row.name, text)) return row.format;
  return std::nullopt;
}

std::span<const StorageFormatInfo> all_storage_formats() {
  return kFormats;
}

size_t WeightSource::stored_bytes() const {
  const size_t codes = static_cast<size_t>(rows) * row_bytes;
  if (info(format).block_elements != 0) return codes;
  KVASIR_CHECK(group_size > 0);
  const size_t groups = static_cast<size_t>(rows) * static_cast<size_t>(cols / group_size);
  const size_t plane = groups * size_of(scale_dtype);
  return codes + (format == StorageFormat::mlx_affine ? 2 : 1) * plane +
         (zeros ? groups * static_cast<size_t>(bits) / 8 : 0);
}

}  // namespace kvasir::formats
