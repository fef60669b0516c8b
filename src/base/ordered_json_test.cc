#include "base/ordered_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvasir {
namespace {

using testing::HasSubstr;

std::string refusal(std::string_view text) {
  try {
    parse_ordered_json(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "accepted";
}

std::string nested(size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(OrderedJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_ordered_json(R"({"b":1,"a":[true,null]})", "x").dump(), R"({"b":1,"a":[true,null]})");
}

TEST(OrderedJson, SaysWhereItIsNotJson) {
  EXPECT_THAT(refusal("{\"a\": 1,\n\"b\" 2}"), HasSubstr("x.json: is not JSON (line 2, byte 13)"));
  EXPECT_THAT(refusal(""), HasSubstr("line 1, byte 0"));
  EXPECT_THAT(refusal("[1] x"), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("\"\\ud800\""), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("out of range"));
}

TEST(OrderedJson, BoundsNesting) {
  EXPECT_EQ(refusal(nested(64)), "accepted");
  EXPECT_THAT(refusal(nested(65)), HasSubstr("more than 64 levels"));
  EXPECT_THAT(refusal(nested(1000000)), HasSubstr("more than 64 levels"));
  EXPECT_THAT(refusal("{\"a\":" + nested(64) + "}"), HasSubstr("more than 64 levels"));
  EXPECT_THROW(find_ordered_json(nested(100000), "x"), Error);
  try {
    parse_ordered_json("[", "x", ErrorCode::corrupt_file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
  }
}

TEST(OrderedJson, FindsNothingInOtherText) {
  EXPECT_FALSE(find_ordered_json("hello", "x"));
  EXPECT_FALSE(find_ordered_json("", "x"));
  EXPECT_EQ(find_ordered_json("17", "x").value().get<int>(), 17);
}

}  // namespace
}  // namespace kvasir
