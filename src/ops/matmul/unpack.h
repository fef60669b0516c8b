// From a packed chunk to what the tiles multiply: one code a byte in quads, one f32 scale (and minimum) a row
// and sub-block; or plain f32 values. Included by kernel sources inside their per-level namespace, after
// simd.h.

struct CodeChunk {
  alignas(64) uint8_t codes[kChunkCols / 4][64];  // [quad][4 * lane + t]
  alignas(64) float scale[16][kPanelRows];        // [sub-block][lane]
  alignas(64) float minimum[16][kPanelRows];      // added
};

// Codes that use the upper half of a byte.
KVASIR_INLINE bool wide_codes(const ComputeLayout& layout) {
  return (layout.codes == CodeKind::codes && layout.bits == 8) || layout.table == Table::iq4;
}

// The sixteen values of a table, offset to be unsigned. e2m1_signed_zero marks minus zero as 64 + 12, for
// expand().
template <Table kTable>
KVASIR_INLINE Bytes look_up_table() {
  static constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
  static constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  alignas(64) uint8_t bytes[64];
  for (int i = 0; i < 64; ++i)
    bytes[i] = static_cast<uint8_t>(kTable == Table::iq4                               ? kIq4[i % 16] + 128
                                    : kTable == Table::e2m1_signed_zero && i % 16 == 8 ? 64 + 12
                                                                                       : kE2m1[i % 16] + 12);
  return load(bytes);
}

template <int q>
KVASIR_INLINE Bytes two_bits(const Bytes (&plane)[2], int to) {
  // Field q % 4 of plane q / 4, moved to bit `to` (0, 2 or 4) of each byte.
  if (to == 4) return bit_and(shift_plane<2 * (q % 4) - 4>(plane[q / 4]), set1_byte(0x30));
  return bit_and(shift_plane<2 * (q % 4)>(plane[q / 4]), set1_byte(3));
}
template <int q, int to>
KVASIR_INLINE Bytes one_bit(Bytes plane) {
  return bit_and(shift_plane<q - to>(plane), set1_byte(1 << to));
}

// Quads q and q + 4 of one block.
template <int bits, int q>
KVASIR_INLINE void block_pair(const uint8_t* p, Bytes& low, Bytes& high) {
  static_assert(q < 4 && (bits == 4 || bits == 5 || bits == 8));
  if constexpr (bits == 8) {
    low = load(p + 64 * q);
    high = load(p + 64 * (q + 4));
  } else {
    const Bytes both = load(p + 64 * q);
    low = bit_and(both, set1_byte(15));
    high = bit_and(shift_plane<4>(both), set1_byte(15));
    if constexpr (bits == 5) {
      const Bytes plane = load(p + 256);
      low = bit_or(low, one_bit<q, 4>(plane));
      high = bit_or(high, one_bit<q + 4, 4>(plane));
    }
  }
}

