// Loads and stores of the last, partial vector of a range of f32, for kernel sources.
//
// Nothing behind the range is touched: not read, because a buffer may end there; not written, not even with
// the same bytes, because another member of the team may be writing there. Targets without masked loads and
// stores go through a small buffer.
#pragma once

#include <hwy/highway.h>

#include "base/isa.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

// x[0 .. count), zero in the other lanes. count <= Lanes(d).
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_first(D d, const float* x, int64_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, x);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = x[i];
  return hn::Load(d, buffer);
#endif
}

template <class D, class V>
HWY_INLINE void store_first(V v, D d, float* y, int64_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, y);
#else
  HWY_ALIGN float buffer[hn::MaxLanes(d)];
  hn::Store(v, d, buffer);
  for (int64_t i = 0; i < count; ++i) y[i] = buffer[i];
#endif
}

}  // namespace KVASIR_ISA_NAMESPACE
}  // namespace kvasir::ops
