// For tests: what the canonical bytes of stored tokens stand for (kv-cache.md 3), in float64. Only the
// entries of codebooks are taken from the tables that the kernels read.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "kv/codecs/codec_layout.h"
#include "kv/codecs/rotation_tables.h"

namespace kvasir::kv::testing {

inline float half(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}
inline double element(Dtype type, const std::byte* p) {
  uint16_t bits;
  float x;
  switch (type) {
    case Dtype::f32:
      std::memcpy(&x, p, 4);
      return x;
    case Dtype::f16:
      return half(p);
    default:
      std::memcpy(&bits, p, 2);
      return bf16_to_f32(bits);
  }
}
inline unsigned stream(const std::byte* p, int bits, int index) {
  unsigned out = 0;
  for (int b = 0; b < bits; ++b) {
    const int at = index * bits + b;
    out |= ((std::to_integer<unsigned>(p[at / 8]) >> (at % 8)) & 1u) << b;
  }
  return out;
}

// Decodes one head's vector (kv-cache.md 3); rotated planes are un-rotated in float64.
inline std::vector<double> decode(const PlaneFormat& f, const DecodeTable& table, const std::byte* codes,
                                  const std::byte* scales, const std::byte* offsets) {
  std::vector<double> x(static_cast<size_t>(f.dim));
  for (int i = 0; i < f.dim; ++i) {
    double& out = x[static_cast<size_t>(i)];
    if (f.plain()) {
      out = element(f.codec.plain, codes + static_cast<size_t>(i) * size_of(f.codec.plain));
      continue;
    }
    const unsigned code = stream(codes, f.codec.bits, i);
    const size_t g = static_cast<size_t>(i / f.group) * static_cast<size_t>(f.scale_size);
    if (f.codec.kind == PlaneCodec::Kind::affine) {
      out = element(f.codec.scale_dtype, scales + g) * code + element(f.codec.scale_dtype, offsets + g);
    } else if (f.codec.kind == PlaneCodec::Kind::turbo_key) {
      const double q = f.codec.bits == 8 ? static_cast<double>(static_cast<int8_t>(code)) : code;
      out = (q + half(offsets + g)) * half(scales + g);
    } else if (f.codec.kind == PlaneCodec::Kind::rotated) {
      out = static_cast<double>(table.values[code]) * half(scales + g);
    } else {
      const double whole = f.codec.bits == 8 ? static_cast<int8_t>(code)
                                             : static_cast<double>(code) - (1 << (f.codec.bits - 1));
      out = whole * half(scales + g);
    }
  }
  if (f.codec.rotates()) {
    for (int h = 1; h < f.dim; h *= 2)
      for (int i = 0; i < f.dim; i += 2 * h)
        for (int j = i; j < i + h; ++j) {
          const double a = x[static_cast<size_t>(j)], b = x[static_cast<size_t>(j + h)];
          x[static_cast<size_t>(j)] = a + b;
          x[static_cast<size_t>(j + h)] = a - b;
        }
    const uint64_t* signs = rotation_signs(f.dim);
    for (int i = 0; i < f.dim; ++i)
      x[static_cast<size_t>(i)] *= (((signs[i / 64] >> (i % 64)) & 1u) != 0 ? -1.0 : 1.0) / std::sqrt(f.dim);
  }
  return x;
}

// One layer's keys and values of one token, head by head, from its canonical bytes.
struct DecodedToken {
  std::vector<std::vector<double>> k, v;  // [kv_heads][head_dim]
};
inline DecodedToken decode_token(const CodecLayout& layout, int layer, std::span<const std::byte> bytes) {
  DecodedToken out;
  const auto heads = static_cast<size_t>(layout.geometry().kv_heads);
  const size_t layer_bytes = bytes.size() / static_cast<size_t>(layout.geometry().layers);
  const std::byte* at = bytes.data() + static_cast<size_t>(layer) * layer_bytes;
  for (const bool keys : {true, false}) {
    const PlaneFormat& f = keys ? layout.key() : layout.value();
    const std::byte* scales = at + heads * f.row_code_bytes;
    const std::byte* offsets = scales + heads * f.row_scale_bytes;
    for (size_t h = 0; h < heads; ++h)
      (keys ? out.k : out.v)
          .push_back(decode(f, keys ? layout.key_table() : layout.value_table(), at + h * f.row_code_bytes,
                            scales + h * f.row_scale_bytes, offsets + h * f.row_scale_bytes));
    at += heads * f.row_bytes();
  }
  return out;
}

}  // namespace kvasir::kv::testing