// The eight quads of one block of `bits`-bit planes.
template <int bits>
KVASIR_INLINE void block_quads(const uint8_t* p, Bytes (&quads)[8]) {
  const Bytes low_nibble = set1_byte(15);
  if constexpr (bits == 8) {
    for (int q = 0; q < 8; ++q) quads[q] = load(p + 64 * q);
  } else if constexpr (bits >= 4) {
    for (int i = 0; i < 4; ++i) {
      const Bytes both = load(p + 64 * i);
      quads[i] = bit_and(both, low_nibble);
      quads[i + 4] = bit_and(shift_plane<4>(both), low_nibble);
    }
    if constexpr (bits == 5) {
      const Bytes plane = load(p + 256);
      quads[0] = bit_or(quads[0], one_bit<0, 4>(plane));
      quads[1] = bit_or(quads[1], one_bit<1, 4>(plane));
      quads[2] = bit_or(quads[2], one_bit<2, 4>(plane));
      quads[3] = bit_or(quads[3], one_bit<3, 4>(plane));
      quads[4] = bit_or(quads[4], one_bit<4, 4>(plane));
      quads[5] = bit_or(quads[5], one_bit<5, 4>(plane));
      quads[6] = bit_or(quads[6], one_bit<6, 4>(plane));
      quads[7] = bit_or(quads[7], one_bit<7, 4>(plane));
    }
    if constexpr (bits == 6) {
      const Bytes plane[2] = {load(p + 256), load(p + 320)};
      quads[0] = bit_or(quads[0], two_bits<0>(plane, 4));
      quads[1] = bit_or(quads[1], two_bits<1>(plane, 4));
      quads[2] = bit_or(quads[2], two_bits<2>(plane, 4));
      quads[3] = bit_or(quads[3], two_bits<3>(plane, 4));
      quads[4] = bit_or(quads[4], two_bits<4>(plane, 4));
      quads[5] = bit_or(quads[5], two_bits<5>(plane, 4));
      quads[6] = bit_or(quads[6], two_bits<6>(plane, 4));
      quads[7] = bit_or(quads[7], two_bits<7>(plane, 4));
    }
  } else if constexpr (bits >= 2) {
    const Bytes plane[2] = {load(p), load(p + 64)};
    quads[0] = two_bits<0>(plane, 0);
    quads[1] = two_bits<1>(plane, 0);
    quads[2] = two_bits<2>(plane, 0);
    quads[3] = two_bits<3>(plane, 0);
    quads[4] = two_bits<4>(plane, 0);
    quads[5] = two_bits<5>(plane, 0);
    quads[6] = two_bits<6>(plane, 0);
    quads[7] = two_bits<7>(plane, 0);
    if constexpr (bits == 3) {
      const Bytes high = load(p + 128);
      quads[0] = bit_or(quads[0], one_bit<0, 2>(high));
      quads[1] = bit_or(quads[1], one_bit<1, 2>(high));
      quads[2] = bit_or(quads[2], one_bit<2, 2>(high));
      quads[3] = bit_or(quads[3], one_bit<3, 2>(high));
      quads[4] = bit_or(quads[4], one_bit<4, 2>(high));
      quads[5] = bit_or(quads[5], one_bit<5, 2>(high));
      quads[6] = bit_or(quads[6], one_bit<6, 2>(high));
      quads[7] = bit_or(quads[7], one_bit<7, 2>(high));
    }
  } else {
    // One bit b stands for 2b - 1 (Q1_0: offset 1), so it is moved to bit 1.
    const Bytes plane = load(p);
    quads[0] = one_bit<0, 1>(plane);
    quads[1] = one_bit<1, 1>(plane);
    quads[2] = one_bit<2, 1>(plane);
    quads[3] = one_bit<3, 1>(plane);
    quads[4] = one_bit<4, 1>(plane);
    quads[5] = one_bit<5, 1>(plane);
    quads[6] = one_bit<6, 1>(plane);
    quads[7] = one_bit<7, 1>(plane);
  }
}

template <int bits>
KVASIR_INLINE void unpack_planes(const uint8_t* p, int blocks, uint8_t (*out)[64]) {
  for (int b = 0; b < blocks; ++b, p += 64 * bits, out += 8) {
    Bytes quads[8];
    block_quads<bits>(p, quads);
    for (int q = 0; q < 8; ++q) store(out[q], quads[q]);
  }
}

KVASIR_INLINE void unpack_table(const uint8_t* p, int blocks, Bytes table, uint8_t (*out)[64]) {
  for (int b = 0; b < blocks; ++b, p += 256, out += 8) {
    Bytes quads[8];
    block_quads<4>(p, quads);
    for (int q = 0; q < 8; ++q) store(out[q], look_up(table, quads[q]));
  }
}

// TQ1_0: byte x of a dword holds five digits; digit n is floor(3 * (x * 3^n mod 256) / 256). Vector j (bytes
// 4j .. 4j + 3 of the stored block) gives quad 8n + j for j < 8, 40 + 4n + (j - 8) for 8 <= j < 12, and 60 +
// n for j = 12 (four digits only).
KVASIR_INLINE void unpack_trits(const uint8_t* p, uint8_t (*out)[64]) {
  for (int j = 0; j < 13; ++j) {
    uint8_t x[64];
    __builtin_memcpy(x, p + 64 * j, 64);
    const int digits = j == 12 ? 4 : 5;
    for (int n = 0; n < digits; ++n) {
      uint8_t* quad = out[j < 8 ? 8 * n + j : j < 12 ? 40 + 4 * n + (j - 8) : 60 + n];
      for (int i = 0; i < 64; ++i) {
        quad[i] = static_cast<uint8_t>((x[i] * 3) >> 8);
        x[i] = static_cast<uint8_t>(x[i] * 3);
      }
    }
  }
}

#include "ops/matmul/unpack_grid.h"

