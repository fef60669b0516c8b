#include <hwy/highway.h>

#include "ops/candidates/candidates.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

// Ids come in ascending order: a value equal to one in the list goes behind it.
void insert(float value, int32_t id, int most, CandidateList* list) {
  int at = list->count < most ? list->count++ : most - 1;
  for (; at > 0 && list->best[at - 1].value < value; --at) list->best[at] = list->best[at - 1];
  list->best[at] = {value, id};
}

void scan(const float* x, int64_t count, int32_t first_id, int most, CandidateList* list) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto take = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (x[i] != x[i])
        list->not_a_number = 1;
      else if (list->count < most || x[i] > list->best[most - 1].value)
        insert(x[i], first_id + static_cast<int32_t>(i), most, list);
  };
  int64_t i = 0;
  while (i < count && list->count < most) {
    const int64_t end = i + lanes < count ? i + lanes : count;
    take(i, end);
    i = end;
  }
  // Nothing is taken but what exceeds the last of a full list; four vectors at a time.
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto least = hn::Set(d, list->best[most - 1].value);
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + lanes);
    const auto e = hn::LoadU(d, x + i + 2 * lanes), f = hn::LoadU(d, x + i + 3 * lanes);
    // Not <=: greater, or not a number.
    const auto le =
        hn::And(hn::And(hn::Le(a, least), hn::Le(b, least)), hn::And(hn::Le(e, least), hn::Le(f, least)));
    if (!hn::AllTrue(d, le)) take(i, i + 4 * lanes);
  }
  take(i, count);
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const CandidateKernels KVASIR_ISA_SYMBOL(candidate_kernels);
const CandidateKernels KVASIR_ISA_SYMBOL(candidate_kernels) = {KVASIR_ISA_NAMESPACE::scan};

}  // namespace kvasir::ops
