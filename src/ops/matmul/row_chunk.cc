#include "ops/matmul/row_chunk.h"

#include <cstring>

#include "base/error.h"

namespace kvasir::ops {
namespace {

using F = formats::StorageFormat;

uint16_t load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}
uint32_t load32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// 16 bytes of nibbles: low ones are columns 0..15, high ones 16..31.
void split_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + 16] = bytes[j] >> 4;
  }
}

void add_fifth_bits(uint32_t high, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((high >> j) & 1u) << 4);
}

// A little-endian bit stream of `bits`-bit codes starting at code 0 (columns come in multiples of 8 codes,
// which are whole bytes).
void unpack_stream(const uint8_t* bytes, int bits, int count, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, bytes, static_cast<size_t>(count));
    return;
  }
  if (bits == 4) {
    for (int i = 0; i < count / 2; ++i) {
      codes[2 * i] = bytes[i] & 15;
      codes[2 * i + 1] = bytes[i] >> 4;
    }
    return;
  }
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (int i = 0; i < count; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i / 8 * bits, static_cast<size_t>(bits));
    for (int j = 0; j < 8; ++j) codes[i + j] = static_cast<uint8_t>((word >> (j * bits)) & mask);
  }
}

void extract_block32(F format, const uint8_t* block, int index, RowChunk& out) {
  uint8_t* codes = out.codes + 32 * index;
  switch (format) {
    case F::q4_0:
    case F::iq4_nl:
      out.scales[index] = load16(block);
      return split_nibbles(block + 2, codes);
    case F::q4_1:
      out.scales[index] = load16(block);
      out.minima[index] = load16(block + 2);
      return split_nibbles(block + 4, codes);
    case F::q5_0:
      out.scales[index] = load16(block);
      split_nibbles(block + 6, codes);
      return add_fifth_bits(load32(block + 2), codes);
    case F::q5_1:
      out.scales[index] = load16(block);
      out.minima[index] = load16(block + 2);
      split_nibbles(block + 8, codes);
      return add_fifth_bits(load32(block + 4), codes);
    case F::q8_0:
      out.scales[index] = load16(block);
      for (int j = 0; j < 32; ++j) codes[j] = block[2 + j] ^ 0x80;
      return;
    case F::mxfp4:
      out.scales[index] = block[0];
      return split_nibbles(block + 1, codes);
    default:
      KVASIR_CHECK_MSG(false, "no block of 32");
  }
}

void k_scale_min(const uint8_t* s, RowChunk& out) {
  for (int b = 0; b < 4; ++b) {
    out.sub_scales[b] = s[b] & 63;
    out.sub_minima[b] = s[b + 4] & 63;
  }
  for (int b = 4; b < 8; ++b) {
    out.sub_scales[b] = static_cast<uint8_t>((s[b + 4] & 15) | (s[b - 4] >> 6) << 4);
    out.sub_minima[b] = static_cast<uint8_t>((s[b + 4] >> 4) | (s[b] >> 6) << 4);
  }
}

