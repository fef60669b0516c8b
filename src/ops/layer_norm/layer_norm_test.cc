#include "ops/layer_norm/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

TestMatrix reference(const TestMatrix& x, int64_t vectors, double epsilon, double offset, const float* gain,
                     const float* bias, bool per_vector) {
  TestMatrix y(x.rows, x.cols);
  const int64_t width = x.cols / vectors;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t v = 0; v < vectors; ++v) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < width; ++i) mean += x.at(r, v * width + i);
      mean /= static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) variance += std::pow(x.at(r, v * width + i) - mean, 2);
      variance /= static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = per_vector ? v * width + i : i;
        double out = (x.at(r, v * width + i) - mean) / std::sqrt(variance + epsilon);
        if (gain != nullptr) out *= gain[at] + offset;
        if (bias != nullptr) out += bias[at];
        y.at(r, v * width + i) = static_cast<float>(out);
      }
    }
  return y;
}

void expect_near(const TestMatrix& got, const TestMatrix& want) {
  for (size_t i = 0; i < want.values.size(); ++i)
    ASSERT_NEAR(got.values[i], want.values[i], 4e-6f * (1 + std::abs(want.values[i]))) << "element " << i;
}

TEST(LayerNorm, ByHand) {
  // mean 2, variance 1: (1 - 2, 3 - 2) = (-1, 1)
  TestMatrix x(1, 2);
  x.values = {1, 3};
  TestProgram program({&x}, [&](auto& b, auto& in) {
    return layer_norm(b, in[0], {1, 0.0f, 0.0f, {}}, IsaLevel::generic);
  });
  EXPECT_EQ(program.run_and_take().values, (std::vector<float>{-1, 1}));
}

TEST(LayerNorm, AllWidthsAndForms) {
  for (IsaLevel isa : testable_levels())
    for (int64_t width : {2, 15, 16, 17, 24, 64, 65, 100, 577, 2048}) {
      TestMatrix x = TestMatrix::random(4, width, static_cast<uint32_t>(width));
      for (float& v : x.values) v += 5.0f;  // a mean far from 0
      const TestMatrix g = TestMatrix::random(1, width + 16, 1), b = TestMatrix::random(1, width + 16, 2);
      for (float offset : {0.0f, 1.0f}) {
        TestProgram program({&x}, [&](auto& builder, auto& in) {
          return layer_norm(builder, in[0],
                            {1, 1e-5f, offset, {{1, g.values.data(), b.values.data(), false}}}, isa);
        });
        expect_near(program.run_and_take(),
                    reference(x, 1, 1e-5, offset, g.values.data(), b.values.data(), false));
      }
      TestProgram gain_only({&x}, [&](auto& builder, auto& in) {
        return layer_norm(builder, in[0], {1, 1e-5f, 0.0f, {{1, g.values.data(), nullptr, false}}}, isa);
      });
      expect_near(gain_only.run_and_take(), reference(x, 1, 1e-5, 0, g.values.data(), nullptr, false));
    }
}

TEST(LayerNorm, OneGainAHead) {
  const TestMatrix x = TestMatrix::random(3, 4 * 24, 1);
  const TestMatrix g = TestMatrix::random(1, 4 * 24 + 16, 2);
  for (IsaLevel isa : testable_levels()) {
    auto record = [&](auto& b, auto& in) {
      return layer_norm(b, in[0], {4, 1e-5f, 0.0f, {{4, g.values.data(), nullptr, true}}}, isa);
    };
    const TestMatrix all = TestProgram({&x}, record).run_and_take();
    expect_near(all, reference(x, 4, 1e-5, 0, g.values.data(), nullptr, true));
    EXPECT_EQ(TestProgram({&x}, record, 3).run_and_take().values, all.values);
    const TestMatrix one = x.row_range(1, 1);
    EXPECT_EQ(TestProgram({&one}, record, 2).run_and_take().values, all.row_range(1, 1).values);
  }
}

}  // namespace
}  // namespace kvasir::ops
