// Renders templates read from standard input, for comparison with jinja2
// (tools/oracles/chat_template_fuzz.py). One JSON object a line: {"t": template, "v": variables}. One a line
// out: {"r": text} or {"e": kind, "l": line, "m": message}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "chat/jinja/template.h"

int main() {
  using Json = nlohmann::ordered_json;
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json input = Json::parse(line);
    Json out;
    try {
      const auto parsed = kvasir::jinja::Template::parse(input["t"].get<std::string>());
      const auto rendered = parsed.render(input.value("v", Json::object()), 1735787045);
      out["r"] = rendered.text;
      for (const auto& span : rendered.generation) out["g"].push_back({span.begin, span.end});
    } catch (const kvasir::jinja::TemplateFailure& failure) {
      out["e"] = kvasir::jinja::name(failure.kind);
      out["l"] = failure.line;
      out["m"] = failure.message;
    }
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  }
  return 0;
}
