// Several parts in one pass give the bits of the products apart, however the work is shared.
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <deque>

#include "ops/matmul/matmul_op.h"
#include "ops/matmul/weight_cases.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

using formats::StorageFormat;
using program::ProgramBuilder;
using program::ValueId;

constexpr int64_t kCols = 256;

struct Weight {
  StorageFormat format;
  int64_t rows;
  ActivationMode mode;
};

std::vector<float> random_vector(int64_t size, uint32_t seed) {
  return TestMatrix::random(1, size, seed).values;
}

// q, k and v: matrices of their own, or packed into one where `stacked`.
class Parts {
 public:
  Parts(const std::vector<Weight>& weights, bool stacked, bool biased) {
    ThreadTeam team(1);
    uint32_t seed = 1;
    for (const Weight& w : weights) sources_.emplace_back(w.format, w.rows, kCols, seed++);
    std::vector<PackPart> parts;
    for (const RandomWeight& source : sources_) {
      apart_.emplace_back(source.source(), team);
      parts.push_back({source.source(), {}, 0, 0});
    }
    for (size_t i = 0; i < weights.size(); ++i)
      biases_.push_back(random_vector(weights[i].rows, 100 + static_cast<uint32_t>(i)));
    const auto part = [&](const PackedMatrix& matrix, ActivationMode mode, const std::vector<float>& bias) {
      LinearPart out;
      out.weight = &matrix;
      out.mode = mode;
      if (biased) out.bias = bias.data();
      return out;
    };
    for (size_t i = 0; i < weights.size(); ++i)
      separate.push_back(part(apart_[i].matrix, weights[i].mode, biases_[i]));
    together = separate;
    if (!stacked) return;
    memory_ = std::make_unique<AlignedBytes>(PackedMatrix::packed_bytes(parts));
    stack_ = PackedMatrix::pack(parts, memory_->span(), team);
    for (const std::vector<float>& bias : biases_)
      all_biases_.insert(all_biases_.end(), bias.begin(), bias.end());
    together = {part(stack_, weights.front().mode, all_biases_)};
  }

  std::vector<LinearPart> separate, together;

 private:
  std::deque<RandomWeight> sources_;
  std::deque<PackedWeight> apart_;
  std::deque<std::vector<float>> biases_;
  std::vector<float> all_biases_;
  std::unique_ptr<AlignedBytes> memory_;
  PackedMatrix stack_;
};

ValueId record(ProgramBuilder& b, ValueId x, const std::vector<LinearPart>& parts,
               std::optional<ValueId> residual, IsaLevel isa) {
  LinearInput input;
  input.x = x;
  for (const LinearPart& part : parts)
    if (part.mode != ActivationMode::f32 && !input.prepared.contains(part.mode))
      input.prepared[part.mode] = prepare_activations(b, x, part.mode, isa);
  return linear(b, "y", input, parts, residual, isa);
}

// One pass over all parts equals a pass a part, side by side.
void expect_equal(const Parts& parts, int64_t rows, bool residual, const std::string& what) {
  const TestMatrix x = TestMatrix::random(rows, kCols, 7);
  int64_t columns = 0;
  for (const LinearPart& part : parts.separate) columns += part.weight->rows();
  const TestMatrix r = TestMatrix::random(rows, columns, 8);
  for (IsaLevel isa : testable_levels()) {
    std::vector<float> want(static_cast<size_t>(rows * columns));
    int64_t first = 0;
    for (const LinearPart& part : parts.separate) {
      const int64_t width = part.weight->rows();
      TestMatrix own(rows, width);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < width; ++c) own.at(row, c) = r.at(row, first + c);
      const TestMatrix y =
          TestProgram({&x, &own}, [&](ProgramBuilder& b, auto& in) {
            return record(b, in[0], {part}, residual ? std::optional(in[1]) : std::nullopt, isa);
          }).run_and_take();
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < width; ++c)
          want[static_cast<size_t>(row * columns + first + c)] = y.at(row, c);
      first += width;
    }
    for (const int threads : {1, 2, 3}) {
      TestProgram program(
          {&x, &r},
          [&](ProgramBuilder& b, auto& in) {
            return record(b, in[0], parts.together, residual ? std::optional(in[1]) : std::nullopt, isa);
          },
          threads);
      ASSERT_EQ(program.run_and_take().values, want)
          << what << " " << name(isa) << " rows " << rows << " threads " << threads;
    }
  }
}

