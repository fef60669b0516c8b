#include "cli/command.h"

#include <gtest/gtest.h>

namespace kvasir::cli {
namespace {

TEST(Command, NearestNamesAreSuggested) {
  CLI::App app("x");
  std::string a;
  int b = 0;
  app.add_option("--max-tokens,-n", b);
  app.add_option("--temperature,--temp", a);
  app.add_option_group("Loading")->add_option("--threads", b);
  app.add_subcommand("generate");
  app.add_subcommand("get");
  EXPECT_EQ(nearest_option(app, "--max-token"), "--max-tokens");
  EXPECT_EQ(nearest_option(app, "--temprature=3"), "--temperature");
  EXPECT_EQ(nearest_option(app, "--thread"), "--threads");  // in a group
  EXPECT_EQ(nearest_option(app, "--zzzzzzzzzzzzzzzzz"), "");
  EXPECT_EQ(nearest_command(app, "genrate"), "generate");
}

}  // namespace
}  // namespace kvasir::cli
