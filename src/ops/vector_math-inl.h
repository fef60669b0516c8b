// Elementary functions on Highway vectors of f32, for kernel sources (cpu.cc) of any op.
//
// Included once per translation unit, inside no namespace; everything lands in the instruction-set level's
// own namespace. Errors, against the exact value: exp and silu below 1.5 ulp, tanh and erf below 2.5 ulp
// (vector_math_test.cc). A result depends on the lane's own input alone, never on its neighbours or on the
// lane's place. Polynomials are our own minimax fits (Lawson's iteration, error below 2^-32 of the result
// before rounding).
#pragma once

#include <hwy/highway.h>

#include "base/isa.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// a * b + c in the order of Horner's rule, from the highest coefficient down.
template <class D, class V, size_t N>
HWY_INLINE V polynomial(D d, V x, const float (&coefficients)[N]) {
  V y = hn::Set(d, coefficients[N - 1]);
  for (size_t i = N - 1; i-- > 0;) y = hn::MulAdd(y, x, hn::Set(d, coefficients[i]));
  return y;
}

// 2^n for whole n in [-126, 127].
template <class D, class V>
HWY_INLINE V power_of_two(D d, V n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
}

// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2.
template <class D, class V>
HWY_INLINE V exp_tail(D d, V r) {
  static constexpr float kTail[] = {5.0000000680e-01f, 1.6666665865e-01f, 4.1666293625e-02f,
                                    8.3334976686e-03f, 1.3944759164e-03f, 1.9790248613e-04f};
  return polynomial(d, r, kTail);
}

// x = n ln 2 + r with whole n and |r| <= ln(2) / 2. ln 2 is split so that n times the upper part is exact.
template <class D, class V>
HWY_INLINE void reduce_exp(D d, V x, V& n, V& r) {
  n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504089f)));
  r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
}

// e^x. Overflows to infinity above 88.72, underflows gradually to 0 below -87.33 (0 from -104). NaN stays
// NaN.
template <class D, class V>
HWY_INLINE V exp(D d, V x) {
  const V clamped = hn::Max(hn::Min(x, hn::Set(d, 89.0f)), hn::Set(d, -104.0f));
  V n, r;
  reduce_exp(d, clamped, n, r);
  const V y = hn::Add(hn::MulAdd(hn::Mul(exp_tail(d, r), r), r, r), hn::Set(d, 1.0f));
  // Two factors, so that neither leaves the range of normal numbers while the product may.
  const V half = hn::Floor(hn::Mul(n, hn::Set(d, 0.5f)));
  const V scaled = hn::Mul(hn::Mul(y, power_of_two(d, half)), power_of_two(d, hn::Sub(n, half)));
  return hn::IfThenElse(hn::IsNaN(x), x, scaled);
}

// e^x - 1 without cancellation near 0, for x <= 80.
template <class D, class V>
HWY_INLINE V expm1(D d, V x) {
  const V clamped = hn::Max(x, hn::Set(d, -30.0f));
  V n, r;
  reduce_exp(d, clamped, n, r);
  const V tail = hn::MulAdd(hn::Mul(exp_tail(d, r), r), r, r);  // e^r - 1
  const V scale = power_of_two(d, n);
  return hn::MulAdd(tail, scale, hn::Sub(scale, hn::Set(d, 1.0f)));
}

// 1 / (1 + e^-x)
template <class D, class V>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

// x / (1 + e^-x)
template <class D, class V>
HWY_INLINE V silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp(d, hn::Neg(x))));
}

template <class D, class V>
HWY_INLINE V tanh(D d, V x) {
  static constexpr float kSmall[] = {-0.3333333091f, 0.1333320976f,  -0.0539472043f,
                                     0.0217029671f,  -0.0081826739f, 0.0021475369f};
  const V one = hn::Set(d, 1.0f);
  const V a = hn::Abs(x);
  const V s = hn::Mul(x, x);
  const V small = hn::MulAdd(hn::Mul(polynomial(d, s, kSmall), s), x, x);
  // 1 - 2 / (e^(2a) + 1); past 10 the quotient vanishes beside 1.
  const V e = exp(d, hn::Mul(hn::Min(a, hn::Set(d, 10.0f)), hn::Set(d, 2.0f)));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  const V result = hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

template <class D, class V>
HWY_INLINE V erf(D d, V x) {
  static constexpr float kSmall[] = {-3.7612630720e-01f, 1.1283629880e-01f,  -2.6855484180e-02f,
                                     5.1912918150e-03f,  -8.0350317347e-04f, 7.9331085119e-05f};
  // -ln(erfc(a)) for 1 <= a <= 4; beyond, erf rounds to 1.
  static constexpr float kLog[] = {-1.8804022623e-04f, 1.1295784243e+00f,  6.3321989310e-01f,
                                   1.0841857732e-01f,  -2.5208256732e-02f, 4.2045618721e-03f,
                                   -4.4133637678e-04f, 2.1686849931e-05f};
  const V a = hn::Abs(x);
  const V s = hn::Mul(x, x);
  const V small = hn::Mul(x, hn::MulAdd(polynomial(d, s, kSmall), s, hn::Set(d, 1.1283791671f)));
  const V g = polynomial(d, hn::Min(a, hn::Set(d, 4.0f)), kLog);
  const V large = hn::Sub(hn::Set(d, 1.0f), exp(d, hn::Neg(g)));
  const V result = hn::IfThenElse(hn::Lt(a, hn::Set(d, 1.0f)), small, hn::CopySign(large, x));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
template <class D, class V>
HWY_INLINE V gelu_tanh(D d, V x) {
  const V inner =
      hn::Mul(x, hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.7978845608f * 0.044715f), hn::Set(d, 0.7978845608f)));
  return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), tanh(d, inner)));
}

// 0.5 x (1 + erf(x / sqrt(2)))
template <class D, class V>
HWY_INLINE V gelu_erf(D d, V x) {
  const V e = erf(d, hn::Mul(x, hn::Set(d, 0.7071067812f)));
  return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), e));
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
