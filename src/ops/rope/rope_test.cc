#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

std::vector<float> inverse_frequencies(int64_t pairs, double base) {
  std::vector<float> out;
  for (int64_t i = 0; i < pairs; ++i)
    out.push_back(
        static_cast<float>(1 / std::pow(base, static_cast<double>(i) / static_cast<double>(pairs))));
  return out;
}

TestMatrix run_table(const RopeTable& table, const std::vector<int32_t>& positions, IsaLevel isa,
                     int threads = 1) {
  TestProgram program(
      {}, [&](auto& b, auto&) { return rope_table(b, table, isa); }, threads,
      static_cast<int64_t>(positions.size()));
  program.step().rope_position = {positions, positions, positions};
  return program.run_and_take();
}

TEST(RopeTable, CosinesAndSinesAreRightForLongContexts) {
  // Against the f64 functions of the same f32 angle, up to a position of a million.
  const std::vector<int32_t> positions = {0,    1,     2,      3,      7,      100,    1023,
                                          4096, 65535, 131072, 524287, 999999, 1000000};
  for (IsaLevel isa : testable_levels())
    for (int64_t pairs : {1, 3, 12, 16, 32, 37, 64}) {
      RopeTable table{inverse_frequencies(pairs, 10000), 1.0f, {}};
      const TestMatrix y = run_table(table, positions, isa);
      for (size_t t = 0; t < positions.size(); ++t)
        for (int64_t i = 0; i < pairs; ++i) {
          const float angle =
              static_cast<float>(positions[t]) * table.inverse_frequency[static_cast<size_t>(i)];
          const double c = std::cos(static_cast<double>(angle)), s = std::sin(static_cast<double>(angle));
          ASSERT_NEAR(y.at(static_cast<int64_t>(t), i), c, 6e-8 * std::abs(c) + 1e-10)
              << positions[t] << " pair " << i;
          ASSERT_NEAR(y.at(static_cast<int64_t>(t), pairs + i), s, 6e-8 * std::abs(s) + 1e-10)
              << positions[t] << " pair " << i;
        }
    }
}

TEST(RopeTable, PreScaleIdentityAndSelector) {
  for (IsaLevel isa : testable_levels()) {
    RopeTable table{{1.0f, 0.5f, 0.0f}, 1.5f, {0, 1, 2}};
    TestProgram program(
        {}, [&](auto& b, auto&) { return rope_table(b, table, isa); }, 1, 1);
    const std::vector<int32_t> a = {2}, b = {6}, c = {9};
    program.step().rope_position = {a, b, c};
    const TestMatrix y = program.run_and_take();
    EXPECT_NEAR(y.at(0, 0), 1.5 * std::cos(2.0), 2e-7);
    EXPECT_NEAR(y.at(0, 1), 1.5 * std::cos(3.0), 2e-7);
    EXPECT_EQ(y.at(0, 2), 1.5f);
    EXPECT_NEAR(y.at(0, 3), 1.5 * std::sin(2.0), 2e-7);
    EXPECT_EQ(y.at(0, 5), 0.0f);
  }
}

TEST(RopeTable, EqualStreamsArePlainRope) {
  const std::vector<int32_t> positions = {0, 5, 77, 4001};
  const int64_t pairs = 32;
  for (IsaLevel isa : testable_levels()) {
    RopeTable plain{inverse_frequencies(pairs, 1e7), 1.0f, {}};
    RopeTable axes = plain;
    for (int64_t i = 0; i < pairs; ++i) axes.selector.push_back(static_cast<uint8_t>(i % 3));
    EXPECT_EQ(run_table(plain, positions, isa).values, run_table(axes, positions, isa, 3).values);
  }
}

