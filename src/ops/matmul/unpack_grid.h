// Grids (IQ1, IQ2, IQ3), sixteen rows at a time: each lane looks its own rows of the table up. A code is
// value + 64; IQ1's values are 8 * (grid +- 1/8), their scale an eighth. Included inside the per-level
// namespace, by unpack.h.

// The dword at `index` of the table, per lane.
KVASIR_INLINE Ints look_up_dword(const int8_t* table, Ints index) {
  Ints r;
#if defined(__AVX512F__)
  r.v[0] =
      (NativeI)_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, (__m512i)index.v[0], table, 4);
#else
  int32_t v[16];
  store(v, index);
  for (int i = 0; i < 16; ++i) __builtin_memcpy(&v[i], table + 4 * v[i], 4);
  r = load(v);
#endif
  return r;
}
KVASIR_INLINE Ints shift_right(Ints a, int n) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = (NativeI)((NativeU)a.v[i] >> n);
  return r;
}
KVASIR_INLINE Ints times(Ints a, int factor) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = a.v[i] * native_set(factor);
  return r;
}
KVASIR_INLINE Ints bit_xor(Ints a, Ints b) {
  return as_ints(bit_xor(as_bytes(a), as_bytes(b)));
}

// Eight signs from their 7-bit index: the eighth makes the number of negative ones even.
KVASIR_INLINE Ints all_signs(Ints index) {
  Ints parity = bit_xor(index, shift_right(index, 4));
  parity = bit_xor(parity, shift_right(parity, 2));
  parity = bit_xor(parity, shift_right(parity, 1));
  return bit_or(index, shift_left<7>(bit_and(parity, set1(1))));
}
// Magnitudes of a quad, negated where bit t of `signs` (its low four bits count) is set, plus 64.
KVASIR_INLINE void put_signed(uint8_t* out, Ints magnitudes, Ints signs) {
  // Bit t to the lowest bit of byte t.
  const Ints ones = bit_and(times(bit_and(signs, set1(15)), 0x00204081), set1(0x01010101));
  const Ints mask = sub(shift_left<8>(ones), ones);
  const Bytes negated = bit_xor(as_bytes(magnitudes), as_bytes(mask));
  store(out, add(add(negated, as_bytes(ones)), set1_byte(64)));
}
KVASIR_INLINE Ints stored_dword(const uint8_t* p, int index) {
  return as_ints(load(p + 64 * index));
}
KVASIR_INLINE Ints stored_byte(const uint8_t* p, int index) {
  return bit_and(shift_right(stored_dword(p, index / 4), 8 * (index % 4)), set1(255));
}
KVASIR_INLINE Ints stored_half(const uint8_t* p, int index) {
  return bit_and(shift_right(stored_dword(p, index / 2), 16 * (index % 2)), set1(0xFFFF));
}

inline void unpack_grid(const KernelWeight& weight, const uint8_t* p, uint8_t (*out)[64]) {
  using F = formats::StorageFormat;
  const F format = weight.layout.grid;
  for (int b = 0; b < 8; ++b)
    for (int e = 0; e < 4; ++e) {
      // Eight values: quads 8b + 2e and the next.
      Ints row0 = set1(0), row1 = set1(0), signs = set1(0);
      switch (format) {
        case F::iq2_xxs:
          row0 = stored_byte(p, 8 * b + e);
          signs = all_signs(bit_and(shift_right(stored_dword(p, 2 * b + 1), 7 * e), set1(127)));
          break;
        case F::iq2_xs: {
          const Ints code = stored_half(p, 4 * b + e);
          row0 = bit_and(code, set1(511));
          signs = all_signs(shift_right(code, 9));
          break;
        }
        case F::iq2_s:
          row0 = bit_or(stored_byte(p, 4 * b + e),
                        shift_left<8>(bit_and(shift_right(stored_byte(p, 64 + b), 2 * e), set1(3))));
          signs = stored_byte(p, 32 + 4 * b + e);
          break;
        case F::iq3_xxs:
          row0 = stored_byte(p, 8 * b + 2 * e);
          row1 = stored_byte(p, 8 * b + 2 * e + 1);
          signs = all_signs(bit_and(shift_right(stored_dword(p, 16 + b), 7 * e), set1(127)));
          break;
        case F::iq3_s: {
          const Ints high = stored_byte(p, 64 + b);
          row0 = bit_or(stored_byte(p, 8 * b + 2 * e),
                        shift_left<8>(bit_and(shift_right(high, 2 * e), set1(1))));
          row1 = bit_or(stored_byte(p, 8 * b + 2 * e + 1),
                        shift_left<8>(bit_and(shift_right(high, 2 * e + 1), set1(1))));
          signs = stored_byte(p, 72 + 4 * b + e);
          break;
        }
        default: {  // IQ1: `signs` is 1 where the eighth is subtracted
          Ints high = set1(0);
          if (format == F::iq1_s) {
            const Ints word = stored_half(p, 16 + b);
            high = bit_and(shift_right(word, 3 * e), set1(7));
            signs = shift_right(word, 15);
          } else {
            const Ints nibble =
                bit_and(shift_right(stored_byte(p, 32 + 2 * b + e / 2), 4 * (e % 2)), set1(15));
            high = bit_and(nibble, set1(7));
            signs = shift_right(nibble, 3);
          }
          row0 = bit_or(stored_byte(p, 4 * b + e), shift_left<8>(high));
        }
      }
      uint8_t* to = out[8 * b + 2 * e];
      if (format == F::iq3_xxs || format == F::iq3_s) {
        put_signed(to, look_up_dword(weight.grid, row0), signs);
        put_signed(to + 64, look_up_dword(weight.grid, row1), shift_right(signs, 4));
        continue;
      }
      const Ints first = look_up_dword(weight.grid, shift_left<1>(row0));
      const Ints second = look_up_dword(weight.grid, add(shift_left<1>(row0), set1(1)));
      if (format == F::iq1_s || format == F::iq1_m) {
        // 8 * grid + (65 or 63), a byte each.
        const Bytes eighth = as_bytes(sub(set1(0x41414141), times(signs, 0x02020202)));
        const Ints keep = set1(static_cast<int32_t>(0xF8F8F8F8u));
        store(to, add(as_bytes(bit_and(shift_left<3>(first), keep)), eighth));
        store(to + 64, add(as_bytes(bit_and(shift_left<3>(second), keep)), eighth));
      } else {
        put_signed(to, first, signs);
        put_signed(to + 64, second, shift_right(signs, 4));
      }
    }
}

