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

TEST(Command, TheProgramsNameMayHoldTheVerb) {
  EXPECT_EQ(verb_of_name("kvasir"), std::nullopt);
  EXPECT_EQ(verb_of_name("/opt/kvasir.d/bin/kvasir"), std::nullopt);
  EXPECT_EQ(verb_of_name("my-kvasir.chat"), std::nullopt);
  EXPECT_EQ(verb_of_name(""), std::nullopt);
  EXPECT_EQ(verb_of_name("kvasir.chat"), "chat");
  EXPECT_EQ(verb_of_name("../bin/kvasir.get"), "get");
  EXPECT_EQ(verb_of_name("kvasir."), "");
  CLI::App app("x");
  app.add_subcommand("get")->alias("pull");
  app.add_option_group("Loading");
  EXPECT_TRUE(is_command(app, "get"));
  EXPECT_TRUE(is_command(app, "pull"));
  EXPECT_FALSE(is_command(app, ""));  // the name of a group of options
  EXPECT_FALSE(is_command(app, "ge"));
}

}  // namespace
}  // namespace kvasir::cli
