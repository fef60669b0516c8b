// 64-byte vectors for the kernels of this folder: 16 lanes of 32 bits, one lane a row of the panel.
//
// A vector is held as 64 / kWidth native parts, so that one source serves 512-, 256- and 128-bit machines.
// Included by kernel sources only, inside their per-level namespace: everything here is compiled once a
// level.
#if defined(__AVX512F__)
inline constexpr int kWidth = 64;
#elif defined(__AVX2__)
inline constexpr int kWidth = 32;
#else
inline constexpr int kWidth = 16;
#endif
inline constexpr int kParts = 64 / kWidth;

#define KVASIR_INLINE inline __attribute__((always_inline))

typedef float NativeF __attribute__((vector_size(kWidth), aligned(4), may_alias));
typedef int32_t NativeI __attribute__((vector_size(kWidth), aligned(4), may_alias));
typedef uint32_t NativeU __attribute__((vector_size(kWidth), aligned(4), may_alias));
typedef uint16_t NativeH __attribute__((vector_size(kWidth), aligned(4), may_alias));
typedef uint8_t NativeB __attribute__((vector_size(kWidth), aligned(1), may_alias));

struct Floats {
  NativeF v[kParts];
};
struct Ints {
  NativeI v[kParts];
};
struct Bytes {
  NativeB v[kParts];
};

#define KVASIR_EACH(i) _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

KVASIR_INLINE Floats load(const float* p) {
  Floats r;
  KVASIR_EACH(i) r.v[i] = reinterpret_cast<const NativeF*>(p)[i];
  return r;
}
KVASIR_INLINE void store(float* p, Floats a) {
  KVASIR_EACH(i) reinterpret_cast<NativeF*>(p)[i] = a.v[i];
}
KVASIR_INLINE Ints load(const int32_t* p) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = reinterpret_cast<const NativeI*>(p)[i];
  return r;
}
KVASIR_INLINE void store(int32_t* p, Ints a) {
  KVASIR_EACH(i) reinterpret_cast<NativeI*>(p)[i] = a.v[i];
}
KVASIR_INLINE Bytes load(const uint8_t* p) {
  Bytes r;
  KVASIR_EACH(i) r.v[i] = reinterpret_cast<const NativeB*>(p)[i];
  return r;
}
KVASIR_INLINE void store(uint8_t* p, Bytes a) {
  KVASIR_EACH(i) reinterpret_cast<NativeB*>(p)[i] = a.v[i];
}
KVASIR_INLINE Ints as_ints(Bytes a) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = (NativeI)a.v[i];
  return r;
}
KVASIR_INLINE Bytes as_bytes(Ints a) {
  Bytes r;
  KVASIR_EACH(i) r.v[i] = (NativeB)a.v[i];
  return r;
}
KVASIR_INLINE Floats as_floats(Ints a) {
  Floats r;
  KVASIR_EACH(i) r.v[i] = (NativeF)a.v[i];
  return r;
}
KVASIR_INLINE Ints as_ints(Floats a) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = (NativeI)a.v[i];
  return r;
}

KVASIR_INLINE NativeF native_set(float x) {
#if defined(__AVX512F__)
  return (NativeF)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (NativeF)_mm256_set1_ps(x);
#elif defined(__SSE2__)
  return (NativeF)_mm_set1_ps(x);
#elif defined(__ARM_NEON)
  return (NativeF)vdupq_n_f32(x);
#else
  return NativeF{x, x, x, x};
#endif
}
KVASIR_INLINE NativeI native_set(int32_t x) {
#if defined(__AVX512F__)
  return (NativeI)_mm512_set1_epi32(x);
#elif defined(__AVX2__)
  return (NativeI)_mm256_set1_epi32(x);
#elif defined(__SSE2__)
  return (NativeI)_mm_set1_epi32(x);
#elif defined(__ARM_NEON)
  return (NativeI)vdupq_n_s32(x);
#else
  return NativeI{x, x, x, x};
#endif
}
KVASIR_INLINE Floats set1(float x) {
  Floats r;
  KVASIR_EACH(i) r.v[i] = native_set(x);
  return r;
}
KVASIR_INLINE Ints set1(int32_t x) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = native_set(x);
  return r;
}
KVASIR_INLINE Bytes set1_byte(uint8_t x) {
  return as_bytes(set1(static_cast<int32_t>(x * 0x01010101u)));
}

