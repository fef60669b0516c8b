#include "cli/kl_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace kvasir::cli {
namespace {

using Row = std::vector<float>;

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p) + 3));  // any offset
  return out;
}

TEST(KlStatistics, EqualsTheDefinitionByHand) {
  KlStatistics statistics;
  // KL((1/2, 1/4, 1/4) || (1/4, 1/2, 1/4)) = 1/2 ln 2 - 1/4 ln 2 = ln(2) / 4; the likeliest ids differ.
  statistics.add(logs({0.5, 0.25, 0.25}), logs({0.25, 0.5, 0.25}), 1);
  // Equal distributions, whatever their offsets.
  statistics.add(logs({0.7, 0.2, 0.1}), Row{std::log(0.7f), std::log(0.2f), std::log(0.1f)}, 0);
  const KlSummary s = statistics.summary();
  const double first = std::log(2.0) / 4;
  EXPECT_EQ(s.positions, 2);
  EXPECT_NEAR(s.mean, first / 2, 1e-7);
  EXPECT_NEAR(s.median, first / 2, 1e-7);
  EXPECT_NEAR(s.max, first, 1e-7);
  EXPECT_NEAR(s.p99, 0.99 * first, 1e-7);
  // Two values d and 0: variance d^2 / 2, of the mean d^2 / 4.
  EXPECT_NEAR(s.standard_error, first / 2, 1e-7);
  EXPECT_EQ(s.top1_agreement, 0.5);
  EXPECT_EQ(s.targets, 2);
  EXPECT_NEAR(s.reference_perplexity, 1 / std::sqrt(0.25 * 0.7), 1e-6);
  EXPECT_NEAR(s.perplexity, 1 / std::sqrt(0.5 * 0.7), 1e-6);
}

TEST(KlStatistics, ImpossibleTokensCountForNothing) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  KlStatistics statistics;
  statistics.add(Row{0.0f, kNever, 0.0f}, Row{0.0f, 0.0f, 0.0f}, -1);
  const KlSummary s = statistics.summary();
  EXPECT_NEAR(s.mean, std::log(1.5), 1e-12);  // 2 * 1/2 (ln 1/2 - ln 1/3)
  EXPECT_EQ(s.standard_error, 0);
  EXPECT_EQ(s.targets, 0);
  EXPECT_THROW(statistics.add(Row({NAN, 0.0f, 0.0f}), Row({0.0f, 0.0f, 0.0f}), -1), Error);
  EXPECT_THROW(statistics.add(Row({0.0f, 0.0f, 0.0f}), Row({INFINITY, 0.0f, 0.0f}), -1), Error);
}

}  // namespace
}  // namespace kvasir::cli
