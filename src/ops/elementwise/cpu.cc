#include "ops/elementwise/elementwise.h"

#include <hwy/highway.h>

#include "ops/vector_math-inl.h"
#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;

template <class F>
HWY_INLINE void map(const float* x, float* y, int64_t count, const F& f) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i);
  if (i < count) store_first(f(load_first(d, x + i, count - i)), d, y + i, count - i);
}

template <class F>
HWY_INLINE void map2(const float* a, const float* b, float* y, int64_t count, const F& f) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
  if (i < count)
    store_first(f(load_first(d, a + i, count - i), load_first(d, b + i, count - i)), d, y + i, count - i);
}

void add(const float* a, const float* b, float multiplier, float* y, int64_t count) {
  const D d;
  if (multiplier == 1.0f) return map2(a, b, y, count, [](auto va, auto vb) { return hn::Add(va, vb); });
  const auto m = hn::Set(d, multiplier);
  map2(a, b, y, count, [&](auto va, auto vb) { return hn::MulAdd(vb, m, va); });
}

void scale(const float* x, float factor, float* y, int64_t count) {
  const auto f = hn::Set(D(), factor);
  map(x, y, count, [&](auto v) { return hn::Mul(v, f); });
}

void divide(const float* x, float divisor, float* y, int64_t count) {
  const auto f = hn::Set(D(), divisor);
  map(x, y, count, [&](auto v) { return hn::Div(v, f); });
}

void softcap(const float* x, float cap, float* y, int64_t count) {
  const D d;
  const auto c = hn::Set(d, cap);
  map(x, y, count, [&](auto v) { return hn::Mul(tanh(d, hn::Div(v, c)), c); });
}

void clamp(const float* x, float low, float high, float* y, int64_t count) {
  const D d;
  const auto lo = hn::Set(d, low), hi = hn::Set(d, high);
  map(x, y, count, [&](auto v) { return hn::Min(hn::Max(v, lo), hi); });
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const ElementwiseKernels KVASIR_ISA_SYMBOL(elementwise_kernels);
const ElementwiseKernels KVASIR_ISA_SYMBOL(elementwise_kernels) = {
    KVASIR_ISA_NAMESPACE::add, KVASIR_ISA_NAMESPACE::scale, KVASIR_ISA_NAMESPACE::divide,
    KVASIR_ISA_NAMESPACE::softcap, KVASIR_ISA_NAMESPACE::clamp};

}  // namespace kvasir::ops
