// A Jinja template in the dialect of chat templates: jinja2's, in the settings that transformers renders
// chats with.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"

namespace kvasir::jinja {

struct TemplateTree;

// What a template did wrong, with the line it did it on.
struct TemplateFailure {
  FailureKind kind;
  int line;
  std::string message;
};

// Half-open byte range of the rendered text.
struct TextSpan {
  size_t begin, end;
};

struct Rendered {
  std::string text;
  // The bodies of {% generation %} blocks, in order.
  std::vector<TextSpan> generation;
};

// Immutable after parsing; render() may run on several threads at once.
class Template {
 public:
  // Throws TemplateFailure.
  static Template parse(std::string_view source, const Limits& limits = {});

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Whether the template marks the assistant's text with {% generation %}.
  bool has_generation() const;
  // Names that the template takes from the variables it is given (or from the globals of the language).
  const std::set<std::string>& variables() const;

  // `variables` is an object; `now` is what strftime_now shows. Throws TemplateFailure.
  Rendered render(const nlohmann::ordered_json& variables, std::time_t now, const Limits& limits = {}) const;

 private:
  explicit Template(std::unique_ptr<TemplateTree> tree);
  std::unique_ptr<TemplateTree> tree_;
};

}  // namespace kvasir::jinja
