#include "cli/options.h"

#include <gtest/gtest.h>

namespace kvasir::cli {
namespace {

TEST(Options, NumbersAreWholeAndInRange) {
  EXPECT_EQ(parse_whole("--n", "010", 0, 100), 10);  // decimal, not octal
  EXPECT_EQ(parse_whole("--n", "-3", -5, 5), -3);
  EXPECT_EQ(parse_unsigned("--seed", "18446744073709551615"), UINT64_MAX);
  for (const char* bad :
       {"", " 1", "1 ", "1.5", "1e3", "0x10", "+1", "one", "101", "-1", "99999999999999999999"})
    EXPECT_THROW(parse_whole("--n", bad, 0, 100), CLI::ValidationError) << bad;
  for (const char* bad : {"-1", "18446744073709551616", "1.0"})
    EXPECT_THROW(parse_unsigned("--seed", bad), CLI::ValidationError) << bad;
  EXPECT_EQ(parse_number("--x", "1e-3", 0, 1), 1e-3);
  for (const char* bad : {"nan", "inf", "-inf", "1e999", "2", "-0.5", "0,5", ""})
    EXPECT_THROW(parse_number("--x", bad, 0, 1), CLI::ValidationError) << bad;
}

TEST(Options, AnErrorNamesFlagTextAndRange) {
  CLI::App app("x");
  int64_t n = 7;
  double x = 0;
  std::string mode = "a";
  std::vector<std::string> list;
  add_whole(app, "--number,-n", n, "A number", 1, 9);
  add_number(app, "--share", x, "A share", 0, 1);
  add_choice(app, "--mode", mode, {"a", "b"}, "A mode");
  add_list(app, "--item", list, "TEXT", "An item");
  auto message = [&](std::vector<std::string> words) -> std::string {
    std::reverse(words.begin(), words.end());
    try {
      app.parse(words);
    } catch (const CLI::Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message({"-n", "12"}), "--number: '12' is not a whole number from 1 to 9");
  EXPECT_EQ(message({"--share", "nan"}), "--share: 'nan' is not a number from 0 to 1");
  EXPECT_EQ(message({"--mode=c"}), "--mode: 'c' is not one of a|b");
  EXPECT_EQ(message({"-n", "3", "--mode", "b", "--item", "p", "--item=q"}), "");
  EXPECT_EQ(n, 3);
  EXPECT_EQ(mode, "b");
  EXPECT_EQ(list, (std::vector<std::string>{"p", "q"}));
}

}  // namespace
}  // namespace kvasir::cli
