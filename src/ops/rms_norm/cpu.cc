#include <hwy/highway.h>

#include "ops/rms_norm/rms_norm.h"
#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

void vector(const float* x, const float* gain, float offset, float* y, int64_t width, float epsilon) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    const auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    const auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  for (; i < width; i += lanes) {
    const auto xi = load_first(d, x + i, width - i < lanes ? width - i : lanes);
    s0 = hn::MulAdd(xi, xi, s0);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  const auto one = hn::Set(d, 1.0f);
  const auto mean = hn::Set(d, sum / static_cast<float>(width));
  const auto scale = hn::Div(one, hn::Sqrt(hn::Add(mean, hn::Set(d, epsilon))));
  const auto shift = hn::Set(d, offset);
  for (i = 0; i < width; i += lanes) {
    const int64_t left = width - i;
    if (left >= lanes) {
      auto v = hn::Mul(hn::LoadU(d, x + i), scale);
      if (gain != nullptr) v = hn::Mul(v, hn::Add(hn::LoadU(d, gain + i), shift));
      hn::StoreU(v, d, y + i);
    } else {
      auto v = hn::Mul(load_first(d, x + i, left), scale);
      if (gain != nullptr) v = hn::Mul(v, hn::Add(load_first(d, gain + i, left), shift));
      store_first(v, d, y + i, left);
    }
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const RmsNormKernels KVASIR_ISA_SYMBOL(rms_norm_kernels);
const RmsNormKernels KVASIR_ISA_SYMBOL(rms_norm_kernels) = {KVASIR_ISA_NAMESPACE::vector};

}  // namespace kvasir::ops
