#include <hwy/highway.h>

#include "ops/experts/experts.h"
#include "ops/vector_math-inl.h"
#include "ops/vector_tail-inl.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;

void route(const float* logits, int64_t count, int64_t used, bool normalize, float* scratch, int32_t* chosen,
           float* weights) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float largest = logits[0];
  for (int64_t i = 1; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const auto shift = hn::Set(d, largest);
  for (int64_t i = 0; i < count; i += lanes) {
    const int64_t n = count - i < lanes ? count - i : lanes;
    store_first(exp(d, hn::Sub(load_first(d, logits + i, n), shift)), d, scratch + i, n);
  }
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += scratch[i];
  for (int64_t i = 0; i < count; ++i) scratch[i] = scratch[i] / sum;
  float kept = 0.0f;
  for (int64_t k = 0; k < used; ++k) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i) best = scratch[i] > scratch[best] ? i : best;
    chosen[k] = static_cast<int32_t>(best);
    weights[k] = scratch[best];
    kept += scratch[best];
    scratch[best] = -1.0f;
  }
  if (normalize)
    for (int64_t k = 0; k < used; ++k) weights[k] = weights[k] / kept;
}

void combine(const float* const* rows, const float* weights, int64_t used, const float* residual, float* y,
             int64_t width) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += lanes) {
    const int64_t n = width - i < lanes ? width - i : lanes;
    auto sum = hn::Zero(d);
    for (int64_t k = 0; k < used; ++k)
      sum = hn::MulAdd(load_first(d, rows[k] + i, n), hn::Set(d, weights[k]), sum);
    if (residual != nullptr) sum = hn::Add(load_first(d, residual + i, n), sum);
    store_first(sum, d, y + i, n);
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const ExpertsKernels KVASIR_ISA_SYMBOL(experts_kernels);
const ExpertsKernels KVASIR_ISA_SYMBOL(experts_kernels) = {KVASIR_ISA_NAMESPACE::route,
                                                           KVASIR_ISA_NAMESPACE::combine};

}  // namespace kvasir::ops
