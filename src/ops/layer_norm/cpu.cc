#include <hwy/highway.h>

#include "ops/layer_norm/layer_norm.h"
#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// Sum of term(x_i - center), term being the identity or the square.
template <bool kSquare>
float sum(const float* x, float center, int64_t width) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto c = hn::Set(d, center);
  auto add = [&](auto s, auto v) {
    const auto t = hn::Sub(v, c);
    if constexpr (kSquare) return hn::MulAdd(t, t, s);
    return hn::Add(s, t);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    s0 = add(s0, hn::LoadU(d, x + i));
    s1 = add(s1, hn::LoadU(d, x + i + lanes));
    s2 = add(s2, hn::LoadU(d, x + i + 2 * lanes));
    s3 = add(s3, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i < width; i += lanes) {
    const int64_t count = width - i < lanes ? width - i : lanes;
    const auto keep = hn::FirstN(d, static_cast<size_t>(count));
    // Lanes past the end hold the center, so that they add nothing.
    s0 = add(s0, hn::IfThenElse(keep, load_first(d, x + i, count), c));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

void vector(const float* x, const float* gain, float offset, const float* bias, float* y, int64_t width,
            float epsilon) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // The rounding errors of the first sum are taken out by a second one over what is left.
  const float rough = sum<false>(x, 0.0f, width) / static_cast<float>(width);
  const float mean = rough + sum<false>(x, rough, width) / static_cast<float>(width);
  const float variance = sum<true>(x, mean, width) / static_cast<float>(width);
  const auto scale = hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Add(hn::Set(d, variance), hn::Set(d, epsilon))));
  const auto center = hn::Set(d, mean), shift = hn::Set(d, offset);
  for (int64_t i = 0; i < width; i += lanes) {
    const int64_t count = width - i < lanes ? width - i : lanes;
    auto v = hn::Mul(hn::Sub(load_first(d, x + i, count), center), scale);
    const auto b = bias != nullptr ? load_first(d, bias + i, count) : hn::Zero(d);
    if (gain != nullptr)
      v = hn::MulAdd(v, hn::Add(load_first(d, gain + i, count), shift), b);
    else
      v = hn::Add(v, b);
    store_first(v, d, y + i, count);
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const LayerNormKernels KVASIR_ISA_SYMBOL(layer_norm_kernels);
const LayerNormKernels KVASIR_ISA_SYMBOL(layer_norm_kernels) = {KVASIR_ISA_NAMESPACE::vector};

}  // namespace kvasir::ops
