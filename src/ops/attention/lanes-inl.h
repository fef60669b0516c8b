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
#if defined(__AVX512F__)
constexpr int kMaxRows = 6, kMaxVectors = 4;  // register tile: 24 of 32 accumulators
#else
constexpr int kMaxRows = 3, kMaxVectors = 2;  // times 2 (avx2) or 4 registers each
#endif

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
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Gt(a.part[i], b.part[i]), a.part[i], b.part[i]);
  return r;
}
// x where keep != 0, else other: NaN in a dropped lane is dropped.
HWY_INLINE V16 select_nonzero(const V16& keep, const V16& x, const V16& other) {
  V16 r;
  FOR_PARTS r.part[i] = hn::IfThenElse(hn::Ne(keep.part[i], hn::Zero(D())), x.part[i], other.part[i]);
  return r;
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

// e^x for x <= 0; 0 below -87. e^0 is exactly 1. Taylor to r^7 for |r| <= ln(2)/2: the rest is below 6e-9.
HWY_INLINE V16 exp_negative(const V16& x) {
  const D d;
  const DI di;
  V16 out;
  FOR_PARTS {
    const V v = hn::Max(x.part[i], hn::Set(d, -88.0f));
    const V n = hn::Round(hn::Mul(v, hn::Set(d, 0x1.715476p+0f)));
    V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), v);  // ln 2 in two parts, n times the first is exact
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    V y = hn::Set(d, 1.0f / 5040.0f);
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 720.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 120.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 24.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f / 6.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 0.5f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
    const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
    const V scaled = hn::Mul(y, hn::BitCast(d, power));
    out.part[i] = hn::IfThenElse(hn::Ge(x.part[i], hn::Set(d, -87.0f)), scaled, hn::Zero(d));
  }
  return out;
}

HWY_INLINE float exp_negative(float x) {
  float lanes[16];
  store(exp_negative(set(x)), lanes);
  return lanes[0];
}

// c tanh(s / c), through e^(-2|s/c|).
HWY_INLINE V16 soft_cap(const V16& s, float cap) {
  const D d;
  const V16 x = div(s, set(cap));
  V16 doubled;
  FOR_PARTS doubled.part[i] = hn::Mul(hn::Abs(x.part[i]), hn::Set(d, -2.0f));
  const V16 e = exp_negative(doubled);
  V16 out;
  FOR_PARTS {
    const V t = hn::Div(hn::Sub(hn::Set(d, 1.0f), e.part[i]), hn::Add(hn::Set(d, 1.0f), e.part[i]));
    out.part[i] = hn::Mul(hn::CopySign(t, x.part[i]), hn::Set(d, cap));
  }
  return out;
}

// Sum and maximum over the lanes in a fixed tree.
HWY_INLINE float sum_of(const V16& v) {
  float x[16];
  store(v, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}
HWY_INLINE float max_of(const V16& v) {
  float x[16];
  store(v, x);
  float best = x[0];
  for (int i = 1; i < 16; ++i) best = x[i] > best ? x[i] : best;
  return best;
}
