// Filters on text: case, trimming, replacing, joining, formatting.
#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

std::string justify_text(const Value& self, int64_t width, std::string_view fill,
                         int side);  // string_methods.cc
Value attribute_path_getter(Interpreter& interpreter, const Value& item, const std::vector<Value>& path,
                            const Value* otherwise);  // filters_sequence.cc
std::vector<Value> attribute_path(const Value& attribute);

namespace {

template <std::string (*Map)(std::string_view)>
Value mapped(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("filter", arguments, {}, 0);
  const Value text = soft_text(operand);
  return Value(Map(text.text()), text.is_markup());
}

// The filter, unlike the method, starts words after white space and - ( { [ < only. Pieces of markup are
// plain text.
std::string title_words(std::string_view text) {
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    const size_t first = i;
    const bool separator = separates(next_code_point(text, end));
    size_t after_first = end;
    while (end < text.size()) {
      size_t next = end;
      if (separates(next_code_point(text, next)) != separator) break;
      end = next;
    }
    out += to_upper(text.substr(first, after_first - first));
    out += to_lower(text.substr(after_first, end - after_first));
    i = end;
  }
  return out;
}

Value title(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("title", arguments, {}, 0);
  return Value(title_words(to_text(operand)));
}

Value trim(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("trim", arguments, {"chars"}, 0);
  const Value text = soft_text(operand);
  if (!p.has(0) || p[0].is_none()) return Value(strip_space(text.text()), text.is_markup());
  if (!p[0].is_string()) type_error("strip arg must be None or str");
  const std::string_view characters = p[0].text();
  return Value(strip(text.text(), &characters, true, true), text.is_markup());
}

Value replace(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("replace", arguments, {"old", "new", "count"}, 2);
  int64_t count = -1;
  if (p.has(2) && !p[2].is_none()) count = as_index(p[2], "replace()");
  if (!interpreter.autoescape())
    return Value(replace_text(to_text(operand), to_text(p[0]), to_text(p[1]), count));
  const bool escapes = p[0].is_markup() || (p[1].is_markup() && !operand.is_markup());
  const Value text = escapes ? escape(operand) : soft_text(operand);
  const Value from = soft_text(p[0]);
  const Value to = text.is_markup() ? escape(soft_text(p[1])) : soft_text(p[1]);
  return Value(replace_text(text.text(), from.text(), to.text(), count), text.is_markup());
}

Value join(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("join", arguments, {"d", "attribute"}, 0);
  const Value separator = p.get(0, Value(""));
  std::vector<Value> path;
  const bool by_attribute = p.has(1) && !p[1].is_none();
  if (by_attribute) path = attribute_path(p[1]);
  Iteration items(operand);
  std::vector<Value> parts;
  Value item;
  bool any_markup = false;
  while (items.next(item)) {
    if (by_attribute) item = attribute_path_getter(interpreter, item, path, nullptr);
    any_markup = any_markup || item.is_markup();
    parts.push_back(soft_text(item));
    if ((parts.size() & 0xFFF) == 0) count_work(0x10000);
  }
  // Under autoescape, markup anywhere makes markup of it all.
  const bool markup = interpreter.autoescape() && (separator.is_markup() || any_markup);
  const Value glue = markup ? escape(separator) : soft_text(separator);
  std::string out;
  bool first = true;
  for (const Value& part : parts) {
    if (!first) out += glue.text();
    first = false;
    out += markup ? escape(part).text() : part.text();
    check_string_size(out.size());
  }
  return Value(std::move(out), markup);
}

Value string(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("string", arguments, {}, 0);
  return soft_text(operand);
}

Value center(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("center", arguments, {"width"}, 0);
  const Value text = soft_text(operand);
  const Value width = p.get(0, Value(80));
  return Value(justify_text(text, as_index(width, "center()"), " ", 0), text.is_markup());
}

Value word_count(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("wordcount", arguments, {}, 0);
  const std::string text = to_text(operand);
  int64_t count = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const bool word = is_word(next_code_point(text, i));
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(count);
}

Value format(Interpreter&, const Value& operand, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty())
    fail(FailureKind::runtime_error, "can't handle positional and keyword arguments at the same time");
  const Value text = soft_text(operand);
  if (arguments.keywords.empty()) return format_percent(text, Value::tuple(arguments.positional));
  Value mapping = Value::dict();
  for (const auto& [key, value] : arguments.keywords) mapping.dictionary().set(Value(key), value);
  return format_percent(text, mapping);
}

Value default_value(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("default", arguments, {"default_value", "boolean"}, 0);
  if (operand.is_undefined() || (p.flag(1, false) && !truth(operand))) return p.get(0, Value(""));
  return operand;
}

}  // namespace

void add_text_filters(std::vector<FilterEntry>& table) {
  table.insert(table.end(), {
                                {"upper", false, mapped<to_upper>},
                                {"lower", false, mapped<to_lower>},
                                {"capitalize", false, mapped<capitalize>},
                                {"title", false, title},
                                {"trim", false, trim},
                                {"replace", false, replace},
                                {"join", false, join},
                                {"string", false, string},
                                {"center", false, center},
                                {"wordcount", false, word_count},
                                {"format", false, format},
                                {"default", false, default_value},
                                {"d", false, default_value},
                            });
}

}  // namespace kvasir::jinja
