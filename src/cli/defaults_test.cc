#include "cli/defaults.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace kvasir::cli {
namespace {

// A command line as the verbs make theirs, with the file and the environment that a test sets.
class DefaultsTest : public testing::Test {
 protected:
  DefaultsTest() : path_(testing::TempDir() + "kvasir-config-" + std::to_string(::getpid()) + ".toml") {
    clear();
    setenv("KVASIR_CONFIG", path_.c_str(), 1);
    file("");
  }
  ~DefaultsTest() override {
    clear();
    unsetenv("KVASIR_CONFIG");
    std::remove(path_.c_str());
  }
  static void clear() {
    for (const char* name :
         {"KVASIR_TEMPERATURE", "KVASIR_MODEL", "KVASIR_KV", "KVASIR_QUIET", "KVASIR_STOP", "KVASIR_SYSTEM"})
      unsetenv(name);
  }
  void file(const std::string& text) { std::ofstream(path_) << text; }

  struct Result {
    std::string model, kv;
    double temperature = 1;
    int threads = 0;
    bool quiet = false, resume = false;
    std::vector<std::string> stop;
    std::string system, system_file;
    std::set<std::string> defaulted;
  };
  static Result parse(const std::vector<std::string>& words) {
    Result result;
    CLI::App app{"test", "kvasir"};
    app.require_subcommand(0, 1);
    CLI::App* chat = app.add_subcommand("chat", "");
    chat->add_option("MODEL", result.model, "")->required();
    CLI::Option_group* group = chat->add_option_group("Loading");
    group->add_option("--kv", result.kv, "");
    group->add_option("--threads,-t", result.threads, "")->check(CLI::PositiveNumber);
    chat->add_option("--temperature,--temp", result.temperature, "");
    chat->add_option("--stop", result.stop, "");
    chat->add_flag("--quiet", result.quiet, "");
    CLI::Option* system = chat->add_option("--system", result.system, "");
    CLI::Option* system_file = chat->add_option("--system-file", result.system_file, "")->excludes(system);
    chat->add_flag("--resume", result.resume, "")->needs(system_file);
    CLI::App* eval = app.add_subcommand("eval", "");
    CLI::App* logits = eval->add_subcommand("logits", "");
    logits->add_option("MODEL", result.model, "")->required();
    logits->add_option("--threads", result.threads, "");
    for (const CLI::Option* option : parse_with_defaults(app, words))
      result.defaulted.insert(option->get_name());
    return result;
  }
  static std::string error(const std::vector<std::string>& words) {
    try {
      (void)parse(words);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  std::string path_;
};

TEST_F(DefaultsTest, CommandLineThenEnvironmentThenFile) {
  EXPECT_EQ(parse({"chat", "m"}).temperature, 1);
  file("temperature = 0.25\n");
  EXPECT_EQ(parse({"chat", "m"}).temperature, 0.25);
  file("temperature = 0.25\n[chat]\ntemperature = 0.5\n");
  EXPECT_EQ(parse({"chat", "m"}).temperature, 0.5);
  setenv("KVASIR_TEMPERATURE", "0.75", 1);
  EXPECT_EQ(parse({"chat", "m"}).temperature, 0.75);
  EXPECT_EQ(parse({"chat", "m", "--temp", "2"}).temperature, 2);
  EXPECT_EQ(parse({"chat", "--temperature=2", "m"}).temperature, 2);
}

TEST_F(DefaultsTest, KindsOfFlags) {
  file("threads = 3\n[chat]\nquiet = true\nstop = [\"a\", \"b c\"]\nkv = \"f16\"\nmodel = \"smol\"\n");
  const Result result = parse({"chat"});
  EXPECT_EQ(result.model, "smol");
  EXPECT_TRUE(result.quiet);
  EXPECT_EQ(result.stop, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(result.kv, "f16");
  EXPECT_EQ(result.threads, 3);
  EXPECT_EQ(parse({"chat", "other", "--stop", "x"}).model, "other");
  EXPECT_EQ(parse({"chat", "other", "--stop", "x"}).stop, std::vector<std::string>{"x"});
  EXPECT_EQ(parse({"chat", "-t", "5", "--", "other"}).threads, 5);
  EXPECT_EQ(parse({"chat", "--", "other"}).threads, 3);
  EXPECT_EQ(parse({"eval", "logits", "m"}).threads, 3);
  file("[chat]\nquiet = false\n[eval.logits]\nthreads = 7\n");
  EXPECT_FALSE(parse({"chat", "m"}).quiet);
  EXPECT_EQ(parse({"eval", "logits", "m"}).threads, 7);
  setenv("KVASIR_MODEL", "env", 1);
  EXPECT_EQ(parse({"chat"}).model, "env");
  setenv("KVASIR_QUIET", "true", 1);
  EXPECT_TRUE(parse({"chat"}).quiet);
}

TEST_F(DefaultsTest, GiveWayToWhatTheyExclude) {
  file("[chat]\nsystem = \"from the file\"\n");
  EXPECT_EQ(parse({"chat", "m"}).system, "from the file");
  EXPECT_EQ(parse({"chat", "m", "--system-file", "f"}).system, "");
  EXPECT_EQ(parse({"chat", "m", "--system-file", "f"}).system_file, "f");
  // Of two defaults, the one of the higher place counts.
  file("system = \"above\"\n[chat]\nsystem-file = \"own\"\n");
  EXPECT_EQ(parse({"chat", "m"}).system, "");
  EXPECT_EQ(parse({"chat", "m"}).system_file, "own");
  setenv("KVASIR_SYSTEM", "environment", 1);
  EXPECT_EQ(parse({"chat", "m"}).system, "environment");
  EXPECT_EQ(parse({"chat", "m"}).system_file, "");
  // In one place, they contradict each other.
  clear();
  file("[chat]\nsystem = \"a\"\nsystem-file = \"b\"\n");
  EXPECT_NE(error({"chat", "m"}).find(path_), std::string::npos);
  // What needs a flag that is not set is left out; with it, it counts.
  file("[chat]\nresume = true\n");
  EXPECT_FALSE(parse({"chat", "m"}).resume);
  EXPECT_TRUE(parse({"chat", "m", "--system-file", "f"}).resume);
  file("[chat]\nresume = true\nsystem-file = \"own\"\n");
  EXPECT_TRUE(parse({"chat", "m"}).resume);
  EXPECT_FALSE(parse({"chat", "m", "--system", "x"}).resume);
}

TEST_F(DefaultsTest, WhatTheyHaveSetIsTold) {
  file("threads = 3\n[chat]\ntemperature = 0.5\nmodel = \"smol\"\n");
  EXPECT_EQ(parse({"chat", "--temperature", "1"}).defaulted, (std::set<std::string>{"MODEL", "--threads"}));
  EXPECT_EQ(parse({"chat", "m", "-t", "1", "--temp", "1"}).defaulted, std::set<std::string>{});
}

TEST_F(DefaultsTest, Refused) {
  file("temprature = 1\n");
  EXPECT_NE(error({"chat", "m"}).find("did you mean temperature"), std::string::npos) << error({"chat", "m"});
  file("[chat]\n\ntemprature = 1\n");
  EXPECT_NE(error({"chat", "m"}).find(":3: `kvasir chat` has no flag 'temprature': did you mean temperature"),
            std::string::npos)
      << error({"chat", "m"});
  file("[chta]\nthreads = 1\n");
  EXPECT_NE(error({"chat", "m"}).find("did you mean chat"), std::string::npos) << error({"chat", "m"});
  file("[eval]\nthreads = 1\n");
  EXPECT_NE(error({"chat", "m"}), "");
  file("[chat]\nhelp = true\n");
  EXPECT_NE(error({"chat", "m"}), "");
  file("threads = -1\n");
  EXPECT_NE(error({"chat", "m"}).find("a default, " + path_ + ":1: --threads"), std::string::npos)
      << error({"chat", "m"});
  // The one at fault, among others.
  file("temperature = 0.5\n\n[chat]\nthreads = 0\nstop = \"x\"\n");
  EXPECT_NE(error({"chat", "m"}).find("a default, " + path_ + ":4: --threads"), std::string::npos)
      << error({"chat", "m"});
  file("temperature = 0.5\n");
  setenv("KVASIR_TEMPERATURE", "hot", 1);
  EXPECT_NE(error({"chat", "m"}).find("a default, KVASIR_TEMPERATURE: "), std::string::npos)
      << error({"chat", "m"});
  unsetenv("KVASIR_TEMPERATURE");
  file("threads = [1, 2]\n");
  EXPECT_NE(error({"chat", "m"}).find("not a list"), std::string::npos) << error({"chat", "m"});
  file("");
  setenv("KVASIR_KV", "f16", 1);
  EXPECT_NE(error({"chat", "m"}).find("KVASIR_KV"), std::string::npos) << error({"chat", "m"});
  EXPECT_EQ(parse({"chat", "m", "--kv", "f32"}).kv, "f32");
  setenv("KVASIR_CONFIG", "/no/such/file", 1);
  EXPECT_NE(error({"chat", "m"}).find("/no/such/file"), std::string::npos);
}

TEST_F(DefaultsTest, Names) {
  EXPECT_EQ(environment_name("--kv-page"), "KVASIR_KV_PAGE");
  EXPECT_EQ(environment_name("temperature"), "KVASIR_TEMPERATURE");
  EXPECT_TRUE(changes_numerics("activations"));
  EXPECT_FALSE(changes_numerics("temperature"));
}

}  // namespace
}  // namespace kvasir::cli
