// For tests: whether two requests ended alike, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include "engine/engine.h"

namespace kvasir::engine::testing {

inline void expect_same(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.tokens, want.tokens);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    ASSERT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob) << "token " << i;  // bits, not tolerances
    ASSERT_EQ(got.logprobs[i].top.size(), want.logprobs[i].top.size());
    for (size_t k = 0; k < want.logprobs[i].top.size(); ++k)
      ASSERT_EQ(got.logprobs[i].top[k].logprob, want.logprobs[i].top[k].logprob) << "token " << i;
  }
}

}  // namespace kvasir::engine::testing
