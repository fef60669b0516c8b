#include "chat/tool_format.h"

#include <array>

namespace kvasir::chat {
namespace {

struct Entry {
  ToolFormat format;
  std::string_view name;
  // Each marker that is not empty has to occur.
  std::array<std::string_view, 2> markers;
};

// In the order of trial: a later format's markers may also occur in an earlier one's templates.
constexpr Entry kFormats[] = {
    {ToolFormat::minimax_m2, "minimax_m2", {"<minimax:tool_call>", ""}},
    {ToolFormat::gemma4, "gemma4", {"<|tool_call>", "<tool_call|>"}},
    {ToolFormat::function_gemma, "function_gemma", {"<start_function_call>", ""}},
    {ToolFormat::longcat, "longcat", {"<longcat_tool_call>", ""}},
    {ToolFormat::glm, "glm", {"<arg_key>", ""}},
    {ToolFormat::pythonic, "pythonic", {"<|tool_list_start|>", ""}},
    {ToolFormat::qwen_xml, "qwen_xml", {"<tool_call>", "<function="}},
    {ToolFormat::minicpm_xml, "minicpm_xml", {"<function name=", ""}},
    {ToolFormat::kimi_k2, "kimi_k2", {"<|tool_calls_section_begin|>", ""}},
    {ToolFormat::mistral, "mistral", {"[TOOL_CALLS]", ""}},
    // Version 3 writes the kind of the call before its name.
    {ToolFormat::deepseek_v3, "deepseek_v3", {"<｜tool▁calls▁begin｜>", "function<｜tool▁sep｜>"}},
    {ToolFormat::deepseek_v3, "deepseek_v3", {"<｜tool▁calls▁begin｜>", "tool['type'] + '<｜tool▁sep｜>'"}},
    {ToolFormat::deepseek_v3_1, "deepseek_v3_1", {"<｜tool▁calls▁begin｜>", ""}},
    {ToolFormat::deepseek_v3_2, "deepseek_v3_2", {"｜DSML｜", ""}},
    {ToolFormat::harmony, "harmony", {"<|channel|>", "to=functions."}},
    {ToolFormat::hermes, "hermes", {"<tool_call>", "tool_call.name"}},
    {ToolFormat::llama3_json, "llama3_json", {"<|python_tag|>", ""}},
    {ToolFormat::llama3_json, "llama3_json", {"<|start_header_id|>", "\"parameters\""}},
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string_view name(ToolFormat format) {
  for (const Entry& entry : kFormats)
    if (entry.format == format) return entry.name;
  return "none";
}

std::optional<ToolFormat> tool_format_named(std::string_view name) {
  if (name == "none") return ToolFormat::none;
  for (const Entry& entry : kFormats)
    if (entry.name == name) return entry.format;
  return std::nullopt;
}

std::string_view name(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::none:
      return "none";
    case ReasoningFormat::think:
      return "think";
    case ReasoningFormat::longcat_think:
      return "longcat_think";
    case ReasoningFormat::gemma_channel:
      return "gemma_channel";
    case ReasoningFormat::harmony:
      return "harmony";
    case ReasoningFormat::mistral_think:
      return "mistral_think";
  }
  return "none";
}

ToolFormat detect_tool_format(std::string_view template_source) {
  for (const Entry& entry : kFormats) {
    bool all = true;
    for (const std::string_view marker : entry.markers) all = all && contains(template_source, marker);
    if (all) return entry.format;
  }
  return ToolFormat::none;
}

ReasoningFormat detect_reasoning_format(std::string_view template_source) {
  if (contains(template_source, "<longcat_think>")) return ReasoningFormat::longcat_think;
  if (contains(template_source, "<|channel>")) return ReasoningFormat::gemma_channel;
  if (contains(template_source, "<|channel|>analysis")) return ReasoningFormat::harmony;
  if (contains(template_source, "[THINK]")) return ReasoningFormat::mistral_think;
  if (contains(template_source, "<think>") || contains(template_source, "</think>"))
    return ReasoningFormat::think;
  return ReasoningFormat::none;
}

}  // namespace kvasir::chat
