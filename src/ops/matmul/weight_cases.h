// The list of weights that tests and benchmarks go through, and memory to pack them into.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_team.h"
#include "ops/matmul/packed_matrix.h"
#include "ops/matmul/random_weight.h"

namespace kvasir::ops {

struct WeightCase {
  formats::StorageFormat format;
  RandomWeight::Mlx mlx;
};

inline std::vector<WeightCase> weight_cases() {
  using F = formats::StorageFormat;
  std::vector<WeightCase> cases;
  for (const formats::StorageFormatInfo& info : formats::all_storage_formats()) {
    switch (info.format) {
      case F::i8:
      case F::i16:
      case F::i32:
      case F::i64:
      case F::u8:
      case F::u16:
      case F::u32:
      case F::u64:
      case F::boolean:
        continue;
      case F::mlx_affine:
        for (int bits : {2, 3, 4, 5, 6, 8}) cases.push_back({info.format, {bits, 64, Dtype::f16}});
        cases.push_back({info.format, {4, 32, Dtype::bf16}});
        cases.push_back({info.format, {4, 128, Dtype::f32}});
        cases.push_back({info.format, {8, 32, Dtype::f32}});
        cases.push_back({info.format, {3, 128, Dtype::bf16}});
        continue;
      case F::f8_scaled:
        for (int group : {32, 64, 128}) cases.push_back({info.format, {8, group, Dtype::f32}});
        cases.push_back({info.format, {8, 256, Dtype::bf16}});
        continue;
      case F::int_scaled:
        for (int bits : {2, 4, 8})
          for (int group : {32, 64, 128, 256})
            cases.push_back({info.format,
                             {bits, group, group == 64 ? Dtype::bf16 : Dtype::f16, true,
                              static_cast<uint8_t>(group == 128 ? 1 : 0)}});
        for (int bits : {2, 4, 8}) cases.push_back({info.format, {bits, 128, Dtype::f16}});
        cases.push_back({info.format, {4, 32, Dtype::f32, true, 1}});
        continue;
      default:
        cases.push_back({info.format, {}});
    }
  }
  return cases;
}

inline std::string case_name(const WeightCase& c) {
  std::string text(formats::name(c.format));
  if (c.format == formats::StorageFormat::mlx_affine)
    text += "_" + std::to_string(c.mlx.bits) + "_" + std::to_string(c.mlx.group_size) + "_" +
            std::string(name(c.mlx.scale_dtype));
  if (c.format == formats::StorageFormat::f8_scaled) text += "_" + std::to_string(c.mlx.group_size);
  if (c.format == formats::StorageFormat::int_scaled)
    text += "_" + std::to_string(c.mlx.bits) + "_" + std::to_string(c.mlx.group_size) + "_" +
            std::string(name(c.mlx.scale_dtype)) + (c.mlx.zeros ? "_zeros" : "") +
            (c.mlx.zero_base > 0 ? "_plus_one" : "");
  for (char& letter : text)
    if (letter == '-') letter = '_';
  return text;
}

// Columns come in multiples of this.
inline int64_t multiple_of(const WeightCase& c) {
  const formats::StorageFormatInfo& info = formats::info(c.format);
  if (info.block_elements > 0) return info.block_elements;
  return c.format == formats::StorageFormat::mlx_affine || c.format == formats::StorageFormat::f8_scaled ||
                 c.format == formats::StorageFormat::int_scaled
             ? c.mlx.group_size
         : c.format == formats::StorageFormat::mlx_nvfp4 ? 16
                                                         : 32;
}

// Widths that end inside a chunk, at its end, and past it; odd ones where the format allows them.
inline std::vector<int64_t> columns_of(const WeightCase& c) {
  const int64_t m = multiple_of(c);
  if (m == 1) return {1, 7, 33, 256, 301};
  if (m == 256) return {256, 768};
  if (m == 16) return {16, 48, 304};
  return {m, 3 * m, 256 + 3 * m};
}

inline RandomWeight make_weight(const WeightCase& c, int64_t rows, int64_t cols, uint64_t seed) {
  return RandomWeight(c.format, rows, cols, seed, c.mlx);
}

// Bytes on a cache line, filled with a pattern that packing must overwrite.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : size_(size), data_(size + kCacheLine, std::byte{0xA5}) {}
  std::span<std::byte> span() {
    const size_t skew = reinterpret_cast<uintptr_t>(data_.data()) % kCacheLine;
    return {data_.data() + (skew == 0 ? 0 : kCacheLine - skew), size_};
  }
  bool operator==(AlignedBytes& other) {
    return size_ == other.size_ && std::memcmp(span().data(), other.span().data(), size_) == 0;
  }

 private:
  size_t size_;
  std::vector<std::byte> data_;
};

struct PackedWeight {
  PackedWeight(const formats::WeightSource& source, ThreadTeam& team)
      : memory(PackedMatrix::packed_bytes(source)), matrix(PackedMatrix::pack(source, memory.span(), team)) {}
  AlignedBytes memory;
  PackedMatrix matrix;
};

}  // namespace kvasir::ops