TestMatrix run_rope(const TestMatrix& x, int64_t heads, const RopeTable& table, RopeLayout layout,
                    const std::vector<int32_t>& positions, IsaLevel isa, int threads = 1) {
  TestProgram program(
      {&x}, [&](auto& b, auto& in) { return rope(b, in[0], rope_table(b, table, isa), heads, layout, isa); },
      threads);
  program.step().rope_position = {positions, positions, positions};
  return program.run_and_take();
}

TEST(Rope, MatchesTheDefinition) {
  const std::vector<int32_t> positions = {0, 1, 17, 1000};
  for (IsaLevel isa : testable_levels())
    for (int64_t head_dim : {2, 6, 24, 64, 80, 128})
      for (int64_t pairs : {head_dim / 2, std::max<int64_t>(1, head_dim / 4)})
        for (RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
          const int64_t heads = 3;
          const TestMatrix x = TestMatrix::random(4, heads * head_dim, static_cast<uint32_t>(head_dim));
          const RopeTable table{inverse_frequencies(pairs, 10000), 1.0f, {}};
          const TestMatrix y = run_rope(x, heads, table, layout, positions, isa);
          for (int64_t t = 0; t < 4; ++t)
            for (int64_t h = 0; h < heads; ++h)
              for (int64_t i = 0; i < head_dim; ++i) {
                const int64_t base = h * head_dim;
                if (i >= 2 * pairs) {
                  ASSERT_EQ(y.at(t, base + i), x.at(t, base + i));
                  continue;
                }
                const bool half = layout == RopeLayout::half_split;
                const int64_t pair = half ? i % pairs : i / 2;
                const int64_t first = base + (half ? pair : 2 * pair),
                              second = base + (half ? pair + pairs : 2 * pair + 1);
                const double angle = static_cast<float>(positions[static_cast<size_t>(t)]) *
                                     table.inverse_frequency[static_cast<size_t>(pair)];
                const double a = x.at(t, first), b = x.at(t, second), c = std::cos(angle),
                             s = std::sin(angle);
                const bool is_first = half ? i < pairs : i % 2 == 0;
                ASSERT_NEAR(y.at(t, base + i), is_first ? a * c - b * s : b * c + a * s, 1e-6);
              }
        }
}

TEST(Rope, BothLayoutsGiveTheSameBits) {
  // Interleaving the pairs of the input and using the interleaved layout permutes the output and changes no
  // bit.
  const int64_t heads = 2, head_dim = 40, pairs = 20;
  const TestMatrix x = TestMatrix::random(3, heads * head_dim, 5);
  TestMatrix z(3, heads * head_dim);
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < pairs; ++j)
        for (int64_t s = 0; s < 2; ++s)
          z.at(t, h * head_dim + 2 * j + s) = x.at(t, h * head_dim + s * pairs + j);
  const RopeTable table{inverse_frequencies(pairs, 10000), 1.0f, {}};
  const std::vector<int32_t> positions = {3, 44, 5000};
  for (IsaLevel isa : testable_levels()) {
    const TestMatrix a = run_rope(x, heads, table, RopeLayout::half_split, positions, isa);
    const TestMatrix b = run_rope(z, heads, table, RopeLayout::interleaved, positions, isa, 2);
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t j = 0; j < pairs; ++j)
          for (int64_t s = 0; s < 2; ++s)
            ASSERT_EQ(a.at(t, h * head_dim + s * pairs + j), b.at(t, h * head_dim + 2 * j + s));
  }
}

TEST(Rope, KeepsTheNormOfPairs) {
  const TestMatrix x = TestMatrix::random(2, 64, 9);
  const RopeTable table{inverse_frequencies(32, 10000), 1.0f, {}};
  const TestMatrix y = run_rope(x, 1, table, RopeLayout::half_split, {123, 77777}, best_isa_level());
  for (int64_t t = 0; t < 2; ++t)
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_NEAR(std::hypot(y.at(t, i), y.at(t, i + 32)), std::hypot(x.at(t, i), x.at(t, i + 32)), 1e-6);
}

}  // namespace
}  // namespace kvasir::ops
