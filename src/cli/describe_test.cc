// Help, man page and completions of a small command line: each tells what the parser knows.
#include "cli/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/options.h"

namespace kvasir::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class Describe : public testing::Test {
 protected:
  Describe() : app_("Does things", "prog") {
    app_.set_help_all_flag("--help-all", "More help");
    CLI::App* work = app_.add_subcommand("work", "Work [hard]: now")->alias("toil");
    add_model(*work, model_);
    add_choice(*work, "--mode,-m", mode_, {"fast", "slow"}, "How it's done");
    add_list(*work, "--item", items_, "TEXT", "A thing");
    add_text(*work, "--in", file_, kFileValue, "What to read");
    work->add_flag("--dry", dry_, "Only say it");
    minor({add_text(*work, "--rare", rare_, "TEXT", "Seldom needed")});
    add_whole(*work->add_option_group("Loading"), "--threads,-t", threads_, "Threads", 1);
    work->footer("Example: prog work x\n\nWhat only the long help tells.");
    CLI::App* tell = app_.add_subcommand("tell", "Tell")->group(kMinorGroup);
    CLI::App* story = tell->add_subcommand("story", "A story");
    add_text(*story, "--about", file_, "TEXT", "Whom");
  }
  CLI::App app_;
  std::string model_, mode_, file_, rare_;
  std::vector<std::string> items_;
  bool dry_ = false;
  int threads_ = 1;
};

TEST_F(Describe, TheParserIsReadOff) {
  const CommandDescription root = describe(app_);
  ASSERT_EQ(root.commands.size(), 2u);
  const CommandDescription& work = root.commands[0];
  EXPECT_EQ(work.words(), "prog work");
  EXPECT_EQ(work.aliases, std::vector<std::string>{"toil"});
  ASSERT_EQ(work.groups.size(), 2u);
  EXPECT_EQ(work.groups[1].title, "Loading");
  const std::vector<OptionDescription>& own = work.groups[0].options;
  EXPECT_TRUE(own[0].positional && own[0].required);
  EXPECT_EQ(own[0].value, kModelValue);
  EXPECT_EQ(own[1].names, (std::vector<std::string>{"-m", "--mode"}));
  EXPECT_EQ(own[1].choices, (std::vector<std::string>{"fast", "slow"}));
  EXPECT_TRUE(own[2].repeatable);
  EXPECT_FALSE(own[3].repeatable);
  EXPECT_EQ(own[4].value, "");  // a flag
  EXPECT_EQ(own.back().names, std::vector<std::string>{"--help-all"});
  EXPECT_EQ(work.groups[1].options.size(), 1u);  // without the help flags
  EXPECT_EQ(root.commands[1].commands[0].words(), "prog tell story");
}

TEST_F(Describe, HelpNamesSharedFlagsAndExplainsThemOnRequest) {
  const CommandDescription work = describe(app_).commands[0];
  const std::string brief = help_text(work, false), full = help_text(work, true);
  EXPECT_THAT(brief, HasSubstr("Usage: prog work (or toil) MODEL [OPTIONS]"));
  EXPECT_THAT(brief, HasSubstr("-m, --mode fast|slow"));
  EXPECT_THAT(brief, HasSubstr("Loading: --threads\n"));
  EXPECT_THAT(brief, Not(HasSubstr("-t, --threads N")));
  EXPECT_THAT(full, HasSubstr("-t, --threads N"));
  EXPECT_THAT(brief, HasSubstr("Example: prog work x\n"));
}

TEST_F(Describe, WhatIsMinorIsNamedInBriefAndExplainedOnRequest) {
  const CommandDescription root = describe(app_), work = root.commands[0];
  const std::string brief = help_text(work, false), full = help_text(work, true);
  EXPECT_THAT(brief, HasSubstr("More: --rare\n"));
  EXPECT_THAT(brief, Not(HasSubstr("Seldom needed")));
  EXPECT_THAT(full, HasSubstr("--rare TEXT             Seldom needed\n"));
  EXPECT_THAT(brief, Not(HasSubstr("long help")));
  EXPECT_THAT(full, HasSubstr("Example: prog work x\n\nWhat only the long help tells.\n"));
  EXPECT_THAT(help_text(root, false), HasSubstr("  work                    Work [hard]: now\nAlso: tell\n"));
  EXPECT_THAT(help_text(root, true), HasSubstr("  tell                    Tell\n"));
}

TEST_F(Describe, NamesTakeTwoLinesAtMostAndTheRestIsCounted) {
  CLI::App* work = app_.get_subcommand("work");
  // Title and --threads take 18 columns, a name and its space 13: 18 + 4 * 13 = 70, 14 + 4 * 13 + 11 = 77.
  for (char c = 'a'; c <= 'l'; ++c)
    add_text(*work->get_option_group("Loading"), std::string("--flag-") + c + "xxxx", rare_, "TEXT", "");
  EXPECT_THAT(help_text(describe(*work), false),
              HasSubstr("Loading: --threads --flag-axxxx --flag-bxxxx --flag-cxxxx --flag-dxxxx\n"
                        "  --flag-exxxx --flag-fxxxx --flag-gxxxx --flag-hxxxx --flag-ixxxx and 3 more\n"));
}

TEST_F(Describe, LinesAreWrappedAtSpaces) {
  EXPECT_EQ(wrap("aa bb cc", 2, 7), "aa bb\n  cc");
  EXPECT_EQ(wrap("aaaaaaaaaa b", 0, 4), "aaaaaaaaaa\nb");
}

TEST_F(Describe, TheManPageEscapesWhatRoffWouldRead) {
  const std::string page = man_page(describe(app_), "1.0");
  EXPECT_TRUE(page.starts_with(".TH "));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-mode\\fR \\fIfast|slow\\fR"));
  EXPECT_THAT(page, HasSubstr(".SS \"prog tell story"));
  EXPECT_THAT(page, HasSubstr(".SH \"LOADING\""));
}

TEST_F(Describe, CompletionsKnowTheValues) {
  const CommandDescription root = describe(app_);
  const std::string bash = completion_script(root, "bash", {"small"});
  EXPECT_THAT(bash, HasSubstr("'/toil') command='work' ;;"));
  EXPECT_THAT(bash, HasSubstr("'tell/story') command='tell story' ;;"));
  EXPECT_THAT(bash, HasSubstr("'work/-m'|'work/--mode') mapfile -t COMPREPLY < <(compgen -W 'fast slow'"));
  const std::string zsh = completion_script(root, "zsh", {"small"});
  EXPECT_TRUE(zsh.starts_with("#compdef "));
  EXPECT_THAT(zsh, HasSubstr("--mode=[How it'\\''s done]:fast|slow:(fast slow)"));
  EXPECT_THAT(zsh, HasSubstr("'work:Work [hard]: now'"));
  const std::string fish = completion_script(root, "fish", {"small"});
  EXPECT_THAT(fish, HasSubstr("-s m -l mode -d 'How it'\\''s done' -r -f -a 'fast slow'"));
  EXPECT_THROW(completion_script(root, "tcsh", {}), Error);
}

}  // namespace
}  // namespace kvasir::cli
