// Random valid weights of every storage format, for tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/storage_format.h"

namespace kvasir::ops {

// A source and the memory that it views. Random bytes everywhere, but for scales: those are finite, of either
// sign where the format allows it, and small enough that values are around 1.
class RandomWeight {
 public:
  struct Mlx {
    int bits = 4;
    int group_size = 64;
    Dtype scale_dtype = Dtype::f16;
    bool zeros = false;  // int_scaled
    uint8_t zero_base = 0;
  };

  RandomWeight(formats::StorageFormat format, int64_t rows, int64_t cols, uint64_t seed,
               const Mlx& mlx = {4, 64, Dtype::f16, false, 0})
      : state_(seed * 2654435761u + 88172645463325252u) {
    using F = formats::StorageFormat;
    source_.name = "random " + std::string(formats::name(format));
    source_.format = format;
    source_.rows = rows;
    source_.cols = cols;
    const formats::StorageFormatInfo& info = formats::info(format);
    if (info.block_elements > 0) {
      source_.row_bytes =
          static_cast<size_t>(cols / info.block_elements) * static_cast<size_t>(info.block_bytes);
    } else {
      const bool sized = format == F::mlx_affine || format == F::f8_scaled || format == F::int_scaled;
      source_.bits = sized ? mlx.bits : format == F::mlx_mxfp8 ? 8 : 4;
      source_.group_size = sized ? mlx.group_size : format == F::mlx_nvfp4 ? 16 : 32;
      source_.scale_dtype = sized ? mlx.scale_dtype : Dtype::u8;
      source_.zeros = mlx.zeros;
      source_.zero_base = mlx.zero_base;
      source_.row_bytes = static_cast<size_t>(cols) * static_cast<size_t>(source_.bits) / 8;
    }
    data_.resize(static_cast<size_t>(rows) * source_.row_bytes + 8);
    for (size_t i = 0; i + 8 <= data_.size(); i += 8) {
      const uint64_t word = next();
      __builtin_memcpy(data_.data() + i, &word, 8);
    }
    fix_data(info);
    if (format == F::f8_scaled || format == F::int_scaled) {
      source_.reader = std::make_shared<Rows>(*this);
      return;
    }
    if (source_.group_size > 0) fill_scales();
    source_.data = reinterpret_cast<const std::byte*>(data_.data());
  }

  const formats::WeightSource& source() const { return source_; }
  formats::WeightSource& source() { return source_; }

 private:
  // Codes, scales and zero points of the *_scaled formats, one an element.
  class Rows final : public formats::RowReader {
   public:
    explicit Rows(RandomWeight& from)
        : cols_(from.source_.cols), group_(from.source_.group_size), codes_(from.data_) {
      const formats::WeightSource& source = from.source_;
      const bool floats = source.format == formats::StorageFormat::f8_scaled;
      codes_.resize(static_cast<size_t>(source.rows * source.cols) + 8);
      for (size_t i = from.data_.size(); i < codes_.size(); ++i)
        codes_[i] = static_cast<uint8_t>(from.next());
      if (!floats)
        for (uint8_t& code : codes_) code = static_cast<uint8_t>(code & ((1 << source.bits) - 1));
      for (int64_t g = 0; g < source.rows * (cols_ / group_); ++g) {
        scales_.push_back(
            from.scale_bits(from.uniform() / static_cast<float>(floats ? 16 : 1 << source.bits)));
        zeros_.push_back(
            static_cast<uint16_t>(source.zeros ? (from.next() >> 32) % (1u << source.bits) + source.zero_base
                                               : 1u << (source.bits - 1)));
      }
    }
    void read(int64_t row, int64_t col, int64_t count, uint8_t* codes, uint32_t* scales,
              uint16_t* zeros) const override {
      __builtin_memcpy(codes, codes_.data() + row * cols_ + col, static_cast<size_t>(count));
      for (int64_t g = row * (cols_ / group_) + col / group_; count > 0; ++g, count -= group_) {
        *scales++ = scales_[static_cast<size_t>(g)];
        *zeros++ = zeros_[static_cast<size_t>(g)];
      }
    }

   private:
    const int64_t cols_, group_;
    std::vector<uint8_t> codes_;
    std::vector<uint32_t> scales_;
    std::vector<uint16_t> zeros_;
  };

  uint32_t scale_bits(float value) const {
    uint32_t bits = 0;
    if (source_.scale_dtype == Dtype::f16) bits = f32_to_f16(value);
    if (source_.scale_dtype == Dtype::bf16) bits = f32_to_bf16(value);
    if (source_.scale_dtype == Dtype::f32) __builtin_memcpy(&bits, &value, 4);
    return bits;
  }
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)

  void put_f16(size_t at, float value) {
    const uint16_t bits = f32_to_f16(value);
    __builtin_memcpy(data_.data() + at, &bits, 2);
  }

