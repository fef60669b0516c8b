#include "base/environment.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace kvasir {
namespace {

class EnvironmentTest : public testing::Test {
 protected:
  EnvironmentTest() : home_(environment("HOME")) {}
  ~EnvironmentTest() override {
    setenv("HOME", home_.c_str(), 1);
    unsetenv("KVASIR_TEST_FOLDER");
  }
  std::string home_;
};

TEST_F(EnvironmentTest, HomeIsTheVariableElseThePasswordDatabases) {
  setenv("HOME", "/some/where", 1);
  EXPECT_EQ(home_folder(), "/some/where");
  EXPECT_EQ(expand_home("~"), "/some/where");
  EXPECT_EQ(expand_home("~/x/y"), "/some/where/x/y");
  EXPECT_EQ(expand_home("~other/x"), "~other/x");
  EXPECT_EQ(expand_home("/x/~"), "/x/~");
  for (const bool set : {false, true}) {
    if (set)
      setenv("HOME", "", 1);
    else
      unsetenv("HOME");
    const passwd* entry = getpwuid(getuid());
    EXPECT_EQ(home_folder(), entry == nullptr ? "." : entry->pw_dir);
  }
}

TEST_F(EnvironmentTest, UserFolders) {
  setenv("HOME", "/some/where", 1);
  EXPECT_EQ(environment("KVASIR_TEST_FOLDER"), "");
  EXPECT_EQ(user_folder("KVASIR_TEST_FOLDER", ".local/state"), "/some/where/.local/state");
  setenv("KVASIR_TEST_FOLDER", "~/mine", 1);
  EXPECT_EQ(user_folder("KVASIR_TEST_FOLDER", ".local/state"), "/some/where/mine");
  setenv("KVASIR_TEST_FOLDER", "/elsewhere", 1);
  EXPECT_EQ(user_folder("KVASIR_TEST_FOLDER", ".local/state"), "/elsewhere");
}

}  // namespace
}  // namespace kvasir
