#include "cli/eval_rows.h"

#include <gtest/gtest.h>

namespace kvasir::cli {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

TEST(EvalRows, AWindowCountsTheBos) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
  EXPECT_EQ(cut_rows(ids, std::nullopt, 0), (Rows{{1, 2, 3, 4, 5}}));
  EXPECT_EQ(cut_rows(ids, 9, 0), (Rows{{9, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(cut_rows(ids, std::nullopt, 2), (Rows{{1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(cut_rows(ids, 9, 3), (Rows{{9, 1, 2}, {9, 3, 4}, {9, 5}}));
  EXPECT_EQ(cut_rows(ids, 9, 6), (Rows{{9, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(cut_rows({}, 9, 3), Rows{});
}

}  // namespace
}  // namespace kvasir::cli
