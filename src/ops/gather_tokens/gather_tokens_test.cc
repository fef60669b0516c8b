#include "ops/gather_tokens/gather_tokens.h"

#include <gtest/gtest.h>

#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

TEST(GatherTokens, CopiesTheWantedRows) {
  const TestMatrix x = TestMatrix::random(6, 37, 1);
  for (int threads : {1, 3}) {
    TestProgram program(
        {&x}, [](auto& b, auto& in) { return gather_tokens(b, in[0]); }, threads);
    const std::vector<int32_t> wanted = {1, 4, 5};
    program.step().logits = 3;
    program.step().logit_tokens = wanted;
    const TestMatrix y = program.run_and_take();
    ASSERT_EQ(y.rows, 3);
    EXPECT_EQ(program.program().cost(0, program.step()).bytes, 3 * 37 * 8);  // read and written
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(y.row_range(i, 1).values, x.row_range(wanted[static_cast<size_t>(i)], 1).values);
  }
}

TEST(ReorderHeads, TakesHeadsInTheGivenOrder) {
  TestMatrix x(1, 6);
  x.values = {0, 1, 10, 11, 20, 21};
  TestProgram program({&x}, [](auto& b, auto& in) { return reorder_heads(b, in[0], {2, 0, 1}); });
  EXPECT_EQ(program.run_and_take().values, (std::vector<float>{20, 21, 0, 1, 10, 11}));
}

}  // namespace
}  // namespace kvasir::ops