// Codes of `blocks` blocks. `marked_zero`: a code of minus zero becomes 76, for expand() to tell (12
// otherwise).
KVASIR_INLINE void unpack_codes(const KernelWeight& weight, const uint8_t* p, int blocks, bool marked_zero,
                                uint8_t (*out)[64]) {
  const ComputeLayout& layout = weight.layout;
  switch (layout.codes) {
    case CodeKind::table:
      if (layout.table == Table::iq4) return unpack_table(p, blocks, look_up_table<Table::iq4>(), out);
      if (marked_zero) return unpack_table(p, blocks, look_up_table<Table::e2m1_signed_zero>(), out);
      return unpack_table(p, blocks, look_up_table<Table::e2m1_doubled>(), out);
    case CodeKind::trits:
      return unpack_trits(p, out);
    case CodeKind::grid:
      return unpack_grid(weight, p, out);
    default:
      break;
  }
  switch (layout.bits) {
    case 1:
      return unpack_planes<1>(p, blocks, out);
    case 2:
      return unpack_planes<2>(p, blocks, out);
    case 3:
      return unpack_planes<3>(p, blocks, out);
    case 4:
      return unpack_planes<4>(p, blocks, out);
    case 5:
      return unpack_planes<5>(p, blocks, out);
    case 6:
      return unpack_planes<6>(p, blocks, out);
    default:
      return unpack_planes<8>(p, blocks, out);
  }
}

// 1 in lanes that hold n, 0 in others; lanes are bytes.
template <int n>
KVASIR_INLINE Ints is_byte(Ints x) {
  const Ints other = n == 0 ? x : as_ints(bit_xor(as_bytes(x), as_bytes(set1(n))));
  return shift_right<31>(sub(other, set1(1)));
}

// 8-bit scales as f32.
KVASIR_INLINE Floats e8m0(Ints x) {  // 2^(x - 127); x = 0 is the subnormal 2^-127
  return as_floats(bit_or(shift_left<23>(x), shift_left<22>(is_byte<0>(x))));
}
KVASIR_INLINE Floats e8m0_half(Ints x) {  // 2^(x - 128); x = 0 and 1 are subnormal
  const Ints zero = is_byte<0>(x);
  const Ints exponent = add(sub(x, set1(1)), zero);
  return as_floats(
      bit_or(shift_left<23>(exponent), bit_or(shift_left<21>(zero), shift_left<22>(is_byte<1>(x)))));
}
// The seven low bits as the top of an f32 of the wrong exponent, times 2^120; subnormals come out right.
KVASIR_INLINE Floats e4m3(Ints x) {
  const Floats magnitude = mul(as_floats(shift_left<20>(bit_and(x, set1(0x7F)))), as_floats(set1(247 << 23)));
  return as_floats(bit_or(as_ints(magnitude), shift_left<24>(bit_and(x, set1(0x80)))));
}
KVASIR_INLINE Floats ue4m3(Ints x) {                   // sign ignored; the byte 0x7F is 0
  const Ints others = sub(is_byte<0x7F>(x), set1(1));  // all bits, or none where x is 0x7F
  return e4m3(bit_and(bit_and(x, set1(0x7F)), others));
}

template <int i>
KVASIR_INLINE Floats six_bit_field(const Ints (&words)[3]) {
  if constexpr (i < 15) {
    return to_float(bit_and(shift_right<6 * (i % 5)>(words[i / 5]), set1(63)));
  } else {
    return to_float(
        bit_or(shift_right<30>(words[0]), bit_or(bit_and(shift_right<28>(words[1]), set1(0xC)),
                                                 bit_and(shift_right<26>(words[2]), set1(0x30)))));
  }
}

template <int i>
KVASIR_INLINE void k4_pairs(const Ints (&words)[3], Floats d, Floats minus_dmin, CodeChunk& out) {
  if constexpr (i < 8) {
    store(out.scale[i], mul(d, six_bit_field<i>(words)));
    store(out.minimum[i], mul(minus_dmin, six_bit_field<i + 8>(words)));
    k4_pairs<i + 1>(words, d, minus_dmin, out);
  }
}
template <int i>
KVASIR_INLINE void k3_scales(const Ints (&words)[3], Floats d, CodeChunk& out) {
  if constexpr (i < 16) {
    store(out.scale[i], mul(d, sub(six_bit_field<i>(words), set1(32.0f))));
    k3_scales<i + 1>(words, d, out);
  }
}

