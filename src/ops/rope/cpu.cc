#include "ops/rope/rope.h"

#include <hwy/highway.h>

#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DD = hn::ScalableTag<double>;
using DH = hn::Rebind<float, DD>;  // as many floats as there are doubles in a vector

// Cosine and sine in f64. The argument is reduced by whole quarter turns; pi/2 is split after 33 bits, so
// that up to 2^20 quarter turns are subtracted without error. Then Taylor's series on |r| <= pi/4, whose
// first omitted term is below 2^-46.
template <class V>
HWY_INLINE void cos_sin(DD d, V x, V& cosine, V& sine) {
  const auto k = hn::Round(hn::Mul(x, hn::Set(d, 0.63661977236758134308)));
  auto r = hn::Sub(x, hn::Mul(k, hn::Set(d, 1.57079632673412561417)));
  r = hn::Sub(r, hn::Mul(k, hn::Set(d, 6.07710050650619224932e-11)));
  const auto s = hn::Mul(r, r);
  auto sp = hn::Set(d, 1.0 / 6227020800.0);
  sp = hn::MulAdd(sp, s, hn::Set(d, -1.0 / 39916800.0));
  sp = hn::MulAdd(sp, s, hn::Set(d, 1.0 / 362880.0));
  sp = hn::MulAdd(sp, s, hn::Set(d, -1.0 / 5040.0));
  sp = hn::MulAdd(sp, s, hn::Set(d, 1.0 / 120.0));
  sp = hn::MulAdd(sp, s, hn::Set(d, -1.0 / 6.0));
  const auto sin_r = hn::MulAdd(hn::Mul(sp, s), r, r);
  auto cp = hn::Set(d, -1.0 / 87178291200.0);
  cp = hn::MulAdd(cp, s, hn::Set(d, 1.0 / 479001600.0));
  cp = hn::MulAdd(cp, s, hn::Set(d, -1.0 / 3628800.0));
  cp = hn::MulAdd(cp, s, hn::Set(d, 1.0 / 40320.0));
  cp = hn::MulAdd(cp, s, hn::Set(d, -1.0 / 720.0));
  cp = hn::MulAdd(cp, s, hn::Set(d, 1.0 / 24.0));
  cp = hn::MulAdd(cp, s, hn::Set(d, -0.5));
  const auto cos_r = hn::MulAdd(cp, s, hn::Set(d, 1.0));
  // Quadrant 0: (c, s)   1: (-s, c)   2: (-c, -s)   3: (s, -c)
  const auto quadrant = hn::Sub(k, hn::Mul(hn::Floor(hn::Mul(k, hn::Set(d, 0.25))), hn::Set(d, 4.0)));
  const auto is1 = hn::Eq(quadrant, hn::Set(d, 1.0)), is2 = hn::Eq(quadrant, hn::Set(d, 2.0));
  const auto is3 = hn::Eq(quadrant, hn::Set(d, 3.0));
  const auto swap = hn::Or(is1, is3);
  const auto c = hn::IfThenElse(swap, sin_r, cos_r), v = hn::IfThenElse(swap, cos_r, sin_r);
  cosine = hn::IfThenElse(hn::Or(is1, is2), hn::Neg(c), c);
  sine = hn::IfThenElse(hn::Or(is2, is3), hn::Neg(v), v);
}

void table(const float positions[3], const uint8_t* selector, const float* inverse_frequency, float pre_scale,
           int64_t pairs, float* cosines, float* sines) {
  const DD dd;
  const DH dh;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(dd));
  HWY_ALIGN float angle[hn::MaxLanes(DD())];
  HWY_ALIGN float c[hn::MaxLanes(DD())];
  HWY_ALIGN float s[hn::MaxLanes(DD())];
  const auto scale = hn::Set(dh, pre_scale);
  for (int64_t i = 0; i < pairs; i += lanes) {
    const int64_t count = pairs - i < lanes ? pairs - i : lanes;
    for (int64_t j = 0; j < lanes; ++j)
      angle[j] =
          j < count ? positions[selector == nullptr ? 0 : selector[i + j]] * inverse_frequency[i + j] : 0.0f;
    auto cosine = hn::Zero(dd), sine = cosine;
    cos_sin(dd, hn::PromoteTo(dd, hn::Load(dh, angle)), cosine, sine);
    hn::Store(hn::Mul(hn::DemoteTo(dh, cosine), scale), dh, c);
    hn::Store(hn::Mul(hn::DemoteTo(dh, sine), scale), dh, s);
    for (int64_t j = 0; j < count; ++j) {
      cosines[i + j] = c[j];
      sines[i + j] = s[j];
    }
  }
}

// The rotation of a vector of pairs; the same instructions for whole and partial vectors.
template <class V>
HWY_INLINE void rotate(V& a, V& b, V c, V s) {
  const auto x = a, y = b;
  a = hn::MulSub(x, c, hn::Mul(y, s));
  b = hn::MulAdd(y, c, hn::Mul(x, s));
}

void pass_through(const float* x, float* y, int64_t begin, int64_t end) {
  if (x == y) return;
  for (int64_t i = begin; i < end; ++i) y[i] = x[i];
}

void half_split(const float* x, const float* cosines, const float* sines, float* y, int64_t pairs,
                int64_t head_dim) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + pairs);
    rotate(a, b, hn::LoadU(d, cosines + i), hn::LoadU(d, sines + i));
    hn::StoreU(a, d, y + i);
    hn::StoreU(b, d, y + i + pairs);
  }
  if (i < pairs) {
    const int64_t count = pairs - i;
    auto a = load_first(d, x + i, count), b = load_first(d, x + i + pairs, count);
    rotate(a, b, load_first(d, cosines + i, count), load_first(d, sines + i, count));
    store_first(a, d, y + i, count);
    store_first(b, d, y + i + pairs, count);
  }
  pass_through(x, y, 2 * pairs, head_dim);
}

void interleaved(const float* x, const float* cosines, const float* sines, float* y, int64_t pairs,
                 int64_t head_dim) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float first[hn::MaxLanes(D())] = {};
  HWY_ALIGN float second[hn::MaxLanes(D())] = {};
  for (int64_t i = 0; i < pairs; i += lanes) {
    const int64_t count = pairs - i < lanes ? pairs - i : lanes;
    for (int64_t j = 0; j < count; ++j) {
      first[j] = x[2 * (i + j)];
      second[j] = x[2 * (i + j) + 1];
    }
    auto a = hn::Load(d, first), b = hn::Load(d, second);
    rotate(a, b, load_first(d, cosines + i, count), load_first(d, sines + i, count));
    hn::Store(a, d, first);
    hn::Store(b, d, second);
    for (int64_t j = 0; j < count; ++j) {
      y[2 * (i + j)] = first[j];
      y[2 * (i + j) + 1] = second[j];
    }
  }
  pass_through(x, y, 2 * pairs, head_dim);
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const RopeKernels KVASIR_ISA_SYMBOL(rope_kernels);
const RopeKernels KVASIR_ISA_SYMBOL(rope_kernels) = {
    KVASIR_ISA_NAMESPACE::table, KVASIR_ISA_NAMESPACE::half_split, KVASIR_ISA_NAMESPACE::interleaved};

}  // namespace kvasir::ops
