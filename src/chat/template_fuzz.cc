// libFuzzer target: a template, and the bytes after a NUL as the variables' JSON. Whatever the bytes are,
// parsing and rendering must end, with text or with an error, within small limits.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "chat/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  Json variables = {
      {"messages",
       Json::array({{{"role", "user"}, {"content", "Hi é"}},
                    {{"role", "assistant"},
                     {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}}}})},
      {"add_generation_prompt", true},
      {"tools", nullptr},
      {"xs", {3, 1, 2}},
      {"d", {{"a", 1}, {"b", {1.5, nullptr, "x"}}}},
      {"s", "Hello <World>"},
      {"n", 7}};
  if (split != std::string_view::npos) {
    const Json given = Json::parse(input.substr(split + 1), nullptr, false);
    if (given.is_object()) variables.update(given);
  }
  kvasir::jinja::Limits limits;
  limits.steps = 200'000;
  limits.loop_iterations = 50'000;
  limits.output_bytes = 1 << 20;
  limits.string_bytes = 1 << 20;
  limits.list_items = 100'000;
  limits.memory_bytes = 32 << 20;
  limits.integer_bits = 8192;
  limits.call_depth = 50;
  limits.time = std::chrono::milliseconds(1000);
  try {
    const auto parsed = kvasir::jinja::Template::parse(input.substr(0, split), limits);
    parsed.render(variables, 1735787045, limits);
  } catch (const kvasir::jinja::TemplateFailure&) {
  }
  return 0;
}