KVASIR_INLINE Floats one_level(ScaleKind kind, const uint8_t* p) {
  switch (kind) {
    case ScaleKind::f16:
      return load_f16x16(p);
    case ScaleKind::bf16:
      return load_bf16x16(p);
    case ScaleKind::f32:
      return as_floats(as_ints(load(p)));
    case ScaleKind::e8m0:
      return e8m0(load_u8x16(p));
    case ScaleKind::e8m0_half:
      return e8m0_half(load_u8x16(p));
    case ScaleKind::e4m3_half:
      return mul(e4m3(load_u8x16(p)), set1(0.5f));
    default:
      return mul(ue4m3(load_u8x16(p)), set1(0.5f));
  }
}

// Scales and minima of the chunk's `cols` columns, one a sub-block (groups of more than 32 columns are
// repeated).
KVASIR_INLINE void unpack_scales(const KernelWeight& weight, const uint8_t* chunk, int cols, CodeChunk& out) {
  const ComputeLayout& layout = weight.layout;
  const uint8_t* p = chunk + code_bytes_of(weight, cols);
  switch (layout.scales) {
    case ScaleKind::grid:
      return unpack_grid_scales(weight, chunk, out);
    case ScaleKind::none:
      return;
    case ScaleKind::k4: {
      const Ints words[3] = {as_ints(load(p)), as_ints(load(p + 64)), as_ints(load(p + 128))};
      return k4_pairs<0>(words, load_f16x16(p + 192), mul(load_f16x16(p + 224), set1(-1.0f)), out);
    }
    case ScaleKind::k3: {
      const Ints words[3] = {as_ints(load(p)), as_ints(load(p + 64)), as_ints(load(p + 128))};
      return k3_scales<0>(words, load_f16x16(p + 192), out);
    }
    case ScaleKind::k6: {
      const Floats d = load_f16x16(p + 256);
      for (int g = 0; g < 16; ++g) store(out.scale[g], mul(d, to_float(load_i8x16(p + 16 * g))));
      return;
    }
    case ScaleKind::k2: {
      const Floats d = load_f16x16(p + 256);
      const Floats minus_dmin = mul(load_f16x16(p + 288), set1(-1.0f));
      for (int g = 0; g < 16; ++g) {
        const Ints both = load_u8x16(p + 16 * g);
        store(out.scale[g], mul(d, to_float(bit_and(both, set1(15)))));
        store(out.minimum[g], mul(minus_dmin, to_float(shift_right<4>(both))));
      }
      return;
    }
    case ScaleKind::iq4_xs: {
      const Ints a = as_ints(load(p));
      const Ints b = load_u16x16(p + 64);
      const Floats d = load_f16x16(p + 96);
      const Ints m = set1(63), center = set1(32);
      store(out.scale[0], mul(d, to_float(sub(bit_and(a, m), center))));
      store(out.scale[1], mul(d, to_float(sub(bit_and(shift_right<6>(a), m), center))));
      store(out.scale[2], mul(d, to_float(sub(bit_and(shift_right<12>(a), m), center))));
      store(out.scale[3], mul(d, to_float(sub(bit_and(shift_right<18>(a), m), center))));
      store(out.scale[4], mul(d, to_float(sub(bit_and(shift_right<24>(a), m), center))));
      store(out.scale[5], mul(d, to_float(sub(bit_and(b, m), center))));
      store(out.scale[6], mul(d, to_float(sub(bit_and(shift_right<6>(b), m), center))));
      const Ints last = bit_or(shift_right<12>(b), bit_and(shift_right<26>(a), set1(0x30)));
      store(out.scale[7], mul(d, to_float(sub(last, center))));
      return;
    }
    default:
      break;
  }
  const int size = layout.scales == ScaleKind::f32                                       ? 64
                   : layout.scales == ScaleKind::f16 || layout.scales == ScaleKind::bf16 ? 32
                                                                                         : 16;
  const int sub = layout.group == 16 ? 16 : 32;
  const int repeat = layout.group > 32 ? layout.group / 32 : 1;
  const int groups = (cols + layout.group - 1) / layout.group;
  const int subs = cols / sub;
  for (int plane = 0; plane < (layout.minima && !layout.zeros ? 2 : 1); ++plane) {
    float(*to)[kPanelRows] = plane == 0 ? out.scale : out.minimum;
    for (int g = 0; g < groups; ++g, p += size) {
      const Floats value = one_level(layout.scales, p);
      for (int i = g * repeat; i < (g + 1) * repeat && i < subs; ++i) store(to[i], value);
    }
  }
  if (!layout.zeros) return;
  const bool nibbles = layout.bits <= 4;
  for (int g = 0; g < groups; ++g) {
    Ints zero = load_u8x16(p + 16 * (nibbles ? g / 2 : g));
    if (nibbles) zero = g % 2 == 0 ? bit_and(zero, set1(15)) : shift_right<4>(zero);
    const Floats minus = mul(to_float(add(zero, set1(layout.zero_base))), set1(-1.0f));
    const Floats value = mul(minus, load(out.scale[g * repeat]));
    for (int i = g * repeat; i < (g + 1) * repeat && i < subs; ++i) store(out.minimum[i], value);
  }
}

