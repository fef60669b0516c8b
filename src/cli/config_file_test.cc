#include "cli/config_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/test_folder.h"

namespace kvasir::cli {
namespace {

TEST(ConfigFile, Values) {
  const std::vector<ConfigEntry> entries = parse_config(
      "\xEF\xBB\xBF# comment\n"
      "threads = 4   # another\r\n"
      "\n"
      "[chat]\n"
      "system = \"a # b\\n\\\"c\\\"\"\n"
      "path='C:\\x'\n"
      "quiet = true\n"
      "seed = 1_000\n"
      "temperature = -0.5e1\n"
      "stop = [\"a\", # one\n"
      "  'b',\n"
      "]\n"
      "empty = []\n"
      "[ eval.logits ]\n"
      "isa = 'avx2'",
      "test");
  ASSERT_EQ(entries.size(), 9u);
  EXPECT_EQ(entries[0].section, "");
  EXPECT_EQ(entries[0].key, "threads");
  EXPECT_EQ(entries[0].values, std::vector<std::string>{"4"});
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_EQ(entries[1].section, "chat");
  EXPECT_EQ(entries[1].values, std::vector<std::string>{"a # b\n\"c\""});
  EXPECT_EQ(entries[2].values, std::vector<std::string>{"C:\\x"});
  EXPECT_EQ(entries[3].values, std::vector<std::string>{"true"});
  EXPECT_EQ(entries[4].values, std::vector<std::string>{"1000"});
  EXPECT_EQ(entries[5].values, std::vector<std::string>{"-0.5e1"});
  EXPECT_EQ(entries[6].values, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(entries[6].is_list);
  EXPECT_TRUE(entries[7].values.empty());
  EXPECT_EQ(entries[8].section, "eval.logits");
  EXPECT_EQ(entries[8].line, 15);
}

TEST(ConfigFile, RefusedWithTheLine) {
  for (const char* text :
       {"\na", "\na =", "\na = b", "\na = \"x", "\na = 'x\n'", "\na = [1", "\na = [1 2]", "\na = 1 2", "\n[x",
        "\n[]", "\n= 1", "\na = 1\na = 2", "\na = \"\\q\"", "\n[[x]]", "\na.b = 1", "\na = {x = 1}"}) {
    try {
      (void)parse_config(text, "file.toml");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_EQ(std::string(error.what()).rfind("file.toml:", 0), 0u) << error.what();
    }
  }
}

TEST(ConfigFile, APipeIsRefusedAndNotWaitedFor) {
  const TestFolder folder("config");
  const std::filesystem::path pipe = folder.path() / "config.toml";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ::setenv("KVASIR_CONFIG", pipe.c_str(), 1);
  try {
    (void)read_config();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_EQ(error.what(), pipe.string() + ": is a named pipe, expected a regular file");
  }
  ::unsetenv("KVASIR_CONFIG");
}

}  // namespace
}  // namespace kvasir::cli
