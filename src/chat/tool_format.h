// How a model writes tool calls and reasoning, recognised from its chat template. Parsers of model output are
// chosen by it.
#pragma once

#include <optional>
#include <string_view>

namespace kvasir::chat {

enum class ToolFormat {
  none,  // the template may show tools, but no known call syntax: output stays text
  minimax_m2,
  gemma4,
  function_gemma,
  longcat,
  glm,
  pythonic,
  qwen_xml,
  minicpm_xml,
  kimi_k2,
  mistral,
  deepseek_v3,
  deepseek_v3_1,
  deepseek_v3_2,
  harmony,
  hermes,
  llama3_json,
};

enum class ReasoningFormat {
  none,
  think,          // <think> ... </think>
  longcat_think,  // <longcat_think> ... </longcat_think>
  gemma_channel,  // <|channel>thought ... <channel|>
  harmony,        // the channel "analysis"
  mistral_think,  // [THINK] ... [/THINK]
};

std::string_view name(ToolFormat format);
std::optional<ToolFormat> tool_format_named(std::string_view name);
std::string_view name(ReasoningFormat format);

// The first format whose markers the template's source contains.
ToolFormat detect_tool_format(std::string_view template_source);
ReasoningFormat detect_reasoning_format(std::string_view template_source);

}  // namespace kvasir::chat