void extract_super_block(F format, const uint8_t* block, RowChunk& out) {
  uint8_t* codes = out.codes;
  switch (format) {
    case F::q2_k:
      out.d = load16(block + 80);
      out.dmin = load16(block + 82);
      for (int k = 0; k < 16; ++k) {
        out.sub_scales[k] = block[k] & 15;
        out.sub_minima[k] = block[k] >> 4;
      }
      for (int h = 0; h < 2; ++h)
        for (int j = 0; j < 4; ++j)
          for (int l = 0; l < 32; ++l)
            codes[128 * h + 32 * j + l] = static_cast<uint8_t>((block[16 + 32 * h + l] >> (2 * j)) & 3);
      return;
    case F::q3_k: {
      const uint8_t* s = block + 96;
      out.d = load16(block + 108);
      for (int k = 0; k < 16; ++k)
        out.sub_scales[k] = static_cast<uint8_t>(((s[k % 8] >> (4 * (k / 8))) & 15) |
                                                 ((s[8 + k % 4] >> (2 * (k / 4))) & 3) << 4);
      for (int h = 0; h < 2; ++h)
        for (int j = 0; j < 4; ++j)
          for (int l = 0; l < 32; ++l)
            codes[128 * h + 32 * j + l] = static_cast<uint8_t>(((block[32 + 32 * h + l] >> (2 * j)) & 3) |
                                                               ((block[l] >> (4 * h + j)) & 1) << 2);
      return;
    }
    case F::q4_k:
    case F::q5_k: {
      out.d = load16(block);
      out.dmin = load16(block + 2);
      k_scale_min(block + 4, out);
      const uint8_t* low = block + (format == F::q4_k ? 16 : 48);
      for (int p = 0; p < 4; ++p)
        for (int l = 0; l < 32; ++l) {
          codes[64 * p + l] = low[32 * p + l] & 15;
          codes[64 * p + 32 + l] = low[32 * p + l] >> 4;
        }
      if (format == F::q5_k)
        for (int b = 0; b < 8; ++b)
          for (int l = 0; l < 32; ++l)
            codes[32 * b + l] = static_cast<uint8_t>(codes[32 * b + l] | ((block[16 + l] >> b) & 1) << 4);
      return;
    }
    case F::q6_k:
      out.d = load16(block + 208);
      std::memcpy(out.sub_scales, block + 192, 16);
      for (int h = 0; h < 2; ++h)
        for (int l = 0; l < 32; ++l) {
          const int low0 = block[64 * h + l], low1 = block[64 * h + 32 + l], high = block[128 + 32 * h + l];
          codes[128 * h + l] = static_cast<uint8_t>((low0 & 15) | (high & 3) << 4);
          codes[128 * h + 32 + l] = static_cast<uint8_t>((low1 & 15) | ((high >> 2) & 3) << 4);
          codes[128 * h + 64 + l] = static_cast<uint8_t>((low0 >> 4) | ((high >> 4) & 3) << 4);
          codes[128 * h + 96 + l] = static_cast<uint8_t>((low1 >> 4) | ((high >> 6) & 3) << 4);
        }
      return;
    case F::iq4_xs: {
      out.d = load16(block);
      const uint32_t high = load16(block + 2);
      for (int b = 0; b < 8; ++b) {
        out.sub_scales[b] =
            static_cast<uint8_t>(((block[4 + b / 2] >> (4 * (b % 2))) & 15) | ((high >> (2 * b)) & 3) << 4);
        split_nibbles(block + 8 + 16 * b, codes + 32 * b);
      }
      return;
    }
    case F::tq2_0:
      out.scales[0] = load16(block + 64);
      for (int g = 0; g < 2; ++g)
        for (int n = 0; n < 4; ++n)
          for (int m = 0; m < 32; ++m) *codes++ = static_cast<uint8_t>((block[32 * g + m] >> (2 * n)) & 3);
      return;
    case F::tq1_0:
      out.scales[0] = load16(block + 52);
      std::memcpy(out.dwords, block, 52);
      return;
    case F::iq1_m:
      std::memcpy(out.dwords, block, 56);
      out.d = static_cast<uint16_t>((load16(block + 48) >> 12) | (load16(block + 50) >> 12) << 4 |
                                    (load16(block + 52) >> 12) << 8 | (load16(block + 54) >> 12) << 12);
      return;
    default:  // the other grids: d, then whole dwords
      out.d = load16(block);
      std::memcpy(out.dwords, block + 2, static_cast<size_t>(formats::info(format).block_bytes) - 2);
  }
}

bool finite_scale(ScaleKind kind, uint32_t bits) {
  switch (kind) {
    case ScaleKind::f16:
      return (bits & 0x7C00u) != 0x7C00u;
    case ScaleKind::bf16:
      return (bits & 0x7F80u) != 0x7F80u;
    case ScaleKind::f32:
      return (bits & 0x7F800000u) != 0x7F800000u;
    case ScaleKind::e8m0:
    case ScaleKind::e8m0_half:
      return bits != 0xFFu;
    case ScaleKind::e4m3_half:
      return (bits & 0x7Fu) != 0x7Fu;
    default:
      return true;
  }
}

}  // namespace

