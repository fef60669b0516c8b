// The largest logits, by whatever division and with or without the product before them, are those of a full
// sort.
#include "ops/candidates/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/linear/linear.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/weight_cases.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Candidate> sorted(const float* x, int64_t vocab, int most) {
  std::vector<Candidate> all;
  for (int64_t i = 0; i < vocab; ++i)
    if (x[i] == x[i]) all.push_back({x[i], static_cast<int32_t>(i)});
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
  all.resize(std::min(all.size(), static_cast<size_t>(most)));
  return all;
}

std::vector<Candidate> merged(const TestProgram& program, int64_t vocab, int64_t row, int most, bool& nan) {
  std::vector<Candidate> out;
  merge_candidates(CandidateSegments(vocab), program.row_data(row), most, out, nan);
  return out;
}

// Few different values, so that many are equal; -inf among them.
TestMatrix coarse_logits(int64_t rows, int64_t vocab, uint32_t seed) {
  TestMatrix x = TestMatrix::random(rows, vocab, seed, 3.0f);
  for (float& v : x.values) v = std::round(v * 4) / 4;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = r; i < vocab; i += 7) x.at(r, i) = -kInfinity;
  return x;
}

TEST(Candidates, SegmentsCoverEveryIdOnceInWholeBlocks) {
  for (int64_t vocab : {1, 31, 32, 33, 2047, 2048, 2049, 49152, 151936, 262144, 262145}) {
    const CandidateSegments segments(vocab);
    EXPECT_EQ(segments.width % 32, 0) << vocab;
    EXPECT_LE(segments.count, 64) << vocab;
    EXPECT_GE(segments.count * segments.width, vocab);
    EXPECT_LT((segments.count - 1) * segments.width, vocab);
  }
}

TEST(Candidates, AreTheFirstOfAFullSort) {
  for (IsaLevel isa : testable_levels())
    for (int64_t vocab : {1, 15, 33, 1000, 5003})
      for (int most : {1, 2, 40, kMostCandidates})
        for (int threads : {1, 3}) {
          const TestMatrix x = coarse_logits(3, vocab, static_cast<uint32_t>(vocab));
          TestProgram program(
              {&x}, [&](auto& b, auto& in) { return candidates(b, in[0], isa); }, threads);
          program.step().candidates = most;
          program.run();
          for (int64_t r = 0; r < x.rows; ++r) {
            bool nan = true;
            EXPECT_EQ(merged(program, vocab, r, most, nan), sorted(x.values.data() + r * vocab, vocab, most))
                << name(isa) << " vocabulary " << vocab << " most " << most << " row " << r;
            EXPECT_FALSE(nan);
          }
        }
}

TEST(Candidates, TellOfALogitThatIsNotANumberWhereverItIs) {
  const int64_t vocab = 3000;
  for (IsaLevel isa : testable_levels())
    for (int64_t at : {0, 5, 63, 1500, 2999}) {
      TestMatrix x = TestMatrix::random(2, vocab, 3);
      x.at(1, at) = std::numeric_limits<float>::quiet_NaN();
      TestProgram program(
          {&x}, [&](auto& b, auto& in) { return candidates(b, in[0], isa); }, 2);
      program.step().candidates = 5;
      program.run();
      bool nan = true;
      merged(program, vocab, 0, 5, nan);
      EXPECT_FALSE(nan) << at;
      EXPECT_EQ(merged(program, vocab, 1, 5, nan), sorted(x.values.data() + vocab, vocab, 5)) << at;
      EXPECT_TRUE(nan) << name(isa) << " " << at;
    }
}

// A head of `vocab` rows over 64 columns, its logits and candidates; the output is one of the two.
struct Head {
  Head(int64_t rows, uint64_t seed) : vocab(rows) {
    ThreadTeam team(1);
    const RandomWeight source(formats::StorageFormat::q4_0, rows, kColumns, seed);
    weight = std::make_unique<PackedWeight>(source.source(), team);
  }
  static constexpr int64_t kColumns = 64;
  // joined: the number of rewrites made.
  TestProgram program(const TestMatrix& x, ActivationMode mode, IsaLevel isa, int threads, bool fuse,
                      bool logits) const {
    return TestProgram(
        {&x},
        [&](program::ProgramBuilder& b, auto& in) {
          LinearInput input;
          input.x = in[0];
          if (mode != ActivationMode::f32) input.prepared[mode] = prepare_activations(b, in[0], mode, isa);
          LinearPart part;
          part.weight = &weight->matrix;
          part.mode = mode;
          const program::ValueId y = linear(b, "logits", input, {part}, std::nullopt, isa);
          b.output("logits", y);
          const program::ValueId c = candidates(b, y, isa);
          b.output("candidates", c);
          EXPECT_EQ(fuse ? fuse_linear_candidates(b) : 1, 1);
          return logits ? y : c;
        },
        threads);
  }
  int64_t vocab;
  std::unique_ptr<PackedWeight> weight;
};

TEST(Candidates, JoinedToTheHeadAreThoseOfItsLogits) {
  for (const int64_t vocab : {40, 2500, 20011}) {
    const Head head(vocab, 5);
    for (const int64_t rows : {1, 3, 20, 131}) {
      if (rows > 3 && vocab > 2500) continue;
      const TestMatrix x = TestMatrix::random(rows, Head::kColumns, 9);
      for (IsaLevel isa : testable_levels())
        for (ActivationMode mode : {ActivationMode::f32, ActivationMode::int8, ActivationMode::int16}) {
          if (rows > 3 && mode == ActivationMode::f32) continue;
          const TestMatrix logits = head.program(x, mode, isa, 1, false, true).run_and_take();
          for (int threads : {1, 2}) {
            TestProgram joined = head.program(x, mode, isa, threads, true, false);
            for (int most : {1, 7}) {
              joined.step().candidates = most;
              joined.run();
              for (int64_t r = 0; r < rows; ++r) {
                bool nan = true;
                ASSERT_EQ(merged(joined, vocab, r, most, nan),
                          sorted(logits.values.data() + r * vocab, vocab, most))
                    << name(isa) << " " << name(mode) << " vocabulary " << vocab << " rows " << rows
                    << " row " << r;
                ASSERT_FALSE(nan);
              }
            }
          }
          // A step that wants whole rows gets them.
          EXPECT_EQ(head.program(x, mode, isa, 2, true, true).run_and_take().values, logits.values);
        }
    }
  }
}

TEST(Candidates, StayApartFromAHeadWhoseLogitsAreChanged) {
  const Head head(64, 1);
  const IsaLevel isa = IsaLevel::generic;
  program::ProgramBuilder b;
  LinearInput input;
  input.x = b.input("x", Dtype::f32, program::Axis::logits, {Head::kColumns});
  LinearPart part;
  part.weight = &head.weight->matrix;
  const program::ValueId y = linear(b, "logits", input, {part}, std::nullopt, isa);
  const program::ValueId rounded = prepare_activations(b, y, ActivationMode::bf16, isa);
  b.output("rounded", rounded);
  b.output("candidates", candidates(b, y, isa));
  EXPECT_EQ(fuse_linear_candidates(b), 0);
}

}  // namespace
}  // namespace kvasir::ops
