// The lines of a batch, and the file that their answers go to.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "cli/batch_input.h"
#include "cli/batch_output.h"
#include "engine/rng.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

std::string message_of(std::string_view line) {
  try {
    parse_batch_line(line, "in.jsonl line 7", 6, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return {};
}

TEST(BatchInput, ALineOverridesTheCommandLine) {
  BatchDefaults defaults;
  defaults.sampling.temperature = 0.5f;
  defaults.sampling.seed = 9;
  defaults.stop = {"END"};
  const BatchLine plain = parse_batch_line(R"({"prompt": "Hi"})", "x", 3, defaults);
  EXPECT_EQ(plain.prompt, "Hi");
  EXPECT_EQ(plain.options.sampling.temperature, 0.5f);
  EXPECT_EQ(plain.options.sampling.seed, engine::sample_seed(9, 3));
  EXPECT_EQ(plain.options.stop, std::vector<std::string>{"END"});
  EXPECT_TRUE(plain.id.is_null());
  const BatchLine line = parse_batch_line(
      R"({"id": "q", "messages": [{"role": "user", "content": "x"}], "temperature": 0, "seed": 18446744073709551615,
          "stop": ["a", "b"], "max_tokens": 3, "top_k": 5, "logit_bias": {"12": -1.5}})",
      "x", 3, defaults);
  EXPECT_EQ(line.id, "q");
  EXPECT_EQ(line.messages.size(), 1u);
  EXPECT_TRUE(line.options.sampling.greedy());
  EXPECT_EQ(line.options.sampling.seed, UINT64_MAX);
  EXPECT_EQ(line.options.sampling.top_k, 5);
  EXPECT_EQ(line.options.sampling.logit_bias, (std::map<int32_t, float>{{12, -1.5f}}));
  EXPECT_EQ(line.options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(line.options.max_tokens, 3);
}

TEST(BatchInput, ABadLineIsRefusedByNumberAndKey) {
  const struct {
    const char* line;
    const char* says;
  } cases[] = {
      {"{", "is not JSON"},
      {"[1]", "is no JSON object"},
      {"{}", "either \"prompt\" or \"messages\""},
      {R"({"prompt": "a", "messages": [{}]})", "not both"},
      {R"({"prompt": "a", "promt": 1})", "unknown key \"promt\""},
      {R"({"prompt": "a", "prompt": "b"})", "occurs twice"},
      {R"({"prompt": 3})", "\"prompt\" is 3"},
      {R"({"prompt": "a", "max_tokens": -1})", "\"max_tokens\" is -1"},
      {R"({"prompt": "a", "max_tokens": 1e3})", "\"max_tokens\" is 1000.0"},
      {R"({"prompt": "a", "max_tokens": 99999999999999999999})", "\"max_tokens\""},
      {R"({"prompt": "a", "top_k": 4294967296})", "\"top_k\" is 4294967296"},
      {R"({"prompt": "a", "temperature": "hot"})", "\"temperature\""},
      {R"({"prompt": "a", "temperature": 1e999})", "is not JSON"},
      {R"({"prompt": "a", "temperature": -1})", "temperature"},
      {R"({"prompt": "a", "top_p": 1.5})", "top_p"},
      {R"({"prompt": "a", "seed": -1})", "\"seed\" is -1"},
      {R"({"prompt": "a", "stop": 3})", "\"stop\" is 3"},
      {R"({"prompt": "a", "stop": [3]})", "\"stop\""},
      {R"({"prompt": "a", "raw": 1})", "\"raw\" is 1"},
      {R"({"prompt": "a", "id": {}})", "\"id\" is {}"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "\"logit_bias\""},
      {R"({"prompt": "a", "min_tokens": 9, "max_tokens": 3})", "min_tokens 9"},
      {R"({"messages": []})", "\"messages\" is []"},
      {R"({"messages": [{}], "raw": true})", "chat template"},
  };
  const std::string deep = R"({"messages": )" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_NE(message_of(deep).find("64 levels"), std::string::npos);
  for (const auto& c : cases) {
    const std::string message = message_of(c.line);
    EXPECT_TRUE(message.starts_with("in.jsonl line 7: ")) << c.line << " -> " << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << c.line << " -> " << message;
  }
}

TEST(BatchInput, LinesAreNumberedAndBlankOnesSkipped) {
  const std::vector<LineSpan> lines = split_lines("a\r\n\n  \nb\nc");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].number, 1u);
  EXPECT_EQ(lines[1].number, 4u);
  EXPECT_EQ(lines[2].number, 5u);
  EXPECT_EQ(lines[2].text, "c");
  EXPECT_TRUE(split_lines("\n \n").empty());
}

class BatchOutputFile : public testing::Test {
 protected:
  BatchOutputFile() : path_(fs::temp_directory_path() / ("kvasir-batch-" + std::to_string(::getpid()))) {}
  ~BatchOutputFile() override { fs::remove(path_); }
  std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  fs::path path_;
};

TEST_F(BatchOutputFile, LinesComeOutInOrder) {
  BatchOutput output = BatchOutput::open(path_, false, false);
  output.put(2, "two\n");
  output.put(1, "one\n");
  EXPECT_EQ(content(), "");
  output.put(0, "zero\n");
  EXPECT_EQ(content(), "zero\none\ntwo\n");
  EXPECT_EQ(output.written(), 3u);
  EXPECT_THROW(BatchOutput::open(path_, true, false), Error);  // it is being written
}

TEST_F(BatchOutputFile, AResumedFileKeepsItsWholeLines) {
  write("zero\none\ntor");
  EXPECT_THROW(BatchOutput::open(path_, false, false), Error);
  {
    BatchOutput output = BatchOutput::open(path_, true, false);
    EXPECT_EQ(output.kept(), (std::vector<std::string>{"zero", "one"}));
    output.put(2, "two\n");
  }
  EXPECT_EQ(content(), "zero\none\ntwo\n");
  BatchOutput::open(path_, false, true);
  EXPECT_EQ(content(), "");
}

TEST_F(BatchOutputFile, TheInputIsNotReplaced) {
  write("questions");
  const fs::path link = path_.string() + ".link", hard = path_.string() + ".hard";
  fs::create_symlink(path_, link);
  fs::create_hard_link(path_, hard);
  for (const fs::path& output : {path_, link, hard, fs::path("/proc/self/cwd") / fs::relative(path_)})
    EXPECT_THROW(check_not_the_input(output, path_), Error) << output;
  EXPECT_THROW(check_not_the_input(path_, link), Error);
  fs::remove(link);
  fs::remove(hard);
  check_not_the_input(path_.string() + ".other", path_);
  check_not_the_input(path_, path_.string() + ".other");
  check_not_the_input("/dev/null", "/dev/null");
  EXPECT_EQ(content(), "questions");
}

TEST_F(BatchOutputFile, AFullDiskIsSaid) {
  ASSERT_TRUE(fs::exists("/dev/full"));
  BatchOutput output = BatchOutput::open("/dev/full", false, false);
  EXPECT_THROW(output.put(0, "x\n"), Error);
  EXPECT_THROW(BatchOutput::open("/", false, false), Error);
  EXPECT_THROW(BatchOutput::open("", true, false), Error);
}

}  // namespace
}  // namespace kvasir::cli