void extract(const formats::WeightSource& source, const ComputeLayout& layout, int64_t row, int64_t col,
             int cols, RowChunk& out) {
  const auto* data = source.row_data(row);
  const formats::StorageFormatInfo& format = formats::info(source.format);
  if (cols % kBlockCols != 0)
    std::memset(out.codes + cols, 0, static_cast<size_t>(kBlockCols - cols % kBlockCols));
  switch (source.format) {
    case F::f8_e4m3:
    case F::f8_e5m2:
      std::memcpy(out.codes, data + col, static_cast<size_t>(cols));
      return;
    case F::mlx_affine:
    case F::mlx_mxfp4:
    case F::mlx_mxfp8:
    case F::mlx_nvfp4: {
      const int bits = source.format == F::mlx_affine ? source.bits : source.format == F::mlx_mxfp8 ? 8 : 4;
      unpack_stream(data + static_cast<size_t>(col) * static_cast<size_t>(bits) / 8, bits, cols, out.codes);
      const size_t size = size_of(source.scale_dtype);
      const size_t first =
          static_cast<size_t>(row * (source.cols / source.group_size) + col / source.group_size);
      for (int g = 0; g < (cols + source.group_size - 1) / source.group_size; ++g) {
        out.scales[g] = out.minima[g] = 0;
        std::memcpy(&out.scales[g], source.scales + (first + static_cast<size_t>(g)) * size, size);
        if (layout.minima)
          std::memcpy(&out.minima[g], source.biases + (first + static_cast<size_t>(g)) * size, size);
      }
      return;
    }
    case F::f8_scaled:
    case F::int_scaled: {
      uint16_t zeros[16] = {};
      source.reader->read(source.first_row + row, col, cols, out.codes, out.scales, zeros);
      for (int g = 0; g < 16; ++g)
        out.minima[g] = static_cast<uint8_t>(zeros[g] - (layout.zeros ? layout.zero_base : zeros[g]));
      return;
    }
    case F::nvfp4: {
      const uint8_t* block = data + static_cast<size_t>(col) / 64 * 36;
      for (int b = 0; b < cols / 64; ++b, block += 36)
        for (int s = 0; s < 4; ++s) {
          out.scales[4 * b + s] = block[s];
          for (int t = 0; t < 8; ++t) {
            out.codes[64 * b + 16 * s + t] = block[4 + 8 * s + t] & 15;
            out.codes[64 * b + 16 * s + t + 8] = block[4 + 8 * s + t] >> 4;
          }
        }
      return;
    }
    case F::q1_0: {
      const uint8_t* block = data + static_cast<size_t>(col) / 128 * 18;
      for (int b = 0; b < cols / 128; ++b, block += 18) {
        out.scales[b] = load16(block);
        for (int i = 0; i < 128; ++i) out.codes[128 * b + i] = (block[2 + i / 8] >> (i % 8)) & 1;
      }
      return;
    }
    case F::q2_0: {
      const uint8_t* block = data + static_cast<size_t>(col) / 64 * 18;
      for (int b = 0; b < cols / 64; ++b, block += 18) {
        out.scales[b] = load16(block);
        for (int i = 0; i < 64; ++i) out.codes[64 * b + i] = (block[2 + i / 4] >> (2 * (i % 4))) & 3;
      }
      return;
    }
    default:
      break;
  }
  const auto bytes = static_cast<size_t>(format.block_bytes);
  if (format.block_elements == 32) {
    const uint8_t* block = data + static_cast<size_t>(col) / 32 * bytes;
    for (int b = 0; b < cols / 32; ++b)
      extract_block32(source.format, block + static_cast<size_t>(b) * bytes, b, out);
    return;
  }
  KVASIR_CHECK(format.block_elements == kChunkCols && cols == kChunkCols);
  extract_super_block(source.format, data + static_cast<size_t>(col) / kChunkCols * bytes, out);
}

int non_finite_column(const ComputeLayout& layout, int cols, const RowChunk& chunk) {
  switch (layout.scales) {
    case ScaleKind::none:
      break;
    case ScaleKind::k4:
    case ScaleKind::k2:
      if (!finite_scale(ScaleKind::f16, chunk.dmin)) return 0;
      [[fallthrough]];
    case ScaleKind::k6:
    case ScaleKind::k3:
    case ScaleKind::iq4_xs:
    case ScaleKind::grid:
      if (!finite_scale(ScaleKind::f16, chunk.d)) return 0;
      break;
    default:
      for (int g = 0; g * layout.group < cols; ++g)
        if (!finite_scale(layout.scales, chunk.scales[g]) ||
            (layout.minima && !layout.zeros && !finite_scale(layout.scales, chunk.minima[g])))
          return g * layout.group;
  }
  if (layout.codes == CodeKind::e4m3 || layout.codes == CodeKind::e5m2) {
    for (int i = 0; i < cols; ++i) {
      const int magnitude = chunk.codes[i] & 0x7F;
      if (layout.codes == CodeKind::e4m3 ? magnitude == 0x7F : magnitude >= 0x7C) return i;
    }
  }
  return -1;
}

}  // namespace kvasir::ops
