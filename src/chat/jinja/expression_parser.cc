#include "chat/jinja/expression_parser.h"

#include <fmt/format.h>

namespace kvasir::jinja {

void ExpressionParser::set_use(Expression& target, NameUse use) {
  if (target.kind == X::name) target.use = use;
  if (target.kind == X::tuple)
    for (ExpressionPtr& child : target.children) set_use(*child, use);
}

std::string_view ExpressionParser::kind_name(const Expression& node) {
  switch (node.kind) {
    case X::constant:
      return "const";
    case X::list:
      return "list";
    case X::dict:
      return "dict";
    case X::tuple:
      return "tuple";
    case X::name:
      return "name";
    default:
      return "expression";
  }
}

bool ExpressionParser::assignable(const Expression& target) {
  switch (target.kind) {
    case X::namespace_target:
      return true;
    case X::name: {
      for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
        if (target.name == reserved) return false;
      return true;
    }
    case X::tuple:
      return std::all_of(target.children.begin(), target.children.end(),
                         [](const ExpressionPtr& child) { return assignable(*child); });
    default:
      return false;
  }
}

ExpressionPtr ExpressionParser::parse_name_target() {
  const Token& token = expect(K::name);
  ExpressionPtr target = make(X::name, token.line);
  target->use = NameUse::store;
  set_name(*target, token.text);
  if (!assignable(*target)) error("can't assign to 'name'", token.line);
  return target;
}

ExpressionPtr ExpressionParser::parse_target(bool with_tuple, std::initializer_list<std::string_view> ends,
                                             bool with_namespace) {
  ExpressionPtr target = with_tuple
                             ? parse_tuple_of([&] { return parse_primary(with_namespace); }, ends, false)
                             : parse_primary(with_namespace);
  set_use(*target, NameUse::store);
  if (!assignable(*target)) error(fmt::format("can't assign to '{}'", kind_name(*target)), target->line);
  return target;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional,
                                            std::initializer_list<std::string_view> ends,
                                            bool parenthesised) {
  return parse_tuple_of([&] { return parse_expression(with_conditional); }, ends, parenthesised);
}

bool ExpressionParser::at_tuple_end(std::initializer_list<std::string_view> ends) const {
  if (at(K::variable_end) || at(K::block_end) || at(K::right_paren)) return true;
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view name) { return at_name(name); });
}

