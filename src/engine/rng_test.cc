#include "engine/rng.h"

#include <gtest/gtest.h>

namespace kvasir::engine {
namespace {

// Known-answer vectors of Threefry-2x32-20 (Random123) and of the engine's key schedule.
TEST(Rng, ThreefryVectors) {
  EXPECT_EQ(threefry({0, 0}, {0, 0}), (RandomKey{0x6b200159, 0x99ba4efe}));
  EXPECT_EQ(threefry({~0u, ~0u}, {~0u, ~0u}), (RandomKey{0x1cb996fc, 0xbb002be7}));
  EXPECT_EQ(threefry({0x13198a2e, 0x03707344}, {0x243f6a88, 0x85a308d3}),
            (RandomKey{0xc4923a9c, 0x483df7a0}));
}

struct KeyCase {
  uint64_t seed, t;
  RandomKey key;
  double own, first, second;
};

TEST(Rng, KeySchedule) {
  const KeyCase cases[] = {
      {0, 0, {0x9e3779b9, 0x7f4a7c15}, 0.07593324035406113, 0.5103764533996582, 0.7469531893730164},
      {0, 1, {0x3c6ef372, 0xfe94f82a}, 0.27209731936454773, 0.6085907220840454, 0.07312902808189392},
      {1234, 0, {0x9e3779b9, 0x7f4a78c7}, 0.3485770523548126, 0.8852511048316956, 0.9031681418418884},
      {1234, 7, {0xf1bbcdcb, 0xfa53e47a}, 0.9662135243415833, 0.41256871819496155, 0.7093651294708252},
      {~0ull, 0, {0x61c88646, 0x80b583ea}, 0.7519700527191162, 0.166150763630867, 0.6515495777130127},
  };
  for (const KeyCase& c : cases) {
    const RandomKey key = step_key(c.seed, c.t);
    EXPECT_EQ(key, c.key);
    EXPECT_EQ(static_cast<double>(uniform(key)), c.own);
    EXPECT_EQ(static_cast<double>(uniform(split(key).first)), c.first);
    EXPECT_EQ(static_cast<double>(uniform(split(key).second)), c.second);
  }
}

TEST(Rng, SampleSeeds) {
  EXPECT_EQ(sample_seed(1234, 0), 1234u);
  EXPECT_EQ(sample_seed(1234, 1), 0xbb0cf61b2f181cdbu);
  EXPECT_EQ(sample_seed(1234, 2), 0x97c7a1364df06524u);
}

TEST(Rng, UniformNeverReachesOne) {
  for (uint64_t t = 0; t < 100000; ++t) {
    const float u = uniform(step_key(42, t));
    EXPECT_GE(u, 0.0f);
    EXPECT_LT(u, 1.0f);
  }
}

}  // namespace
}  // namespace kvasir::engine
