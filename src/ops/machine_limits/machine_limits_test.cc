#include "ops/machine_limits/machine_limits.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir::ops {
namespace {

TEST(MachineLimits, ReadsEveryByte) {
  // The reader's result is the exclusive or of all 64-bit words: changing any one of them must show.
  for (IsaLevel level : compiled_isa_levels()) {
    if (!machine_has(level)) continue;
    std::vector<uint64_t> words(512, 0);
    const auto* data = reinterpret_cast<const std::byte*>(words.data());
    EXPECT_EQ(limit_kernels(level).read(data, words.size() * 8), 0u);
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = 0x123456789ABCDEFu + i;
      EXPECT_EQ(limit_kernels(level).read(data, words.size() * 8), words[i]) << name(level) << " word " << i;
      words[i] = 0;
    }
  }
}

TEST(MachineLimits, CountsWhatItDoes) {
  // Twice the rounds, twice the operations; int8 does four products where f32 does one, at every level.
  for (IsaLevel level : compiled_isa_levels()) {
    if (!machine_has(level)) continue;
    const LimitKernels& kernels = limit_kernels(level);
    EXPECT_EQ(kernels.f32(20), 2 * kernels.f32(10));
    EXPECT_EQ(kernels.int8(10), 4 * kernels.f32(10));
    EXPECT_GE(kernels.bf16(10), kernels.f32(10));
  }
}

TEST(MachineLimits, MeasuresSomethingPossible) {
  ThreadTeam team(1);
  const double bandwidth = measure_read_bandwidth(team, best_isa_level());
  EXPECT_GT(bandwidth, 1e8);   // slower than any machine that could run this
  EXPECT_LT(bandwidth, 2e12);  // faster than any one core
  const double peak = measure_arithmetic(team, IsaLevel::generic, Arithmetic::f32);
  EXPECT_GT(peak, 1e8);
  EXPECT_LT(peak, 1e13);
}

}  // namespace
}  // namespace kvasir::ops
