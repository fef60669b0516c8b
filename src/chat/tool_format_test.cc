#include "chat/tool_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvasir::chat {
namespace {

std::string source_of(const std::string& name) {
  std::ifstream file(std::filesystem::path(KVASIR_TEST_DATA) / "chat" / "templates" / (name + ".jinja"));
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

TEST(ToolFormat, IsRecognisedFromTheTemplate) {
  struct {
    const char* file;
    ToolFormat tools;
    ReasoningFormat reasoning;
  } cases[] = {
      {"chatml", ToolFormat::none, ReasoningFormat::none},
      {"hermes_tools", ToolFormat::hermes, ReasoningFormat::think},
      {"xml_calls", ToolFormat::qwen_xml, ReasoningFormat::none},
      {"llama3", ToolFormat::llama3_json, ReasoningFormat::none},
      {"gemma3", ToolFormat::none, ReasoningFormat::none},
      {"gemma4", ToolFormat::gemma4, ReasoningFormat::gemma_channel},
      {"mistral", ToolFormat::mistral, ReasoningFormat::none},
      {"deepseek", ToolFormat::deepseek_v3_1, ReasoningFormat::think},
      {"glm", ToolFormat::glm, ReasoningFormat::think},
      {"harmony", ToolFormat::harmony, ReasoningFormat::harmony},
      {"kimi", ToolFormat::kimi_k2, ReasoningFormat::think},
      {"minicpm", ToolFormat::minicpm_xml, ReasoningFormat::think},
      {"lfm", ToolFormat::pythonic, ReasoningFormat::think},
  };
  for (const auto& c : cases) {
    const std::string source = source_of(c.file);
    ASSERT_FALSE(source.empty()) << c.file;
    EXPECT_EQ(name(detect_tool_format(source)), name(c.tools)) << c.file;
    EXPECT_EQ(name(detect_reasoning_format(source)), name(c.reasoning)) << c.file;
  }
  EXPECT_EQ(
      detect_tool_format("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'"),
      ToolFormat::deepseek_v3);
  EXPECT_EQ(detect_tool_format("<minimax:tool_call> <tool_call> tool_call.name"), ToolFormat::minimax_m2);
}

TEST(ToolFormat, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(ToolFormat::llama3_json); ++i) {
    const auto format = static_cast<ToolFormat>(i);
    EXPECT_EQ(tool_format_named(name(format)), format);
  }
  EXPECT_FALSE(tool_format_named("nope").has_value());
}

}  // namespace
}  // namespace kvasir::chat