#define KVASIR_BINARY(Type, name, op)         \
  KVASIR_INLINE Type name(Type a, Type b) {   \
    Type r;                                   \
    KVASIR_EACH(i) r.v[i] = a.v[i] op b.v[i]; \
    return r;                                 \
  }
KVASIR_BINARY(Floats, add, +)
KVASIR_BINARY(Floats, sub, -)
KVASIR_BINARY(Floats, mul, *)
KVASIR_BINARY(Floats, divide, /)
KVASIR_BINARY(Ints, add, +)
KVASIR_BINARY(Ints, sub, -)
KVASIR_BINARY(Ints, bit_and, &)
KVASIR_BINARY(Ints, bit_or, |)
KVASIR_BINARY(Bytes, add, +)
KVASIR_BINARY(Bytes, sub, -)
KVASIR_BINARY(Bytes, bit_and, &)
KVASIR_BINARY(Bytes, bit_or, |)
KVASIR_BINARY(Bytes, bit_xor, ^)
#undef KVASIR_BINARY

// 32-bit lanes.
template <int n>
KVASIR_INLINE Ints shift_left(Ints a) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = (NativeI)((NativeU)a.v[i] << n);
  return r;
}
template <int n>
KVASIR_INLINE Ints shift_right(Ints a) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = (NativeI)((NativeU)a.v[i] >> n);
  return r;
}
// 16-bit lanes, for bit planes whose stray bits are masked away afterwards. n > 0: right, n < 0: left.
template <int n>
KVASIR_INLINE Bytes shift_plane(Bytes a) {
  Bytes r;
  if constexpr (n > 0) {
    KVASIR_EACH(i) r.v[i] = (NativeB)((NativeH)a.v[i] >> n);
  } else if constexpr (n < 0) {
    KVASIR_EACH(i) r.v[i] = (NativeB)((NativeH)a.v[i] << -n);
  } else {
    r = a;
  }
  return r;
}

KVASIR_INLINE Ints max(Ints a, Ints b) {
  Ints r;
  KVASIR_EACH(i) r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return r;
}

KVASIR_INLINE Floats to_float(Ints a) {
  Floats r;
  KVASIR_EACH(i) r.v[i] = __builtin_convertvector(a.v[i], NativeF);
  return r;
}

// a * b + c, in one rounding where the level has a fused multiply-add, in two on the generic level.
KVASIR_INLINE Floats fma(Floats a, Floats b, Floats c) {
  Floats r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_fmadd_ps((__m512)a.v[0], (__m512)b.v[0], (__m512)c.v[0]);
#elif defined(__FMA__)
  KVASIR_EACH(i) r.v[i] = (NativeF)_mm256_fmadd_ps((__m256)a.v[i], (__m256)b.v[i], (__m256)c.v[i]);
#elif defined(__ARM_NEON)
  KVASIR_EACH(i) r.v[i] = (NativeF)vfmaq_f32((float32x4_t)c.v[i], (float32x4_t)a.v[i], (float32x4_t)b.v[i]);
#else
  KVASIR_EACH(i) r.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
  return r;
}

// Sixteen 8- or 16-bit integers, widened.
KVASIR_INLINE Ints load_u8x16(const uint8_t* p) {
  Ints r;
#if defined(__AVX512F__)
  r.v[0] = (NativeI)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  int32_t x[16];
  for (int i = 0; i < 16; ++i) x[i] = p[i];
  r = load(x);
#endif
  return r;
}
KVASIR_INLINE Ints load_i8x16(const uint8_t* p) {
  Ints r;
#if defined(__AVX512F__)
  r.v[0] = (NativeI)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  int32_t x[16];
  for (int i = 0; i < 16; ++i) x[i] = (p[i] ^ 0x80) - 0x80;
  r = load(x);
#endif
  return r;
}
KVASIR_INLINE Ints load_u16x16(const uint8_t* p) {
  Ints r;
#if defined(__AVX512F__)
  r.v[0] = (NativeI)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  KVASIR_EACH(i)
  r.v[i] = (NativeI)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
#else
  int32_t x[16];
  for (int i = 0; i < 16; ++i) x[i] = p[2 * i] | p[2 * i + 1] << 8;
  r = load(x);
#endif
  return r;
}
// Sixteen f16 (finite), exact: without hardware, the bits as an f32 of the wrong exponent times 2^112.
KVASIR_INLINE Floats load_f16x16(const uint8_t* p) {
  Floats r;
#if defined(__AVX512F__)
  r.v[0] = (NativeF)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  KVASIR_EACH(i) r.v[i] = (NativeF)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
#else
  const Ints bits = load_u16x16(p);
  const Floats magnitude =
      mul(as_floats(shift_left<13>(bit_and(bits, set1(0x7FFF)))), as_floats(set1(239 << 23)));
  r = as_floats(bit_or(as_ints(magnitude), shift_left<16>(bit_and(bits, set1(0x8000)))));
#endif
  return r;
}
KVASIR_INLINE Floats load_bf16x16(const uint8_t* p) {
  return as_floats(shift_left<16>(load_u16x16(p)));
}

