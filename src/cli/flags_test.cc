#include "cli/flags.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace kvasir::cli {
namespace {

TEST(Flags, SizesHaveSuffixes) {
  EXPECT_EQ(parse_size("1024", "--memory"), 1024u);
  EXPECT_EQ(parse_size("2G", "--memory"), 2000000000u);
  EXPECT_EQ(parse_size("2GB", "--memory"), 2000000000u);
  EXPECT_EQ(parse_size("1.5Gi", "--memory"), 1610612736u);
  EXPECT_EQ(parse_size("512Mi", "--memory"), 536870912u);
  for (const char* bad : {"", "G", "-1G", "1X", "1e99", "nan"})
    EXPECT_THROW(parse_size(bad, "--memory"), Error) << bad;
}

TEST(Flags, TokenFilesAreLists) {
  const auto path = std::filesystem::temp_directory_path() / ("kvasir-tokens-" + std::to_string(::getpid()));
  auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_token_file(path.string());
  };
  EXPECT_EQ(read("[1, 2, 300000]"), (std::vector<int32_t>{1, 2, 300000}));
  for (const char* bad : {"{}", "[1.5]", "[-1]", "[\"a\"]", "[1", "[4294967296]"})
    EXPECT_THROW(read(bad), Error) << bad;
  std::filesystem::remove(path);
}

TEST(Flags, LoadFlagsAreChecked) {
  LoadFlags flags;
  flags.activations = "fp8";
  EXPECT_THROW(flags.options(), Error);
  flags.activations = "int8";
  flags.kv_page = 48;
  EXPECT_THROW(flags.options(), Error);
  flags.kv_page = 64;
  flags.isa = "sse9";
  EXPECT_THROW(flags.options(), Error);
  flags.isa = "generic";
  EXPECT_EQ(flags.options().load.isa, IsaLevel::generic);
}

TEST(Flags, SamplingDefaultsAndBias) {
  SamplingFlags flags;
  EXPECT_FLOAT_EQ(flags.options(0.7).temperature, 0.7f);
  flags.temperature = 0;
  EXPECT_TRUE(flags.options(0.7).greedy());
  flags.logit_bias = {"12=-3.5", "7=1"};
  EXPECT_EQ(flags.options(0.7).logit_bias, (std::map<int32_t, float>{{12, -3.5f}, {7, 1.0f}}));
  // Among them numbers that are read to their end and do not fit.
  for (const char* bad :
       {"12:3", "99999999999=1000", "-1=2", "=2", "5=", "5=1e40", "5=1e400", "5=nan", "5=inf"}) {
    flags.logit_bias = {bad};
    EXPECT_THROW(flags.options(0.7), Error) << bad;
  }
}

}  // namespace
}  // namespace kvasir::cli