ExpressionPtr ExpressionParser::parse_tuple_of(const std::function<ExpressionPtr()>& parse,
                                               std::initializer_list<std::string_view> ends,
                                               bool parenthesised) {
  int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect(K::comma);
    if (at_tuple_end(ends)) break;
    items.push_back(parse());
    if (!at(K::comma)) break;
    is_tuple = true;
    line = current().line;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parenthesised) error(fmt::format("Expected an expression, got '{}'", describe_token(current())));
  }
  ExpressionPtr tuple = make(X::tuple, line);
  for (ExpressionPtr& item : items) adopt(*tuple, std::move(item));
  return tuple;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_conditional) {
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr ExpressionParser::parse_conditional() {
  int line = current().line;
  ExpressionPtr left = parse_or();
  while (skip_name("if")) {
    ExpressionPtr node = make(X::conditional, line);
    adopt(*node, parse_or());
    adopt(*node, std::move(left));
    if (skip_name("else")) {
      const Nesting nesting(*this);
      adopt(*node, parse_conditional());
    }
    left = std::move(node);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_or() {
  int line = current().line;
  ExpressionPtr left = parse_and();
  while (skip_name("or")) {
    ExpressionPtr node = make(X::logical_or, line);
    adopt(*node, std::move(left));
    adopt(*node, parse_and());
    left = std::move(node);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  int line = current().line;
  ExpressionPtr left = parse_not();
  while (skip_name("and")) {
    ExpressionPtr node = make(X::logical_and, line);
    adopt(*node, std::move(left));
    adopt(*node, parse_not());
    left = std::move(node);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExpressionPtr node = make(X::logical_not, current().line);
  advance();
  adopt(*node, parse_not());
  return node;
}

ExpressionPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  ExpressionPtr node;
  while (true) {
    CompareOperator op{};
    switch (current().kind) {
      case K::equal:
        op = CompareOperator::equal;
        break;
      case K::not_equal:
        op = CompareOperator::not_equal;
        break;
      case K::less:
        op = CompareOperator::less;
        break;
      case K::less_equal:
        op = CompareOperator::less_equal;
        break;
      case K::greater:
        op = CompareOperator::greater;
        break;
      case K::greater_equal:
        op = CompareOperator::greater_equal;
        break;
      default:
        if (at_name("in")) {
          op = CompareOperator::in;
        } else if (at_name("not") && look().kind == K::name && look().text == "in") {
          op = CompareOperator::not_in;
          advance();
        } else {
          return node != nullptr ? std::move(node) : std::move(first);
        }
    }
    advance();
    if (node == nullptr) {
      node = make(X::compare, line);
      adopt(*node, std::move(first));
    }
    node->operators.push_back(op);
    adopt(*node, parse_sum());
  }
}

ExpressionPtr ExpressionParser::binary(Binary operation, ExpressionPtr left, ExpressionPtr right, int line) {
  ExpressionPtr node = make(X::binary, line);
  node->binary = operation;
  adopt(*node, std::move(left));
  adopt(*node, std::move(right));
  return node;
}

ExpressionPtr ExpressionParser::parse_sum() {
  int line = current().line;
  ExpressionPtr left = parse_concat();
  while (at(K::add) || at(K::subtract)) {
    const Binary operation = advance().kind == K::add ? Binary::add : Binary::subtract;
    left = binary(operation, std::move(left), parse_concat(), line);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExpressionPtr first = parse_product();
  if (!at(K::tilde)) return first;
  ExpressionPtr node = make(X::concat, line);
  adopt(*node, std::move(first));
  while (skip(K::tilde)) adopt(*node, parse_product());
  return node;
}

ExpressionPtr ExpressionParser::parse_product() {
  int line = current().line;
  ExpressionPtr left = parse_power();
  while (at(K::multiply) || at(K::divide) || at(K::floor_divide) || at(K::modulo)) {
    Binary operation = Binary::multiply;
    switch (advance().kind) {
      case K::divide:
        operation = Binary::divide;
        break;
      case K::floor_divide:
        operation = Binary::floor_divide;
        break;
      case K::modulo:
        operation = Binary::modulo;
        break;
      default:
        break;
    }
    left = binary(operation, std::move(left), parse_power(), line);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  int line = current().line;
  ExpressionPtr left = parse_unary(true);
  while (skip(K::power)) {
    left = binary(Binary::power, std::move(left), parse_unary(true), line);
    line = current().line;
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr node;
  const int line = current().line;
  if (at(K::subtract) || at(K::add)) {
    node = make(advance().kind == K::subtract ? X::negate : X::positive, line);
    adopt(*node, parse_unary(false));
  } else {
    node = parse_primary(false);
  }
  node = parse_postfix(std::move(node));
  if (with_filter) node = parse_filter_expression(std::move(node));
  return node;
}

ExpressionPtr ExpressionParser::parse_primary(bool with_namespace) {
  const Token& token = current();
  switch (token.kind) {
    case K::name: {
      advance();
      if (token.text == "true" || token.text == "True") return constant(Value(true), token.line);
      if (token.text == "false" || token.text == "False") return constant(Value(false), token.line);
      if (token.text == "none" || token.text == "None") return constant(Value(), token.line);
      ExpressionPtr node = make(X::name, token.line);
      set_name(*node, token.text);
      if (with_namespace && at(K::dot)) {
        advance();
        node->kind = X::namespace_target;
        ExpressionPtr attribute = constant(Value(expect(K::name).text), token.line);
        adopt(*node, std::move(attribute));
      }
      return node;
    }
    case K::string: {
      std::string text;
      while (at(K::string)) text += advance().text;
      return constant(Value(std::move(text)), token.line);
    }
    case K::integer:
    case K::floating:
      advance();
      return constant(token.number, token.line);
    case K::left_paren: {
      advance();
      ExpressionPtr node = parse_tuple(true, {}, true);
      expect(K::right_paren);
      return node;
    }
    case K::left_bracket:
      return parse_list();
    case K::left_brace:
      return parse_dict();
    default:
      error(fmt::format("unexpected '{}'", describe_token(token)), token.line);
  }
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr node = make(X::list, current().line);
  advance();
  while (!at(K::right_bracket)) {
    if (!node->children.empty()) expect(K::comma);
    if (at(K::right_bracket)) break;
    adopt(*node, parse_expression());
  }
  expect(K::right_bracket);
  return node;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr node = make(X::dict, current().line);
  advance();
  while (!at(K::right_brace)) {
    if (!node->children.empty()) expect(K::comma);
    if (at(K::right_brace)) break;
    adopt(*node, parse_expression());
    expect(K::colon);
    adopt(*node, parse_expression());
  }
  expect(K::right_brace);
  return node;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (at(K::dot) || at(K::left_bracket))
      node = parse_subscript(std::move(node));
    else if (at(K::left_paren))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr ExpressionParser::parse_filter_expression(ExpressionPtr node) {
  while (true) {
    if (at(K::pipe))
      node = parse_filters(std::move(node), false);
    else if (at_name("is"))
      node = parse_test(std::move(node));
    else if (at(K::left_paren))
      node = parse_call(std::move(node));
    else
      return node;
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  const Token& token = advance();
  if (token.kind == K::dot) {
    const Token& attribute = advance();
    if (attribute.kind == K::name) {
      ExpressionPtr node = make(X::get_attribute, token.line);
      set_name(*node, attribute.text);
      adopt(*node, std::move(object));
      return node;
    }
    if (attribute.kind != K::integer) error("expected name or number", attribute.line);
    ExpressionPtr node = make(X::get_item, token.line);
    adopt(*node, std::move(object));
    adopt(*node, constant(attribute.number, attribute.line));
    return node;
  }
  std::vector<ExpressionPtr> keys;
  while (!at(K::right_bracket)) {
    if (!keys.empty()) expect(K::comma);
    keys.push_back(parse_subscribed());
  }
  expect(K::right_bracket);
  for (const ExpressionPtr& key : keys)
    if (keys.size() > 1 && key->kind == X::slice_key)
      error("a slice cannot be one of several subscripts", token.line);
  if (keys.size() == 1 && keys[0]->kind == X::slice_key) {
    ExpressionPtr node = make(X::slice, token.line);
    adopt(*node, std::move(object));
    for (ExpressionPtr& bound : keys[0]->children) adopt(*node, std::move(bound));
    return node;
  }
  ExpressionPtr node = make(X::get_item, token.line);
  adopt(*node, std::move(object));
  if (keys.size() == 1) {
    adopt(*node, std::move(keys[0]));
  } else {
    ExpressionPtr tuple = make(X::tuple, token.line);
    for (ExpressionPtr& key : keys) adopt(*tuple, std::move(key));
    adopt(*node, std::move(tuple));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_subscribed() {
  const int line = current().line;
  ExpressionPtr start;
  if (!at(K::colon)) {
    start = parse_expression();
    if (!at(K::colon)) return start;
  }
  advance();
  ExpressionPtr node = make(X::slice_key, line);
  adopt(*node, std::move(start));
  const auto bound = [&]() -> ExpressionPtr {
    if (at(K::colon) || at(K::right_bracket) || at(K::comma)) return nullptr;
    return parse_expression();
  };
  adopt(*node, bound());
  if (skip(K::colon))
    adopt(*node, at(K::right_bracket) || at(K::comma) ? nullptr : parse_expression());
  else
    adopt(*node, nullptr);
  return node;
}

void ExpressionParser::parse_arguments(Expression& owner) {
  const int line = expect(K::left_paren).line;
  auto arguments = std::make_unique<CallArguments>();
  const auto ensure = [&](bool valid) {
    if (!valid) error("invalid syntax for function call expression", line);
  };
  const auto take = [&](ExpressionPtr value) {
    grow(owner, value->depth);
    return value;
  };
  bool comma = false;
  while (!at(K::right_paren)) {
    if (comma) {
      expect(K::comma);
      if (at(K::right_paren)) break;
    }
    if (at(K::multiply)) {
      ensure(arguments->positional_pack == nullptr && arguments->keyword_pack == nullptr);
      advance();
      arguments->positional_pack = take(parse_expression());
    } else if (at(K::power)) {
      ensure(arguments->keyword_pack == nullptr);
      advance();
      arguments->keyword_pack = take(parse_expression());
    } else if (at(K::name) && look().kind == K::assign) {
      ensure(arguments->keyword_pack == nullptr);
      const std::string key = advance().text;
      advance();
      for (const auto& [other, value] : arguments->keywords)
        if (other == key) error(fmt::format("keyword argument repeated: {}", key));
      arguments->keywords.emplace_back(key, take(parse_expression()));
    } else {
      ensure(arguments->positional_pack == nullptr && arguments->keyword_pack == nullptr &&
             arguments->keywords.empty());
      arguments->positional.push_back(take(parse_expression()));
    }
    comma = true;
  }
  expect(K::right_paren);
  owner.arguments = std::move(arguments);
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  ExpressionPtr node = make(X::call, current().line);
  adopt(*node, std::move(callee));
  parse_arguments(*node);
  return node;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect(K::name).text;
  while (skip(K::dot)) name += "." + expect(K::name).text;
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr operand, bool inline_first) {
  while (at(K::pipe) || inline_first) {
    if (!inline_first) advance();
    ExpressionPtr node = make(X::filter, current().line);
    node->name = parse_dotted_name();
    adopt(*node, std::move(operand));
    if (at(K::left_paren)) parse_arguments(*node);
    operand = std::move(node);
    inline_first = false;
  }
  return operand;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const int line = advance().line;
  const bool negated = skip_name("not");
  ExpressionPtr node = make(X::test, line);
  node->name = parse_dotted_name();
  adopt(*node, std::move(operand));
  if (at(K::left_paren)) {
    parse_arguments(*node);
  } else if ((at(K::name) || at(K::string) || at(K::integer) || at(K::floating) || at(K::left_bracket) ||
              at(K::left_brace)) &&
             !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) error("You cannot chain multiple tests with is");
    ExpressionPtr argument = parse_postfix(parse_primary(false));
    grow(*node, argument->depth);
    node->arguments = std::make_unique<CallArguments>();
    node->arguments->positional.push_back(std::move(argument));
  }
  if (!negated) return node;
  ExpressionPtr inverse = make(X::logical_not, line);
  adopt(*inverse, std::move(node));
  return inverse;
}

}  // namespace kvasir::jinja