// Sixteen-entry byte table, looked up by the low four bits (the upper four must be zero).
KVASIR_INLINE Bytes look_up(Bytes table, Bytes index) {
  Bytes r;
#if defined(__AVX512BW__)
  r.v[0] = (NativeB)_mm512_shuffle_epi8((__m512i)table.v[0], (__m512i)index.v[0]);
#elif defined(__AVX2__)
  KVASIR_EACH(i) r.v[i] = (NativeB)_mm256_shuffle_epi8((__m256i)table.v[i], (__m256i)index.v[i]);
#elif defined(__ARM_NEON)
  KVASIR_EACH(i) r.v[i] = (NativeB)vqtbl1q_u8((uint8x16_t)table.v[i], (uint8x16_t)index.v[i]);
#else
  uint8_t t[64], x[64];
  store(t, table);
  store(x, index);
  for (int i = 0; i < 64; ++i) x[i] = t[x[i]];
  r = load(x);
#endif
  return r;
}

// Four activation codes, in the form that dot4 wants them in.
struct Quad {
#if defined(__AVX512VNNI__)
  __m512i v;
#elif defined(__AVX2__)
  __m256i v;
#elif defined(__SSE2__)
  __m128i v;  // widened to 16 bits, twice
#elif defined(__ARM_FEATURE_DOTPROD)
  int8x16_t v;
#else
  int32_t v;
#endif
};
KVASIR_INLINE Quad load_quad(const uint8_t* activations) {
  int32_t quad;
  __builtin_memcpy(&quad, activations, 4);
#if defined(__AVX512VNNI__)
  return {_mm512_set1_epi32(quad)};
#elif defined(__AVX2__)
  return {_mm256_set1_epi32(quad)};
#elif defined(__SSE2__)
  return {_mm_srai_epi16(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_set1_epi32(quad)), 8)};
#elif defined(__ARM_FEATURE_DOTPROD)
  return {vreinterpretq_s8_s32(vdupq_n_s32(quad))};
#else
  return {quad};
#endif
}

// acc[lane] += sum over t of codes[4 * lane + t] * activations byte t: unsigned codes, signed activations.
// With kWide codes use all 8 bits, without it they are below 128 (which spares levels without a mixed-sign
// dot product some work). Where kSignedWide holds, wide codes come as signed numbers, code - 128.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
inline constexpr bool kSignedWide = false;
#else
inline constexpr bool kSignedWide = true;
#endif
template <bool kWide>
KVASIR_INLINE Ints dot4(Ints acc, Bytes codes, Quad quad) {
  Ints r;
#if defined(__AVX512VNNI__)
  r.v[0] = (NativeI)_mm512_dpbusd_epi32((__m512i)acc.v[0], (__m512i)codes.v[0], quad.v);
#elif defined(__AVXVNNI__)
  const __m256i a = quad.v;
  KVASIR_EACH(i) r.v[i] = (NativeI)_mm256_dpbusd_avx_epi32((__m256i)acc.v[i], (__m256i)codes.v[i], a);
#elif defined(__AVX2__)
  const __m256i a = quad.v;
  const __m256i ones = _mm256_set1_epi16(1);
  KVASIR_EACH(i) {
    const __m256i w = (__m256i)codes.v[i];
    // Signed codes: |w| * (a with w's sign); 128 * 127 * 2 still fits 16 bits.
    const __m256i pairs =
        kWide ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
    r.v[i] = (NativeI)_mm256_add_epi32((__m256i)acc.v[i], _mm256_madd_epi16(pairs, ones));
  }
#elif defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  const __m128i a16 = quad.v;
  KVASIR_EACH(i) {
    const __m128i w = (__m128i)codes.v[i];
    const __m128i low = kWide ? _mm_srai_epi16(_mm_unpacklo_epi8(zero, w), 8) : _mm_unpacklo_epi8(w, zero);
    const __m128i high = kWide ? _mm_srai_epi16(_mm_unpackhi_epi8(zero, w), 8) : _mm_unpackhi_epi8(w, zero);
    const __m128 x = _mm_castsi128_ps(_mm_madd_epi16(low, a16));
    const __m128 y = _mm_castsi128_ps(_mm_madd_epi16(high, a16));
    const __m128i even = _mm_castps_si128(_mm_shuffle_ps(x, y, 0x88));
    const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(x, y, 0xDD));
    r.v[i] = (NativeI)_mm_add_epi32((__m128i)acc.v[i], _mm_add_epi32(even, odd));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  const int8x16_t a = quad.v;
  KVASIR_EACH(i)
  r.v[i] = (NativeI)vdotq_s32((int32x4_t)acc.v[i], vreinterpretq_s8_u8((uint8x16_t)codes.v[i]), a);
#else
  int32_t sums[16];
  uint8_t w[64];
  int8_t a[4];
  store(sums, acc);
  store(w, codes);
  __builtin_memcpy(a, &quad.v, 4);
  for (int lane = 0; lane < 16; ++lane)
    for (int t = 0; t < 4; ++t)
      sums[lane] += (kWide ? static_cast<int>(static_cast<int8_t>(w[4 * lane + t]))
                           : static_cast<int>(w[4 * lane + t])) *
                    a[t];
  r = load(sums);
#endif
  return r;
}

