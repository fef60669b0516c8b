#include "ops/activation/activation.h"

#include <hwy/highway.h>

#include "ops/vector_math-inl.h"
#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;

struct Silu {
  template <class V>
  HWY_INLINE V operator()(D d, V x) const {
    return silu(d, x);
  }
};
struct GeluTanh {
  template <class V>
  HWY_INLINE V operator()(D d, V x) const {
    return gelu_tanh(d, x);
  }
};
struct GeluErf {
  template <class V>
  HWY_INLINE V operator()(D d, V x) const {
    return gelu_erf(d, x);
  }
};
struct Relu2 {
  template <class V>
  HWY_INLINE V operator()(D d, V x) const {
    const V positive = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, hn::Zero(d));
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(positive, positive));
  }
};
struct Xielu {
  XieluParameters p;
  template <class V>
  HWY_INLINE V operator()(D d, V x) const {
    const V linear = hn::Mul(x, hn::Set(d, p.beta));
    const V positive = hn::MulAdd(hn::Mul(x, x), hn::Set(d, p.alpha_p), linear);
    const V bent = hn::Sub(expm1(d, hn::Min(x, hn::Set(d, p.epsilon))), x);
    const V negative = hn::MulAdd(bent, hn::Set(d, p.alpha_n), linear);
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), positive, negative);
  }
};

template <class F>
void map(const F& f, const float* gate, const float* up, float* y, int64_t count) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (up != nullptr) {
    for (; i + lanes <= count; i += lanes)
      hn::StoreU(hn::Mul(f(d, hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), d, y + i);
    if (i < count)
      store_first(hn::Mul(f(d, load_first(d, gate + i, count - i)), load_first(d, up + i, count - i)), d,
                  y + i, count - i);
  } else {
    for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, gate + i)), d, y + i);
    if (i < count) store_first(f(d, load_first(d, gate + i, count - i)), d, y + i, count - i);
  }
}

void apply(ActivationFunction function, const XieluParameters& xielu, const float* gate, const float* up,
           float* y, int64_t count) {
  switch (function) {
    case ActivationFunction::silu:
      return map(Silu{}, gate, up, y, count);
    case ActivationFunction::gelu_tanh:
      return map(GeluTanh{}, gate, up, y, count);
    case ActivationFunction::gelu_erf:
      return map(GeluErf{}, gate, up, y, count);
    case ActivationFunction::relu2:
      return map(Relu2{}, gate, up, y, count);
    case ActivationFunction::xielu:
      return map(Xielu{xielu}, gate, up, y, count);
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const ActivationKernels KVASIR_ISA_SYMBOL(activation_kernels);
const ActivationKernels KVASIR_ISA_SYMBOL(activation_kernels) = {KVASIR_ISA_NAMESPACE::apply};

}  // namespace kvasir::ops
