// Loads and stores of the last, partial vector of a range of f32, for kernel sources.
//
// A store must not touch what lies behind the range, not even to write the same bytes back: another member of
// the team may be writing there. Targets without masked stores go through a small buffer.
#pragma once

#include <hwy/highway.h>

#include "base/isa.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {

// x[0 .. count), zero in the other lanes. count <= Lanes(d); bytes up to the next 64-byte boundary may be
// read.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_first(D d, const float* x, int64_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, x);
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
