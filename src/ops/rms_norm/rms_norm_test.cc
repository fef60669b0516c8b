#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

// y = x / sqrt(mean(x^2) + epsilon) * (gain + offset), in f64.
TestMatrix reference(const TestMatrix& x, int64_t vectors, double epsilon, double offset,
                     const std::vector<std::vector<float>>& gains) {
  TestMatrix y(x.rows, x.cols);
  const int64_t width = x.cols / vectors;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t v = 0; v < vectors; ++v) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += std::pow(static_cast<double>(x.at(r, v * width + i)), 2);
      const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + epsilon);
      for (int64_t i = 0; i < width; ++i) {
        const auto& gain = gains[static_cast<size_t>(v)];
        const double g = gain.empty() ? 1.0 : gain[static_cast<size_t>(i)] + offset;
        y.at(r, v * width + i) = static_cast<float>(x.at(r, v * width + i) * scale * g);
      }
    }
  return y;
}

void expect_near(const TestMatrix& got, const TestMatrix& want, float tolerance) {
  ASSERT_EQ(got.values.size(), want.values.size());
  for (size_t i = 0; i < got.values.size(); ++i)
    ASSERT_NEAR(got.values[i], want.values[i], tolerance * (1 + std::abs(want.values[i]))) << "element " << i;
}

TEST(RmsNorm, ByHand) {
  // mean(9 + 16) / 2 = 12.5; 1 / sqrt(12.5) = 0.28284271
  TestMatrix x(1, 2);
  x.values = {3, 4};
  const std::vector<float> gain(16, 2.0f);
  TestProgram program({&x}, [&](auto& builder, auto& in) {
    return rms_norm(builder, in[0], {1, 0.0f, 0.0f, {{1, gain.data()}}}, IsaLevel::generic);
  });
  const TestMatrix y = program.run_and_take();
  EXPECT_NEAR(y.values[0], 3 * 0.28284271f * 2, 1e-6);
  EXPECT_NEAR(y.values[1], 4 * 0.28284271f * 2, 1e-6);
}

TEST(RmsNorm, WholeRowAllGainsAllWidths) {
  for (IsaLevel isa : testable_levels())
    for (int64_t width : {1, 2, 15, 16, 17, 24, 63, 64, 65, 100, 576, 640, 1000, 4096}) {
      const TestMatrix x = TestMatrix::random(5, width, static_cast<uint32_t>(width), 3.0f);
      const TestMatrix gain = TestMatrix::random(1, width + 16, 7);
      const std::vector<float> g(gain.values.begin(), gain.values.begin() + width);
      for (float offset : {0.0f, 1.0f}) {
        TestProgram program({&x}, [&](auto& b, auto& in) {
          return rms_norm(b, in[0], {1, 1e-5f, offset, {{1, gain.values.data()}}}, isa);
        });
        expect_near(program.run_and_take(), reference(x, 1, 1e-5, offset, {g}), 2e-6f);
      }
      TestProgram plain({&x}, [&](auto& b, auto& in) {
        return rms_norm(b, in[0], {1, 1e-6f, 0.0f, {}}, isa);
      });
      expect_near(plain.run_and_take(), reference(x, 1, 1e-6, 0, {{}}), 2e-6f);
    }
}

TEST(RmsNorm, HeadsWithGainsOfTheirOwn) {
  const int64_t heads = 5, kv_heads = 2, head_dim = 24;
  const TestMatrix x = TestMatrix::random(7, (heads + kv_heads) * head_dim, 3);
  const TestMatrix q = TestMatrix::random(1, head_dim + 16, 4), k = TestMatrix::random(1, head_dim + 16, 5);
  std::vector<std::vector<float>> gains(static_cast<size_t>(heads),
                                        {q.values.begin(), q.values.begin() + head_dim});
  gains.resize(static_cast<size_t>(heads + kv_heads), {k.values.begin(), k.values.begin() + head_dim});
  for (IsaLevel isa : testable_levels()) {
    TestProgram program({&x}, [&](auto& b, auto& in) {
      return rms_norm(
          b, in[0], {heads + kv_heads, 1e-6f, 1.0f, {{heads, q.values.data()}, {kv_heads, k.values.data()}}},
          isa);
    });
    expect_near(program.run_and_take(), reference(x, heads + kv_heads, 1e-6, 1.0, gains), 2e-6f);
  }
}

TEST(RmsNorm, BitsDoNotDependOnRowsOrThreads) {
  const TestMatrix x = TestMatrix::random(9, 3 * 40, 11);
  const TestMatrix gain = TestMatrix::random(1, 40 + 16, 12);
  for (IsaLevel isa : testable_levels()) {
    auto record = [&](auto& b, auto& in) {
      return rms_norm(b, in[0], {3, 1e-6f, 0.0f, {{3, gain.values.data()}}}, isa);
    };
    const TestMatrix all = TestProgram({&x}, record).run_and_take();
    EXPECT_EQ(TestProgram({&x}, record, 4).run_and_take().values, all.values);
    for (int64_t r = 0; r < x.rows; ++r) {
      const TestMatrix one = x.row_range(r, 1);
      EXPECT_EQ(TestProgram({&one}, record, 2).run_and_take().values, all.row_range(r, 1).values);
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
