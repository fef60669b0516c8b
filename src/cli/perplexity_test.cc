#include "cli/perplexity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace kvasir::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// numpy.random.RandomState(seed).permutation(count), numpy 2.4.6.
TEST(Perplexity, SamplesComeInNumpysOrder) {
  EXPECT_THAT(numpy_permutation(123u, 10), ElementsAre(4, 0, 7, 5, 8, 3, 1, 6, 9, 2));
  EXPECT_THAT(numpy_permutation(123u, 17),
              ElementsAre(4, 9, 16, 8, 5, 7, 0, 10, 11, 3, 1, 6, 15, 12, 2, 14, 13));
  EXPECT_THAT(numpy_permutation(0u, 5), ElementsAre(2, 0, 1, 3, 4));
  EXPECT_THAT(numpy_permutation(4294967295u, 8), ElementsAre(1, 7, 6, 0, 5, 4, 2, 3));
  EXPECT_THAT(numpy_permutation(123, 1), ElementsAre(0));
  EXPECT_TRUE(numpy_permutation(123, 0).empty());
}

TEST(Perplexity, Statistics) {
  // Of V equally likely tokens it is V.
  const PerplexityResult uniform = perplexity_of({std::log(7.0), std::log(7.0), std::log(7.0)});
  EXPECT_NEAR(uniform.perplexity, 7, 1e-12);
  EXPECT_NEAR(uniform.standard_error, 0, 1e-12);
  EXPECT_EQ(uniform.tokens, 3);
  // Mean 2, deviations -1, 0, 1: variance 2 / 2, over 3 tokens.
  const PerplexityResult three = perplexity_of({1, 2, 3});
  EXPECT_DOUBLE_EQ(three.mean_nll, 2);
  EXPECT_DOUBLE_EQ(three.perplexity, std::exp(2.0));
  EXPECT_DOUBLE_EQ(three.standard_error, std::exp(2.0) * std::sqrt(1.0 / 3));
  EXPECT_EQ(perplexity_of({1.5}).standard_error, 0);
}

TEST(Perplexity, Samples) {
  EXPECT_THAT(read_samples("a\nb\n", "x.txt"), ElementsAre("a\nb\n"));
  EXPECT_THAT(read_samples("{\"text\":\"a\\nb\"}\n\n{\"text\":\"\",\"more\":1}\r\n", "x.jsonl"),
              ElementsAre("a\nb", ""));
  const auto refusal = [](const char* text) -> std::string {
    try {
      read_samples(text, "x.jsonl");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("{\"text\":\"a\"}\n{\"text\":\n"), HasSubstr("x.jsonl:2: not valid JSON"));
  EXPECT_THAT(refusal("\n{\"txt\":\"a\"}"), HasSubstr("x.jsonl:2: expected a {\"text\": \"...\"} row"));
  EXPECT_THAT(refusal("{\"text\":3}"), HasSubstr("x.jsonl:1: expected a"));
  EXPECT_THAT(refusal("[]"), HasSubstr("x.jsonl:1: expected a"));
  EXPECT_THAT(refusal("\n"), HasSubstr("no sample"));
}

}  // namespace
}  // namespace kvasir::cli