// Few columns are shared by their own rule, many piece by piece by demand: both sizes of q.
TEST(Linear, PartsInOnePassAreTheProductsApart) {
  using M = ActivationMode;
  for (const int64_t q : {48, 400})
    for (const std::vector<Weight>& weights : {std::vector<Weight>{{StorageFormat::q4_0, q, M::int8},
                                                                   {StorageFormat::q4_0, 40, M::int8},
                                                                   {StorageFormat::q8_0, 24, M::int8}},
                                               std::vector<Weight>{{StorageFormat::q4_k, q, M::int8},
                                                                   {StorageFormat::q6_k, 40, M::int16},
                                                                   {StorageFormat::bf16, 33, M::bf16}},
                                               std::vector<Weight>{{StorageFormat::f32, q, M::f32},
                                                                   {StorageFormat::q4_1, 16, M::f32},
                                                                   {StorageFormat::q5_0, 17, M::int8}}})
      for (const int64_t rows : {1, 3, 20}) {
        const Parts parts(weights, false, true);
        expect_equal(parts, rows, false, "apart");
        expect_equal(parts, rows, true, "apart, residual");
      }
}

TEST(Linear, AStackIsTheProductsApart) {
  for (const StorageFormat format : {StorageFormat::q4_0, StorageFormat::q4_k, StorageFormat::bf16})
    for (const ActivationMode mode :
         {ActivationMode::f32, ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16}) {
      const bool integers = mode == ActivationMode::int8 || mode == ActivationMode::int16;
      if (format == StorageFormat::bf16 && integers) continue;
      // Parts that end inside a panel too.
      const Parts parts({{format, 392, mode}, {format, 40, mode}, {format, 21, mode}}, true, true);
      for (const int64_t rows : {1, 7}) expect_equal(parts, rows, true, std::string(name(mode)));
    }
}

// Of an int16 product the first rows may read the codes of int8 alone. Pieces begin and end anywhere, also
// across that row.
TEST(Linear, CoarseRowsAreInt8sHoweverTheWorkIsShared) {
  ThreadTeam team(1);
  const int64_t out = 600;
  const RandomWeight source(StorageFormat::q4_0, out, kCols, 3);
  const PackedWeight packed(source.source(), team);
  for (const int64_t rows : {1, 5, 20}) {
    const TestMatrix x = TestMatrix::random(rows, kCols, 5);
    for (IsaLevel isa : testable_levels()) {
      const auto product = [&](ActivationMode mode, int64_t coarse_rows, int threads) {
        LinearPart part;
        part.weight = &packed.matrix;
        part.mode = mode;
        part.coarse_rows = coarse_rows;
        return TestProgram(
                   {&x},
                   [&](ProgramBuilder& b, auto& in) { return record(b, in[0], {part}, std::nullopt, isa); },
                   threads)
            .run_and_take();
      };
      const TestMatrix int8 = product(ActivationMode::int8, 0, 1),
                       int16 = product(ActivationMode::int16, 0, 1);
      EXPECT_NE(int8.values, int16.values);
      for (const int64_t coarse : {int64_t{16}, int64_t{304}, out})
        for (const int threads : {1, 2, 3}) {
          const TestMatrix y = product(ActivationMode::int16, coarse, threads);
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < out; ++c)
              ASSERT_EQ(y.at(r, c), (c < coarse ? int8 : int16).at(r, c))
                  << name(isa) << " row " << r << " column " << c << " of " << coarse << " coarse, "
                  << threads << " threads";
        }
    }
  }
}

TEST(Linear, CostsAreOfWeightsAndProducts) {
  const Parts parts(
      {{StorageFormat::q4_0, 48, ActivationMode::f32}, {StorageFormat::f32, 16, ActivationMode::f32}}, false,
      false);
  const TestMatrix x = TestMatrix::random(3, kCols, 1);
  TestProgram program({&x}, [&](ProgramBuilder& b, auto& in) {
    return record(b, in[0], parts.separate, std::nullopt, best_isa_level());
  });
  const program::OpCost cost = program.program().cost(0, program.step());
  EXPECT_EQ(cost.operations, 2.0 * 3 * (48 + 16) * kCols);
  EXPECT_EQ(cost.weight_bytes,
            static_cast<double>(parts.separate[0].weight->bytes() + parts.separate[1].weight->bytes()));
  EXPECT_EQ(cost.kv_bytes, 0);
}

}  // namespace
}  // namespace kvasir::ops