  void fix_data(const formats::StorageFormatInfo& info) {
    using F = formats::StorageFormat;
    const size_t elements = static_cast<size_t>(source_.rows * source_.cols);
    switch (info.format) {
      case F::f64:
        for (size_t i = 0; i < elements; ++i) {
          const double value = uniform();
          __builtin_memcpy(data_.data() + 8 * i, &value, 8);
        }
        return;
      case F::f32:
        for (size_t i = 0; i < elements; ++i) {
          const float value = uniform();
          __builtin_memcpy(data_.data() + 4 * i, &value, 4);
        }
        return;
      case F::f16:
        for (size_t i = 0; i < elements; ++i) put_f16(2 * i, uniform());
        return;
      case F::bf16:
        for (size_t i = 0; i < elements; ++i) {
          const uint16_t bits = f32_to_bf16(uniform());
          __builtin_memcpy(data_.data() + 2 * i, &bits, 2);
        }
        return;
      case F::f8_e4m3:
      case F::mlx_mxfp8:
      case F::f8_scaled:
        for (uint8_t& byte : data_) byte = static_cast<uint8_t>((byte & 0x80) | ((byte & 0x7F) % 0x48));
        return;
      case F::f8_e5m2:
        for (uint8_t& byte : data_) byte = static_cast<uint8_t>((byte & 0x80) | ((byte & 0x7F) % 0x40));
        return;
      default:
        break;
    }
    if (info.block_bytes == 0) return;
    const auto block = static_cast<size_t>(info.block_bytes);
    for (size_t at = 0; at + block <= data_.size() - 8; at += block) fix_block(info.format, at);
  }

  void fix_block(formats::StorageFormat format, size_t at) {
    using F = formats::StorageFormat;
    const float x = uniform(), y = uniform();
    switch (format) {
      case F::q4_1:
      case F::q5_1:
        put_f16(at, x * 0.05f);
        return put_f16(at + 2, y);
      case F::q8_0:
        return put_f16(at, x * 0.008f);
      case F::q2_k:
        put_f16(at + 80, x * 0.02f);
        return put_f16(at + 82, y * 0.05f);
      case F::q3_k:
        return put_f16(at + 108, x * 0.01f);
      case F::q4_k:
      case F::q5_k:
        put_f16(at, x * 0.001f);
        return put_f16(at + 2, y * 0.01f);
      case F::q6_k:
        return put_f16(at + 208, x * 0.0003f);
      case F::tq1_0:
        return put_f16(at + 52, x);
      case F::tq2_0:
        return put_f16(at + 64, x);
      case F::iq1_m:  // d's bits are the top nibbles of the last four words
      {
        const uint16_t bits = f32_to_f16(x * 0.05f);
        for (int k = 0; k < 4; ++k) {
          uint8_t& byte = data_[at + 49 + 2 * static_cast<size_t>(k)];
          byte = static_cast<uint8_t>((byte & 15) | ((bits >> (4 * k)) & 15) << 4);
        }
        return;
      }
      case F::mxfp4:
        data_[at] = static_cast<uint8_t>(120 + next() % 10);
        return;
      case F::nvfp4:
        for (size_t s = 0; s < 4; ++s) data_[at + s] = static_cast<uint8_t>(next() % 0x40);
        return;
      case F::iq4_nl:
        return put_f16(at, x * 0.01f);
      case F::iq4_xs:
        return put_f16(at, x * 0.0005f);
      case F::iq2_xxs:
      case F::iq2_xs:
      case F::iq2_s:
      case F::iq3_xxs:
      case F::iq3_s:
        return put_f16(at, x * 0.005f);
      default:
        return put_f16(at, x * 0.1f);
    }
  }

  void fill_scales() {
    const auto groups = static_cast<size_t>(source_.rows * (source_.cols / source_.group_size));
    const size_t size = size_of(source_.scale_dtype);
    scales_.resize(groups * size);
    const bool affine = source_.format == formats::StorageFormat::mlx_affine;
    if (affine) biases_.resize(groups * size);
    const auto put = [&](std::vector<uint8_t>& plane, size_t g, float value) {
      const uint32_t bits = scale_bits(value);
      __builtin_memcpy(plane.data() + g * size, &bits, size);
    };
    for (size_t g = 0; g < groups; ++g) {
      if (affine) {
        put(scales_, g, uniform() / static_cast<float>(1 << source_.bits));
        put(biases_, g, uniform());
      } else if (source_.format == formats::StorageFormat::mlx_nvfp4) {
        scales_[g] = static_cast<uint8_t>((next() & 0x80) | next() % 0x40);
      } else {
        scales_[g] = static_cast<uint8_t>(120 + next() % 8);
      }
    }
    source_.scales = reinterpret_cast<const std::byte*>(scales_.data());
    if (affine) source_.biases = reinterpret_cast<const std::byte*>(biases_.data());
  }

  uint64_t state_;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> scales_;
  std::vector<uint8_t> biases_;
  formats::WeightSource source_;
};

}  // namespace kvasir::ops
