// Codes and scales of quantized blocks as f32. Included by cpu.cc inside the level's own namespace, after
// lanes-inl.h.

// ---- decoding blocks into the tile

inline float half_to_float(uint16_t bits) {
  // Exact in every case: the exponent is moved by a multiplication, which also normalises subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFFu) << 13;
  uint32_t word = magnitude;
  float x;
  if (magnitude >= 0x0F800000u) {  // infinity, NaN
    word |= 0x70000000u;
    memcpy(&x, &word, 4);
  } else {
    memcpy(&x, &word, 4);
    x *= 0x1p+112f;
  }
  uint32_t out;
  memcpy(&out, &x, 4);
  out |= static_cast<uint32_t>(bits & 0x8000u) << 16;
  memcpy(&x, &out, 4);
  return x;
}
void halves_to_floats(const std::byte* in, int count, float* out) {
#if defined(__AVX512F__)
  for (; count >= 16; count -= 16, in += 32, out += 16)
    _mm512_storeu_ps(out, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in))));
#elif defined(__F16C__)
  for (; count >= 8; count -= 8, in += 16, out += 8)
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
#endif
  for (int i = 0; i < count; ++i) {
    uint16_t bits;
    memcpy(&bits, in + i * 2, 2);
    out[i] = half_to_float(bits);
  }
}
HWY_INLINE V16 load_scale(const std::byte* in, Dtype type) {
#if defined(__AVX512F__)
  V16 wide;
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
  wide.part[0].raw = type == Dtype::f16 ? _mm512_cvtph_ps(halves)
                     : type == Dtype::bf16
                         ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))
                         : _mm512_loadu_ps(reinterpret_cast<const float*>(in));
  return wide;
#else
  float out[16];
  if (type == Dtype::f32) {
    memcpy(out, in, sizeof(out));
  } else if (type == Dtype::f16) {
    halves_to_floats(in, 16, out);
  } else {
    for (int i = 0; i < 16; ++i) {
      uint16_t bits;
      memcpy(&bits, in + i * 2, 2);
      const uint32_t word = static_cast<uint32_t>(bits) << 16;
      memcpy(out + i, &word, 4);
    }
  }
  return load(out);
#endif
}

// 16 lanes of whole bits.
struct U16 {
  hn::Vec<DU> part[kParts];
};
HWY_INLINE U16 load_words(const std::byte* p) {
  U16 r;
  FOR_PARTS r.part[i] = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p) + i * kLanes);
  return r;
}

// Entries of a codebook. Of more than 32 where kHasPermutes: look_up.
HWY_INLINE V look_up_entries(const DecodeTable& table, const hn::Vec<DI>& index) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  V out;
  out.raw =
      _mm512_permutex2var_ps(_mm512_load_ps(table.values), index.raw, _mm512_load_ps(table.values + 16));
  return out;
#else
  return hn::GatherIndex(D(), table.values, index);
#endif
}

// Codes of a unit (8 quad vectors) as f32, 16 lanes at a time: visit(quad vector, element of the quad,
// values).
template <typename Visit>
HWY_INLINE void unit_values(const PlaneFormat& f, const DecodeTable& table, const std::byte* unit,
                            Visit visit) {
  const DU du;
  const kv::BitPlanes planes = kv::bit_planes(f.codec.bits);
  const int slots = 8 / planes.first, second_slots = planes.second == 0 ? 1 : 8 / planes.second;
  const bool book = f.codec.kind == kv::PlaneCodec::Kind::rotated;
  for (int q = 0; q < 8; ++q) {
    const U16 first = load_words(unit + (q / slots) * 64);
    const U16 second =
        planes.second == 0 ? first : load_words(unit + planes.first * 64 + (q / second_slots) * 64);
    for (int c = 0; c < 4; ++c) {
      const int shift = c * 8 + (q % slots) * planes.first,
                second_shift = c * 8 + (q % second_slots) * planes.second;
      V16 out;
      FOR_PARTS {
        auto code = hn::And(hn::ShiftRightSame(first.part[i], shift), hn::Set(du, (1u << planes.first) - 1u));
        if (planes.second != 0) {
          const auto high = hn::And(hn::ShiftRightSame(second.part[i], second_shift),
                                    hn::Set(du, (1u << planes.second) - 1u));
          code = hn::Or(code, hn::ShiftLeftSame(high, planes.first));
        }
        const auto index = hn::BitCast(DI(), code);
        out.part[i] = book ? look_up_entries(table, index)
                           : hn::Sub(hn::ConvertTo(D(), index), hn::Set(D(), table.center));
      }
      visit(q, c, out);
    }
  }
}

// Codes of one K block as f32 [dim][16].
void decode_keys(const PlaneFormat& f, const DecodeTable& table, bool byte_permutes, const std::byte* block,
                 float* out) {
  if (has_byte_book(f)) return look_up(table, byte_permutes, block, f.dim / 32, {out, 512, 256, 16});
  for (int u = 0; u < f.dim / 32; ++u)
    unit_values(f, table, block + u * f.codec.bits * 64,
                [&](int q, int c, const V16& v) { store(v, out + (u * 32 + q * 4 + c) * 16); });
}

// Codes of channels [first, first + width) of one V block as f32 [16][width]; multiples of 32.
void decode_values(const PlaneFormat& f, const DecodeTable& table, bool byte_permutes, const std::byte* block,
                   int first, int width, float* out) {
  if (has_byte_book(f))
    return look_up(table, byte_permutes, block + first / 32 * 512, width / 32,
                   {out, 32, 16, static_cast<size_t>(width)});
  for (int u = 0; u < width / 32; ++u)
    unit_values(f, table, block + (first / 32 + u) * f.codec.bits * 64, [&](int q, int c, const V16& v) {
      store(v, out + ((q % 4) * 4 + c) * width + u * 32 + (q / 4) * 16);
    });
}