// Values of one chunk, [col][16].
KVASIR_INLINE void expand_codes(const KernelWeight& weight, const uint8_t* p, int cols, float* out) {
  const ComputeLayout& layout = weight.layout;
  CodeChunk chunk;
  const int quads = cols / 4;
  if (layout.codes == CodeKind::e4m3 || layout.codes == CodeKind::e5m2) {
    const bool scaled = layout.scales != ScaleKind::none;
    if (scaled) unpack_scales(weight, p, cols, chunk);
    const Floats rebias = as_floats(set1(layout.codes == CodeKind::e4m3 ? 247 << 23 : 239 << 23));
    for (int q = 0; q < quads; ++q) {
      const Ints four = as_ints(load(p + 64 * q));
      const Floats scale = scaled ? load(chunk.scale[q / 8]) : set1(1.0f);
      const Ints bytes[4] = {shift_left<24>(four), shift_left<16>(four), shift_left<8>(four), four};
      for (int t = 0; t < 4; ++t) {
        const Ints sign = bit_and(bytes[t], set1(static_cast<int32_t>(0x80000000u)));
        const Ints rest = bit_and(bytes[t], set1(0x7F000000));
        const Ints low = layout.codes == CodeKind::e4m3 ? shift_right<4>(rest) : shift_right<3>(rest);
        const Floats value = as_floats(bit_or(as_ints(mul(as_floats(low), rebias)), sign));
        store(out + 16 * (4 * q + t), mul(value, scale));
      }
    }
    return;
  }
  const bool signed_zero = layout.table == Table::e2m1_signed_zero;
  unpack_codes(weight, p, cols / kBlockCols, signed_zero, chunk.codes);
  unpack_scales(weight, p, cols, chunk);
  const Ints offset = set1(static_cast<int32_t>(layout.offset));
  const Ints byte = set1(255);
  const int quads_per_scale = layout.group == 16 ? 4 : 8;
  for (int q = 0; q < quads; ++q) {
    const Ints four = as_ints(load(chunk.codes[q]));
    const Floats scale = load(chunk.scale[q / quads_per_scale]);
    const Ints codes[4] = {bit_and(four, byte), bit_and(shift_right<8>(four), byte),
                           bit_and(shift_right<16>(four), byte), shift_right<24>(four)};
    for (int t = 0; t < 4; ++t) {
      Floats code = to_float(sub(codes[t], offset));
      if (signed_zero) {
        float v[16];
        store(v, code);
        for (int i = 0; i < 16; ++i) v[i] = v[i] == 64.0f ? -0.0f : v[i];
        code = load(v);
      }
      Floats value = mul(code, scale);
      if (layout.minima) value = add(value, load(chunk.minimum[q / quads_per_scale]));
      store(out + 16 * (4 * q + t), value);
    }
  }
}

// Any chunk as f32 values [col][16]; cols as stored (padded).
KVASIR_INLINE void expand(const KernelWeight& weight, const uint8_t* p, int cols, float* out) {
  switch (weight.layout.codes) {
    case CodeKind::f32:
      __builtin_memcpy(out, p, static_cast<size_t>(cols) * 64);
      return;
    case CodeKind::f16:
      for (int c = 0; c < cols; ++c) store(out + 16 * c, load_f16x16(p + 32 * c));
      return;
    case CodeKind::bf16:
      for (int c = 0; c < cols; c += 2) {
        const Ints pair = as_ints(load(p + 32 * c));
        store(out + 16 * c, as_floats(shift_left<16>(pair)));
        store(out + 16 * c + 16, as_floats(bit_and(pair, set1(static_cast<int32_t>(0xFFFF0000u)))));
      }
      return;
    default:
      return expand_codes(weight, p, cols, out);
  }
}