// Scales of a grid's sub-blocks, exact in f32. `p` is the chunk, d after its dwords (IQ1_M's is spread over
// the last two).
inline void unpack_grid_scales(const KernelWeight& weight, const uint8_t* p, CodeChunk& out) {
  using F = formats::StorageFormat;
  const F format = weight.layout.grid;
  Floats d = set1(0.0f);
  if (format == F::iq1_m) {
    alignas(64) uint32_t low[16], high[16];
    alignas(64) uint8_t halves[32];
    __builtin_memcpy(low, p + 64 * 12, 64);
    __builtin_memcpy(high, p + 64 * 13, 64);
    for (int i = 0; i < 16; ++i) {
      const uint32_t bits =
          ((low[i] >> 12) & 15u) | (low[i] >> 28) << 4 | ((high[i] >> 12) & 15u) << 8 | (high[i] >> 28) << 12;
      halves[2 * i] = static_cast<uint8_t>(bits);
      halves[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
    d = load_f16x16(halves);
  } else {
    d = load_f16x16(p + weight.chunk_codes);
  }
  const Floats half = set1(0.5f), one = set1(1.0f);
  for (int b = 0; b < 8; ++b) {
    switch (format) {
      case F::iq2_xxs:
        store(out.scale[b],
              mul(mul(d, add(half, to_float(shift_right(stored_dword(p, 2 * b + 1), 28)))), set1(0.25f)));
        break;
      case F::iq3_xxs:
        store(out.scale[b], mul(mul(d, add(half, to_float(shift_right(stored_dword(p, 16 + b), 28)))), half));
        break;
      case F::iq3_s: {
        const Ints c = bit_and(shift_right(stored_byte(p, 104 + b / 2), 4 * (b % 2)), set1(15));
        store(out.scale[b], mul(d, add(one, to_float(shift_left<1>(c)))));
        break;
      }
      case F::iq1_s: {
        const Ints c = bit_and(shift_right(stored_half(p, 16 + b), 12), set1(7));
        store(out.scale[b], mul(mul(d, add(one, to_float(shift_left<1>(c)))), set1(0.125f)));
        break;
      }
      case F::iq1_m:
        for (int h = 0; h < 2; ++h) {
          const Ints c = bit_and(shift_right(stored_half(p, 24 + b / 2), 6 * (b % 2) + 3 * h), set1(7));
          store(out.scale[2 * b + h], mul(mul(d, add(one, to_float(shift_left<1>(c)))), set1(0.125f)));
        }
        break;
      default: {
        const Ints both = stored_byte(p, (format == F::iq2_xs ? 64 : 72) + b);
        for (int h = 0; h < 2; ++h)
          store(out.scale[2 * b + h],
                mul(mul(d, add(half, to_float(bit_and(shift_right(both, 4 * h), set1(15))))), set1(0.25f)));
      }
    }
  }
}
