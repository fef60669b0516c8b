#include "ops/experts/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/matmul/matmul_op.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

TEST(ExpertsRoute, ChoosesInOrderWithTiesToTheLowerIndex) {
  for (IsaLevel isa : testable_levels()) {
    // softmax of (ln 1, ln 4, ln 3, ln 4, ln 8) = (1, 4, 3, 4, 8) / 20
    const float logits[16] = {0.0f, std::log(4.0f), std::log(3.0f), std::log(4.0f), std::log(8.0f)};
    float scratch[16], weights[3];
    int32_t chosen[3];
    experts_kernels(isa).route(logits, 5, 3, false, scratch, chosen, weights);
    EXPECT_EQ(chosen[0], 4);
    EXPECT_EQ(chosen[1], 1);
    EXPECT_EQ(chosen[2], 3);
    EXPECT_NEAR(weights[0], 0.4, 1e-6);
    EXPECT_NEAR(weights[2], 0.2, 1e-6);
    experts_kernels(isa).route(logits, 5, 3, true, scratch, chosen, weights);
    EXPECT_NEAR(weights[0], 0.5, 1e-6);
    EXPECT_NEAR(weights[1], 0.25, 1e-6);
  }
}

struct Matrix {
  TestMatrix values;
  formats::WeightSource source;
  Matrix(int64_t rows, int64_t cols, uint32_t seed) : values(TestMatrix::random(rows, cols, seed, 0.3f)) {
    source.name = "w";
    source.rows = rows;
    source.cols = cols;
    source.data = reinterpret_cast<const std::byte*>(values.values.data());
    source.row_bytes = static_cast<size_t>(cols) * sizeof(float);
  }
};

TEST(Experts, MatchesTheFormulaAndItsOwnSmallerSteps) {
  const int64_t hidden = 40, inner = 24, count = 5, used = 2, tokens = 13;
  ThreadTeam team(1);
  std::vector<Matrix> gate, up, down;
  std::vector<PackedMatrix> packed;
  packed.reserve(static_cast<size_t>(2 * count));
  Arena arena(1 << 22, nullptr, MemoryCategory::weights);
  ExpertsOptions options;
  for (int64_t e = 0; e < count; ++e) {
    gate.emplace_back(inner, hidden, 10 + e);
    up.emplace_back(inner, hidden, 20 + e);
    down.emplace_back(hidden, inner, 30 + e);
  }
  for (int64_t e = 0; e < count; ++e) {
    const auto at = static_cast<size_t>(e);
    const PackPart parts[] = {{gate[at].source, {}, 0, 0}, {up[at].source, {}, 0, 0}};
    const size_t bytes = PackedMatrix::packed_bytes(parts, PartOrder::interleaved);
    packed.push_back(
        PackedMatrix::pack(parts, {arena.allocate(bytes), bytes}, team, {PartOrder::interleaved, {}}));
    const size_t down_bytes = PackedMatrix::packed_bytes(down[at].source);
    packed.push_back(PackedMatrix::pack(down[at].source, {arena.allocate(down_bytes), down_bytes}, team));
    options.experts.push_back({&packed[2 * at], &packed[2 * at + 1]});
  }
  options.used = used;
  options.normalize = true;

  const TestMatrix x = TestMatrix::random(tokens, hidden, 1),
                   logits = TestMatrix::random(tokens, count, 2, 2.0f);
  for (IsaLevel isa : testable_levels())
    for (ActivationMode mode : {ActivationMode::f32, ActivationMode::bf16}) {
      options.gate_up_mode = options.down_mode = mode;
      auto record = [&](auto& b, auto& in) {
        return experts(b, prepare_activations(b, in[0], mode, isa), in[1], options, in[0], isa);
      };
      const TestMatrix y = TestProgram({&x, &logits}, record).run_and_take();
      for (int64_t t = 0; t < tokens && mode == ActivationMode::f32; ++t) {
        std::vector<double> p;
        double sum = 0;
        for (int64_t e = 0; e < count; ++e) p.push_back(std::exp(static_cast<double>(logits.at(t, e))));
        std::vector<int64_t> order = {0, 1, 2, 3, 4};
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
          return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
        });
        for (int64_t k = 0; k < used; ++k) sum += p[static_cast<size_t>(order[static_cast<size_t>(k)])];
        for (int64_t i = 0; i < hidden; ++i) {
          double want = x.at(t, i);
          for (int64_t k = 0; k < used; ++k) {
            const auto e = static_cast<size_t>(order[static_cast<size_t>(k)]);
            double out = 0;
            for (int64_t j = 0; j < inner; ++j) {
              double g = 0, u = 0;
              for (int64_t c = 0; c < hidden; ++c) {
                g += static_cast<double>(gate[e].values.at(j, c)) * x.at(t, c);
                u += static_cast<double>(up[e].values.at(j, c)) * x.at(t, c);
              }
              out += down[e].values.at(i, j) * (g / (1 + std::exp(-g)) * u);
            }
            want += p[e] / sum * out;
          }
          ASSERT_NEAR(y.at(t, i), want, 2e-5 * (1 + std::abs(want)));
        }
      }
      EXPECT_EQ(TestProgram({&x, &logits}, record, 3).run_and_take().values, y.values);
      for (int64_t t : {0, 7, 12}) {
        const TestMatrix one = x.row_range(t, 1), its = logits.row_range(t, 1);
        EXPECT_EQ(TestProgram({&one, &its}, record, 2).run_and_take().values, y.row_range(t, 1).values);
      }
    }
}

}  // namespace
}  // namespace kvasir::ops
