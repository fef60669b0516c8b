// What a sampler does to a whole row of logits, once per instruction-set level. Every level gives the same
// bits: products and sums are rounded one by one, as in sampling_exp.
#pragma once

#include <cstdint>

#include "base/isa.h"

namespace kvasir::engine {

struct SamplingKernels {
  // Lowest index of the largest of `count` >= 1 numbers; -1 if one is not a number.
  int64_t (*argmax)(const float* x, int64_t count);
  // e[i] = sampling_exp(x[i] - shift) where x[i] - shift < below, else 0.
  void (*exps)(const float* x, float shift, float below, int64_t count, float* e);
  // The ids i, ascending, whose x[i] - shift >= least, and those differences; returns how many. -inf is never
  // taken.
  int64_t (*at_least)(const float* x, float shift, float least, int64_t count, int32_t* ids, float* values);
  // Per 64 numbers (the last block may be shorter) the largest.
  void (*block_maxima)(const float* x, int64_t count, float* maxima);
};
KVASIR_KERNEL_TABLE(SamplingKernels, sampling_kernels)

}  // namespace kvasir::engine