// acc[lane] += w[2 * lane] * a0 + w[2 * lane + 1] * a1, all bf16. One instruction (its own rounding) where
// the level has it, else two multiply-adds, even column first.
KVASIR_INLINE Floats dot2_bf16(Floats acc, Bytes weights, int32_t pair) {
#if defined(__AVX512BF16__)
  Floats r;
  r.v[0] =
      (NativeF)_mm512_dpbf16_ps((__m512)acc.v[0], (__m512bh)weights.v[0], (__m512bh)_mm512_set1_epi32(pair));
  return r;
#else
  const Ints w = as_ints(weights);
  const Floats even = as_floats(shift_left<16>(w));
  const Floats odd = as_floats(bit_and(w, set1(static_cast<int32_t>(0xFFFF0000u))));
  const Floats a0 = as_floats(set1(static_cast<int32_t>(static_cast<uint32_t>(pair) << 16)));
  const Floats a1 = as_floats(set1(static_cast<int32_t>(static_cast<uint32_t>(pair) & 0xFFFF0000u)));
  return fma(odd, a1, fma(even, a0, acc));
#endif
}

// out[i] = factor * sums[i] for sixteen 16-bit sums, and the same of their pairs.
KVASIR_INLINE void start_sums_16(int32_t* out, const uint8_t* sums, int factor) {
#if defined(__AVX512F__)
  typedef int16_t Sixteen __attribute__((vector_size(32), aligned(1), may_alias));
  const NativeI wide = __builtin_convertvector(*reinterpret_cast<const Sixteen*>(sums), NativeI);
  *reinterpret_cast<NativeI*>(out) = wide * native_set(factor);
#else
  int16_t values[16];
  __builtin_memcpy(values, sums, 32);
  for (int i = 0; i < 16; ++i) out[i] = factor * values[i];
#endif
}
KVASIR_INLINE void start_sums_32(int32_t* out, const uint8_t* sums, int factor) {
#if defined(__AVX2__)
  const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_madd_epi16(values, _mm256_set1_epi16(static_cast<int16_t>(factor))));
#else
  int16_t values[16];
  __builtin_memcpy(values, sums, 32);
  for (int i = 0; i < 8; ++i) out[i] = factor * (values[2 * i] + values[2 * i + 1]);
#endif
}
// out[i] = scale[i / 2] * sums[i] for sixteen 16-bit sums.
KVASIR_INLINE void scaled_sums_16(float* out, const float* scale, const uint8_t* sums) {
#if defined(__AVX512F__)
  typedef int16_t Sixteen __attribute__((vector_size(32), aligned(1), may_alias));
  typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
  const Eight one = *reinterpret_cast<const Eight*>(scale);
  const NativeF twice = __builtin_shufflevector(one, one, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  *reinterpret_cast<NativeF*>(out) =
      twice * __builtin_convertvector(*reinterpret_cast<const Sixteen*>(sums), NativeF);
#else
  int16_t values[16];
  __builtin_memcpy(values, sums, 32);
  for (int i = 0; i < 16; ++i) out[i] = scale[i / 2] * static_cast<float>(values[i]);
#endif
}
