#include "formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "formats/json_scanner.h"

namespace kvasir::formats {
namespace {

using testing::HasSubstr;

std::string error_of(std::string_view text, int depth = 64) {
  try {
    parse_json(text, "config.json", depth);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
    EXPECT_THAT(error.what(), HasSubstr("config.json: invalid JSON: "));
    return error.what();
  }
  return "no error";
}

TEST(Json, Values) {
  const nlohmann::json value = parse_json(
      "\xEF\xBB\xBF {\"a\": [1, -2, 9223372036854775807, 18446744073709551615, -9223372036854775808, "
      "36893488147419103232],"
      "\"b\":{\"x\":null,\"y\":true,\"z\":false}, \"c\":\"\\u00e9\\ud83d\\ude00\\n\\/\\\"\\\\\", "
      "\"d\":[0.1,1e3,-0.0,1E-400,2.5e+1],"
      " \"e\":[], \"f\":{} , \"\":0}\n\t",
      "t");
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_TRUE(value["a"][0].is_number_integer());
  EXPECT_EQ(value["a"][2].get<int64_t>(), INT64_MAX);
  EXPECT_EQ(value["a"][3].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(value["a"][4].get<int64_t>(), INT64_MIN);
  EXPECT_TRUE(value["a"][5].is_number_float());
  EXPECT_EQ(value["a"][5].get<double>(), 0x1p65);
  EXPECT_TRUE(value["b"]["x"].is_null());
  EXPECT_EQ(value["b"]["y"], true);
  EXPECT_EQ(value["c"], "\u00e9\U0001F600\n/\"\\");
  EXPECT_EQ(value["d"][0].get<double>(), 0.1);
  EXPECT_EQ(value["d"][1].get<double>(), 1000.0);
  EXPECT_TRUE(std::signbit(value["d"][2].get<double>()));
  EXPECT_EQ(value["d"][3].get<double>(), 0.0);
  EXPECT_TRUE(value["e"].is_array() && value["e"].empty());
  EXPECT_TRUE(value["f"].is_object() && value["f"].empty());
  EXPECT_EQ(value[""], 0);
}

TEST(Json, NonFiniteNumbersAsPythonWritesThem) {
  const nlohmann::json value = parse_json(
      "{\"limits\":[0.0,Infinity,-Infinity,NaN],\"tagged\":{\"__float__\":\"Infinity\"},\"low\":{\"__float__"
      "\":\"-Infinity\"},"
      "\"nan\":{\"__float__\":\"NaN\"},\"other\":{\"__float__\":\"1\"},\"two\":{\"__float__\":\"NaN\",\"x\":"
      "1}}",
      "t");
  EXPECT_EQ(value["limits"][1].get<double>(), HUGE_VAL);
  EXPECT_EQ(value["limits"][2].get<double>(), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(value["limits"][3].get<double>()));
  EXPECT_EQ(value["tagged"].get<double>(), HUGE_VAL);
  EXPECT_EQ(value["low"].get<double>(), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(value["nan"].get<double>()));
  EXPECT_TRUE(value["other"].is_object());
  EXPECT_TRUE(value["two"].is_object());
}

TEST(Json, EveryErrorNamesItsReason) {
  const struct {
    std::string_view text;
    const char* message;
  } cases[] = {
      {"", "unexpected end"},
      {" ", "unexpected end"},
      {"{", "unexpected end"},
      {"[1", "unexpected end"},
      {"[1,", "unexpected end"},
      {"[1,]", "expected a value"},
      {"[,1]", "expected a value"},
      {"{\"a\":1,}", "expected a key"},
      {"{\"a\"}", "expected ':'"},
      {"{\"a\":}", "expected a value"},
      {"{\"a\":1 \"b\":2}", "expected ',' or '}'"},
      {"[1 2]", "expected ',' or ']'"},
      {"{a:1}", "expected a key in quotes"},
      {"{1:1}", "expected a key in quotes"},
      {"[1}", "expected ',' or ']'"},
      {"{\"a\":1]", "expected ',' or '}'"},
      {"1 2", "unexpected text after the value"},
      {"{} x", "unexpected text after the value"},
      {"01", "leading zero"},
      {"-01", "leading zero"},
      {"-", "invalid number"},
      {"1.", "invalid number"},
      {".5", "expected a value"},
      {"+1", "expected a value"},
      {"1e", "invalid number"},
      {"1e+", "invalid number"},
      {"1e999", "number out of range"},
      {"-1e999", "number out of range"},
      {"tru", "expected a value"},
      {"nul", "expected a value"},
      {"nan", "expected a value"},
      {"Nan", "expected a value"},
      {"-NaN", "expected a value"},
      {"Inf", "expected a value"},
      {"\"abc", "unterminated string"},
      {"\"a\nb\"", "control character"},
      {"\"\\x\"", "invalid escape"},
      {"\"\\", "invalid escape"},
      {"\"\\u12g4\"", "invalid \\u escape"},
      {"\"\\u12", "invalid \\u escape"},
      {"\"\\ud800\"", "lone surrogate"},
      {"\"\\ud800\\n\"", "lone surrogate"},
      {"\"\\ud800\\u0041\"", "lone surrogate"},
      {"\"\\udc00\"", "lone surrogate"},
      {"'a'", "expected a value"},
      {"\"\xC0\x80\"", "not UTF-8"},
      {"\"\xED\xA0\x80\"", "not UTF-8"},
      {"{\"k\":1,\"k\":2}", "duplicate key \"k\""},
      {"{\"k\":1,\"\\u006b\":2}", "duplicate key \"k\""},
      {"[1] \xEF\xBB\xBF", "unexpected text"},
      {std::string_view("[1]\0", 4), "unexpected text"},
      {"// c\n1", "expected a value"},
  };
  for (const auto& c : cases) EXPECT_THAT(error_of(c.text), HasSubstr(c.message)) << c.text;
  EXPECT_THAT(error_of("{\n \"a\": x}"), HasSubstr("at byte 8 (line 2)"));
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](int n) {
    return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']');
  };
  EXPECT_EQ(error_of(nested(64)), "no error");
  EXPECT_THAT(error_of(nested(65)), HasSubstr("nesting deeper than the limit of 64"));
  EXPECT_THAT(error_of(std::string(1000000, '[')), HasSubstr("nesting deeper"));
}

TEST(JsonScanner, StrictModeRefusesNonFiniteLiteralsAndSkipChecksEverything) {
  JsonScanner strict("[NaN]", "h");
  strict.begin_array();
  ASSERT_TRUE(strict.next_element());
  EXPECT_THROW(strict.number(), Error);

  JsonScanner good("{\"a\":[1,{\"b\":[]},\"x\"],\"c\":true}", "h");
  good.skip();
  good.finish();
  JsonScanner bad("{\"a\":[1,{\"b\":[}]}", "h");
  EXPECT_THROW(bad.skip(), Error);
}

TEST(JsonScanner, StringsWithoutEscapesAreViews) {
  const std::string text = "[\"plain\",\"es\\ncaped\"]";
  JsonScanner scanner(text, "h");
  scanner.begin_array();
  scanner.next_element();
  bool stable = false;
  const std::string_view view = scanner.string(&stable);
  EXPECT_TRUE(stable);
  EXPECT_EQ(view.data(), text.data() + 2);
  scanner.next_element();
  EXPECT_EQ(scanner.string(&stable), "es\ncaped");
  EXPECT_FALSE(stable);
  EXPECT_FALSE(scanner.next_element());
  scanner.finish();
}

}  // namespace
}  // namespace kvasir::formats
