// 16 lanes of f32 on any instruction-set level, and the functions of them that attention needs. Included by
// cpu.cc inside the level's own namespace.

#if defined(__AVX512BF16__)
constexpr bool kHasDot = true;
#else
constexpr bool kHasDot = false;
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr bool kHasInteger = true;
#else
constexpr bool kHasInteger = false;
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr bool kHasPermutes = true;  // of registers, for a table of 256 entries
#else
constexpr bool kHasPermutes = false;
#endif
#if defined(__AVX512F__)
constexpr int kMaxRows = 6, kMaxVectors = 4;  // register tile: 24 of 32 accumulators
constexpr int kTallRows = 12,
              kTallVectors = 2;  // the same with many rows: a right vector is loaded less often
#else
constexpr int kMaxRows = 3, kMaxVectors = 2;  // times 2 (avx2) or 4 registers each
constexpr int kTallRows = 3, kTallVectors = 2;
#endif
constexpr int kIntegerVectors = 2;  // on 8-bit dot products: kMaxRows x 2 x two sums

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = 16 / kLanes;

// 16 lanes of f32 on any level.
struct V16 {
  V part[kParts];
};
#define FOR_PARTS _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)

HWY_INLINE V16 load(const float* p) {
  V16 r;
  FOR_PARTS r.part[i] = hn::LoadU(D(), p + i * kLanes);
  return r;
}
HWY_INLINE void store(const V16& v, float* p) {
  FOR_PARTS hn::StoreU(v.part[i], D(), p + i * kLanes);
}
HWY_INLINE V16 set(float x) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Set(D(), x);
  return r;
}
HWY_INLINE V16 fma(const V16& a, const V16& b, const V16& c) {
  V16 r;
  FOR_PARTS r.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return r;
}
HWY_INLINE V16 add(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Add(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 sub(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Sub(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 mul(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Mul(a.part[i], b.part[i]);
  return r;
}
HWY_INLINE V16 div(const V16& a, const V16& b) {
  V16 r;
  FOR_PARTS r.part[i] = hn::Div(a.part[i], b.part[i]);
  return r;
}
// a > b ? a : b, so a NaN in `a` gives b.
HWY_INLINE V16 max(const V16& a, const V16& b) {
  V16 r;
#if defined(__x86_64__)
  FOR_PARTS r.part[i] =
      hn::Max(a.part[i], b.part[i]);  // maxps: the second operand unless the first is greater
#else
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Gt(a.part[i], b.part[i]), a.part[i], b.part[i]);
#endif
  return r;
}
// x where keep != 0, else other: NaN in a dropped lane is dropped.
HWY_INLINE V16 select_nonzero(const V16& keep, const V16& x, const V16& other) {
  V16 r;
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Ne(keep.part[i], hn::Zero(D())), x.part[i], other.part[i]);
  return r;
}
// Lane j: x where bit j is set, else other.
HWY_INLINE V16 select_bits(uint32_t bits, const V16& x, const V16& other) {
#if defined(__AVX512F__)
  V16 r;
  r.part[0].raw = _mm512_mask_mov_ps(other.part[0].raw, static_cast<__mmask16>(bits), x.part[0].raw);
  return r;
#else
  float keep[16];
  for (int j = 0; j < 16; ++j) keep[j] = static_cast<float>((bits >> j) & 1u);
  return select_nonzero(load(keep), x, other);
#endif
}
// Elements 2i + 1 and 2i of 16 pairs of bf16.
HWY_INLINE void load_pairs(const std::byte* p, V16& even, V16& odd) {
  const DU du;
  FOR_PARTS {
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p) + i * kLanes);
    even.part[i] = hn::BitCast(D(), hn::ShiftLeft<16>(bits));
    odd.part[i] = hn::BitCast(D(), hn::And(bits, hn::Set(du, 0xFFFF0000u)));
  }
}
// Rounded to bf16, kept as f32. For finite values.
HWY_INLINE V16 round_bf16(const V16& x) {
  const DU du;
  V16 r;
  FOR_PARTS {
    const auto bits = hn::BitCast(du, x.part[i]);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd);
    r.part[i] = hn::BitCast(D(), hn::And(up, hn::Set(du, 0xFFFF0000u)));
  }
  return r;
}

constexpr float kLog2E = 0x1.715476p+0f;

// 2^x for x <= 0 (or barely above); 0 below -126 and for NaN. 2^0 is exactly 1. x = n + r with whole n, |r|
// <= 1/2; 2^r by a minimax polynomial (Lawson's iteration) of relative error 2e-9.
HWY_INLINE V16 exp2_negative(const V16& x) {
  const D d;
  V16 out;
  FOR_PARTS {
    const V v = x.part[i];
#if defined(__AVX512F__)
    const V n = hn::Round(v);
#else
    const V n = hn::Round(hn::Max(v, hn::Set(d, -126.0f)));
#endif
    const V r = hn::Sub(v, n);
    V y = hn::Set(d, 0x1.41fbbcp-13f);
    y = hn::MulAdd(y, r, hn::Set(d, 0x1.5f3e54p-10f));
    y = hn::MulAdd(y, r, hn::Set(d, 0x1.3b2d4cp-7f));
    y = hn::MulAdd(y, r, hn::Set(d, 0x1.c6aee8p-5f));
    y = hn::MulAdd(y, r, hn::Set(d, 0x1.ebfbdcp-3f));
    y = hn::MulAdd(y, r, hn::Set(d, 0x1.62e430p-1f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    const auto normal = hn::Ge(v, hn::Set(d, -126.0f));
#if defined(__AVX512F__)
    out.part[i].raw = _mm512_maskz_scalef_ps(normal.raw, y.raw, n.raw);
#else
    const DI di;
    const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
    out.part[i] = hn::IfThenElseZero(normal, hn::Mul(y, power));
#endif
  }
  return out;
}

HWY_INLINE float exp2_negative(float x) {
  return hn::GetLane(exp2_negative(set(x)).part[0]);
}

// 0 <= x <= 1 with 8 significant bits, as bf16 has (Dekker's splitting by 2^16 + 1).
HWY_INLINE V16 round_weight(const V16& x) {
  const V16 t = mul(x, set(65537.0f));
  return sub(t, sub(t, x));
}

// c tanh(s / c), through e^(-2|s/c|).
HWY_INLINE V16 soft_cap(const V16& s, float cap) {
  const D d;
  const V16 x = div(s, set(cap));
  V16 doubled;
  FOR_PARTS doubled.part[i] = hn::Mul(hn::Abs(x.part[i]), hn::Set(d, -2.0f * kLog2E));
  const V16 e = exp2_negative(doubled);
  V16 out;
  FOR_PARTS {
    const V t = hn::Div(hn::Sub(hn::Set(d, 1.0f), e.part[i]), hn::Add(hn::Set(d, 1.0f), e.part[i]));
    out.part[i] = hn::Mul(hn::CopySign(t, x.part[i]), hn::Set(d, cap));
  }
  return out;
}

// Sum and maximum over the lanes in a fixed tree: halves of 8, 4, 2, 1 lanes apart.
HWY_INLINE float sum_of(const V16& v) {
#if defined(__AVX512F__)
  const __m512 x = v.part[0].raw;
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
#else
  float x[16];
  store(v, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
#endif
}
HWY_INLINE float max_of(const V16& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v.part[0].raw);
#else
  float x[16];
  store(v, x);
  float best = x[0];
  for (int i = 1; i < 16; ++i) best = x[i] > best ? x[i] : best;
  return best;
#endif
}
