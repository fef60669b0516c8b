#include "ops/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

TEST(Elementwise, AddScaleDivideBiasClampSoftcap) {
  for (IsaLevel isa : testable_levels())
    for (int64_t width : {1, 15, 16, 33, 576, 1000}) {
      const TestMatrix a = TestMatrix::random(4, width, 1, 20.0f), b = TestMatrix::random(4, width, 2);
      const TestMatrix bias = TestMatrix::random(1, width + 16, 3);
      auto run = [&](const std::vector<const TestMatrix*>& in, const TestProgram::Record& record) {
        const TestMatrix y = TestProgram(in, record).run_and_take();
        EXPECT_EQ(TestProgram(in, record, 3).run_and_take().values, y.values);
        return y;
      };
      const TestMatrix sum = run({&a, &b}, [&](auto& p, auto& in) { return add(p, in[0], in[1], isa); });
      const TestMatrix weighted =
          run({&a, &b}, [&](auto& p, auto& in) { return add(p, in[0], in[1], isa, 0.22f); });
      const TestMatrix scaled = run({&a}, [&](auto& p, auto& in) { return scale(p, in[0], 25.25f, isa); });
      const TestMatrix divided = run({&a}, [&](auto& p, auto& in) { return divide(p, in[0], 3.0f, isa); });
      const TestMatrix biased =
          run({&a}, [&](auto& p, auto& in) { return add_bias(p, in[0], bias.values.data(), isa); });
      const TestMatrix clamped =
          run({&a}, [&](auto& p, auto& in) { return clamp(p, in[0], -8.0f, 8.0f, isa); });
      const TestMatrix capped = run({&a}, [&](auto& p, auto& in) { return softcap(p, in[0], 30.0f, isa); });
      for (int64_t r = 0; r < 4; ++r)
        for (int64_t i = 0; i < width; ++i) {
          const float x = a.at(r, i);
          ASSERT_EQ(sum.at(r, i), x + b.at(r, i));
          ASSERT_NEAR(weighted.at(r, i), static_cast<double>(x) + static_cast<double>(0.22f) * b.at(r, i),
                      4e-6);
          ASSERT_EQ(scaled.at(r, i), x * 25.25f);
          ASSERT_EQ(divided.at(r, i), x / 3.0f);
          ASSERT_EQ(biased.at(r, i), x + bias.at(0, i));
          ASSERT_EQ(clamped.at(r, i), std::min(8.0f, std::max(-8.0f, x)));
          ASSERT_NEAR(capped.at(r, i), 30.0 * std::tanh(x / 30.0), 6e-6);
        }
    }
}

TEST(Elementwise, ScaleByPosition) {
  // 1 + 0.1 ln(1 + floor(p / 4)): p = 3 -> 1; p = 4 -> 1.0693147; p = 12 -> 1.1386294
  TestMatrix x(3, 2);
  x.values = {1, 2, 1, 2, 1, 2};
  const std::vector<int32_t> positions = {3, 4, 12};
  TestProgram program(
      {&x}, [&](auto& b, auto& in) { return scale_by_position(b, in[0], 0.1, 4, best_isa_level()); });
  program.step().rope_position = {positions, positions, positions};
  const TestMatrix y = program.run_and_take();
  EXPECT_EQ(y.at(0, 0), 1.0f);
  EXPECT_NEAR(y.at(1, 0), 1.0693147, 1e-6);
  EXPECT_NEAR(y.at(2, 1), 2 * 1.1386294, 1e-6);
}

}  // namespace
}  // namespace kvasir::ops
