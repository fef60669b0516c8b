#include <hwy/highway.h>

#include "engine/sampling_kernels.h"

namespace kvasir::engine {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;

constexpr float kMinusInfinity = -__builtin_inff();

int64_t argmax(const float* x, int64_t count) {
  const D d;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float best = x[0];
  int64_t at = 0;
  bool not_a_number = false;
  int64_t i = 0;
  if (count >= lanes) {
    auto most = hn::Set(d, kMinusInfinity);
    auto where = hn::Zero(di);  // the vector that a lane's largest was first met in
    auto numbers = hn::Eq(most, most);
    int32_t vector = 0;
    for (; i + lanes <= count; i += lanes, ++vector) {
      const auto v = hn::LoadU(d, x + i);
      const auto more = hn::Gt(v, most);
      most = hn::IfThenElse(more, v, most);
      where = hn::IfThenElse(hn::RebindMask(di, more), hn::Set(di, vector), where);
      numbers = hn::And(numbers, hn::Eq(v, v));
    }
    not_a_number = !hn::AllTrue(d, numbers);
    HWY_ALIGN float values[hn::MaxLanes(D())];
    HWY_ALIGN int32_t vectors[hn::MaxLanes(D())];
    hn::Store(most, d, values);
    hn::Store(where, di, vectors);
    best = kMinusInfinity;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t index = static_cast<int64_t>(vectors[lane]) * lanes + lane;
      if (values[lane] > best || (values[lane] == best && index < at)) {
        best = values[lane];
        at = index;
      }
    }
    if (best == kMinusInfinity) at = 0;
  }
  for (; i < count; ++i) {
    not_a_number |= x[i] != x[i];
    if (x[i] > best) {
      best = x[i];
      at = i;
    }
  }
  return not_a_number ? -1 : at;
}

// exp(x) = 2^n * exp(r) as sampling_exp has it.
template <class V>
HWY_INLINE V exp_of(D d, V x) {
  const DI di;
  const auto zero = hn::Zero(d);
  const auto valid = hn::Gt(x, hn::Set(d, -103.0f));
  x = hn::Min(hn::IfThenElseZero(valid, x), hn::Set(d, 88.0f));
  const auto scaled = hn::Mul(x, hn::Set(d, 1.44269504f));
  const auto half = hn::IfThenElse(hn::Lt(scaled, zero), hn::Set(d, -0.5f), hn::Set(d, 0.5f));
  const auto whole = hn::ConvertTo(di, hn::Add(scaled, half));
  const auto n = hn::ConvertTo(d, whole);
  const auto r =
      hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f))), hn::Mul(n, hn::Set(d, -2.12194440e-4f)));
  auto p = hn::Set(d, 1.9875691500e-4f);
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = hn::Add(hn::Mul(p, r), hn::Set(d, c));
  const auto value = hn::Add(hn::Add(hn::Mul(hn::Mul(p, r), r), r), hn::Set(d, 1.0f));
  // Times 2^n in two steps, so that results below the normal numbers are rounded once.
  const auto first = hn::ShiftRight<1>(whole), second = hn::Sub(whole, first);
  const auto power = [&](auto k) { return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127)))); };
  return hn::IfThenElseZero(valid, hn::Mul(hn::Mul(value, power(first)), power(second)));
}

void exps(const float* x, float shift, float below, int64_t count, float* e) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto minus = hn::Set(d, shift), end = hn::Set(d, below);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::Sub(hn::LoadU(d, x + i), minus);
    hn::StoreU(hn::IfThenElseZero(hn::Lt(v, end), exp_of(d, v)), d, e + i);
  }
  if (i == count) return;
  HWY_ALIGN float last[hn::MaxLanes(D())] = {};
  for (int64_t j = 0; i + j < count; ++j) last[j] = x[i + j];
  const auto v = hn::Sub(hn::Load(d, last), minus);
  hn::Store(hn::IfThenElseZero(hn::Lt(v, end), exp_of(d, v)), d, last);
  for (int64_t j = 0; i + j < count; ++j) e[i + j] = last[j];
}

int64_t at_least(const float* x, float shift, float least, int64_t count, int32_t* ids, float* values) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto minus = hn::Set(d, shift), from = hn::Set(d, least), none = hn::Set(d, kMinusInfinity);
  int64_t taken = 0, i = 0;
  const auto take = [&](int64_t end) {
    for (; i < end; ++i) {
      const float v = x[i] - shift;
      if (v >= least && v != kMinusInfinity) {
        ids[taken] = static_cast<int32_t>(i);
        values[taken++] = v;
      }
    }
  };
  while (i + lanes <= count) {
    const auto v = hn::Sub(hn::LoadU(d, x + i), minus);
    if (hn::AllFalse(d, hn::And(hn::Ge(v, from), hn::Gt(v, none))))
      i += lanes;
    else
      take(i + lanes);
  }
  take(count);
  return taken;
}

void block_maxima(const float* x, int64_t count, float* maxima) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t begin = 0; begin < count; begin += 64) {
    const int64_t end = begin + 64 < count ? begin + 64 : count;
    float most = kMinusInfinity;
    int64_t i = begin;
    if (i + lanes <= end) {
      auto v = hn::LoadU(d, x + i);
      for (i += lanes; i + lanes <= end; i += lanes) v = hn::Max(v, hn::LoadU(d, x + i));
      most = hn::GetLane(hn::MaxOfLanes(d, v));
    }
    for (; i < end; ++i) most = x[i] > most ? x[i] : most;
    maxima[begin / 64] = most;
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const SamplingKernels KVASIR_ISA_SYMBOL(sampling_kernels);
const SamplingKernels KVASIR_ISA_SYMBOL(sampling_kernels) = {
    KVASIR_ISA_NAMESPACE::argmax, KVASIR_ISA_NAMESPACE::exps, KVASIR_ISA_NAMESPACE::at_least,
    KVASIR_ISA_NAMESPACE::block_maxima};

}  // namespace kvasir::engine
