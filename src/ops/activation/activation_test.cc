#include "ops/activation/activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

double exact(ActivationFunction function, const XieluParameters& p, double x) {
  switch (function) {
    case ActivationFunction::silu:
      return x / (1 + std::exp(-x));
    case ActivationFunction::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationFunction::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationFunction::relu2:
      return x > 0 ? x * x : 0;
    case ActivationFunction::xielu:
      if (x > 0) return p.alpha_p * x * x + p.beta * x;
      return (std::expm1(std::min(x, static_cast<double>(p.epsilon))) - x) * p.alpha_n + p.beta * x;
  }
  return 0;
}

constexpr ActivationFunction kAll[] = {ActivationFunction::silu, ActivationFunction::gelu_tanh,
                                       ActivationFunction::gelu_erf, ActivationFunction::relu2,
                                       ActivationFunction::xielu};
constexpr XieluParameters kXielu = {0.8f, 1.3f, 0.5f, -1e-6f};

TEST(Activation, EveryFunctionAgainstTheFormula) {
  TestMatrix x(1, 4001);
  for (int64_t i = 0; i < x.cols; ++i) x.at(0, i) = static_cast<float>(i - 2000) * 0.0101f;
  for (IsaLevel isa : testable_levels())
    for (ActivationFunction f : kAll) {
      TestProgram program(
          {&x}, [&](auto& b, auto& in) { return activation(b, f, in[0], std::nullopt, isa, kXielu); });
      const TestMatrix y = program.run_and_take();
      for (int64_t i = 0; i < x.cols; ++i) {
        const double want = exact(f, kXielu, x.at(0, i));
        // Half the input cancels in 1 + tanh and 1 + erf of large negative arguments: the error is absolute
        // there.
        ASSERT_NEAR(y.at(0, i), want,
                    5e-7 * std::abs(want) + 3e-7 * std::min(1.0, std::abs(static_cast<double>(x.at(0, i)))))
            << name(f) << " at " << x.at(0, i) << " on " << kvasir::name(isa);
      }
    }
}

TEST(Activation, Extremes) {
  TestMatrix x(1, 6);
  x.values = {0.0f, -0.0f, 1e30f, -1e30f, 88.0f, -200.0f};
  for (IsaLevel isa : testable_levels()) {
    TestProgram silu({&x}, [&](auto& b, auto& in) {
      return activation(b, ActivationFunction::silu, in[0], std::nullopt, isa);
    });
    const TestMatrix y = silu.run_and_take();
    EXPECT_EQ(y.values[0], 0.0f);
    EXPECT_EQ(y.values[2], 1e30f);
    EXPECT_EQ(y.values[3], 0.0f);
    EXPECT_EQ(y.values[4], 88.0f);
    EXPECT_EQ(y.values[5], 0.0f);
    TestProgram gelu({&x}, [&](auto& b, auto& in) {
      return activation(b, ActivationFunction::gelu_tanh, in[0], std::nullopt, isa);
    });
    const TestMatrix z = gelu.run_and_take();
    EXPECT_EQ(z.values[2], 1e30f);
    EXPECT_EQ(z.values[3], 0.0f);
  }
}

TEST(Activation, TimesUpFromColumnsOfOneValue) {
  for (IsaLevel isa : testable_levels())
    for (int64_t width : {1, 7, 96, 300, 1536}) {
      const TestMatrix both = TestMatrix::random(5, 2 * width, static_cast<uint32_t>(width));
      auto record = [&](auto& b, auto& in) {
        return activation(b, ActivationFunction::silu, b.columns(in[0], "gate", 0, {width}),
                          b.columns(in[0], "up", width, {width}), isa);
      };
      const TestMatrix y = TestProgram({&both}, record).run_and_take();
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t i = 0; i < width; ++i)
          ASSERT_NEAR(y.at(r, i), exact(ActivationFunction::silu, {}, both.at(r, i)) * both.at(r, width + i),
                      2e-6);
      EXPECT_EQ(TestProgram({&both}, record, 3).run_and_take().values, y.values);
      const TestMatrix one = both.row_range(3, 1);
      EXPECT_EQ(TestProgram({&one}, record, 2).run_and_take().values, y.row_range(3, 1).values);
    }
}

}  // namespace
}  // namespace kvasir::ops
