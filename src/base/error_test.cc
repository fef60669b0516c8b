#include "base/error.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Error, CarriesCodeMessageAndDetails) {
  const Error error(ErrorCode::corrupt_file, "x.gguf: bad", "more");
  EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
  EXPECT_STREQ(error.what(), "x.gguf: bad");
  EXPECT_EQ(error.details(), "more");
  EXPECT_EQ(name(error.code()), "corrupt_file");
}

TEST(Error, ThrowErrorFormats) {
  try {
    throw_error(ErrorCode::not_found, "{}: no tensor {}", "m", 3);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "m: no tensor 3");
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    return;
  }
  FAIL();
}

TEST(Error, CheckNamesTheCondition) {
  try {
    KVASIR_CHECK_MSG(1 + 1 == 3, "sum {}", 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("sum 2"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("at src/base/error_test.cc"), std::string::npos) << error.what();
    return;
  }
  FAIL();
}

}  // namespace
}  // namespace kvasir
