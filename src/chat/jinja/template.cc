#include "chat/jinja/template.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/resolver.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value text_value(const std::string& text) {
  if (!is_valid_utf8(text)) value_error("a text given to the template is not valid UTF-8");
  return Value(text);
}

Value to_value(const Json& json) {
  const DepthGuard guard;
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<int64_t>(number));
      return Value::integer(BigInteger::from_digits(std::to_string(number), 10));
    }
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return text_value(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(to_value(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Value dict = Value::dict();
      for (const auto& [key, item] : json.items()) dict.dictionary().set(text_value(key), to_value(item));
      return dict;
    }
    default:
      return Value();
  }
}

}  // namespace

Template::Template(std::unique_ptr<TemplateTree> tree) : tree_(std::move(tree)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source, const Limits& limits) {
  try {
    const Budget budget(limits);
    auto tree = std::make_unique<TemplateTree>(parse_template(source, limits));
    resolve(*tree);
    return Template(std::move(tree));
  } catch (const SyntaxFailure& failure) {
    throw TemplateFailure{FailureKind::syntax_error, failure.line, failure.message};
  } catch (const Failure& failure) {
    throw TemplateFailure{failure.kind, 1, failure.message};
  }
}

bool Template::has_generation() const {
  return tree_->has_generation;
}

const std::set<std::string>& Template::variables() const {
  return tree_->variables;
}

Rendered Template::render(const Json& variables, std::time_t now, const Limits& limits) const {
  int line = 1;
  try {
    const Budget budget(limits);
    std::unordered_map<std::string, Value> given;
    for (const auto& [key, value] : variables.items()) given.emplace(key, to_value(value));
    Interpreter interpreter(tree_.get(), std::move(given), now);
    Rendered out;
    try {
      out.text = interpreter.render();
    } catch (...) {
      line = interpreter.line();
      throw;
    }
    for (const ByteSpan& span : interpreter.generation_spans())
      out.generation.push_back({span.begin, span.end});
    return out;
  } catch (const Failure& failure) {
    throw TemplateFailure{failure.kind, line, failure.message};
  }
}

}  // namespace kvasir::jinja
