#include "chat/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "chat/jinja/failure.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

using K = TokenKind;
using X = ExpressionKind;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits) : tokens_(std::move(tokens)), limits_(limits) {}

  TemplateTree run() {
    tree_.body = parse_body({});
    return std::move(tree_);
  }

 private:
  // ---- tokens
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  const Token& advance() {
    const Token& token = tokens_[position_];
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }
  bool at(K kind) const { return current().kind == kind; }
  bool at_name(std::string_view name) const { return current().kind == K::name && current().text == name; }
  bool skip(K kind) {
    if (!at(kind)) return false;
    advance();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    advance();
    return true;
  }
  [[noreturn]] void error(std::string message, int line) const {
    throw SyntaxFailure{line, std::move(message)};
  }
  [[noreturn]] void error(std::string message) const { error(std::move(message), current().line); }
  static std::string describe_token(const Token& token) {
    return token.kind == K::name ? token.text : std::string(describe(token.kind));
  }
  const Token& expect(K kind) {
    if (!at(kind)) expected(std::string(describe(kind)));
    return advance();
  }
  void expect_name(std::string_view name) {
    if (!at_name(name)) expected(std::string(name));
    advance();
  }
  [[noreturn]] void expected(const std::string& what) const {
    if (at(K::end)) error(fmt::format("unexpected end of template, expected '{}'.", what));
    error(fmt::format("expected token '{}', got '{}'", what, describe_token(current())));
  }

  // ---- nesting limits: `nesting_` bounds the parser's own recursion, Expression::depth that of the
  // interpreter.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.tree_depth)
        fail(FailureKind::limit, "the template is nested more than {} levels deep (limit)",
             parser_.limits_.tree_depth);
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  ExpressionPtr make(X kind, int line) { return std::make_unique<Expression>(kind, line); }
  void adopt(Expression& parent, ExpressionPtr child) {
    if (child != nullptr) grow(parent, child->depth);
    parent.children.push_back(std::move(child));
  }
  void grow(Expression& parent, int child_depth) {
    parent.depth = std::max(parent.depth, child_depth + 1);
    if (parent.depth > limits_.tree_depth)
      fail(FailureKind::limit, "an expression is nested more than {} levels deep (limit)",
           limits_.tree_depth);
  }
  Value immortal(Value value) {
    tree_.constants.adopt(value);
    return value;
  }
  ExpressionPtr constant(Value value, int line) {
    ExpressionPtr node = make(X::constant, line);
    node->value = immortal(std::move(value));
    return node;
  }
  void set_name(Expression& node, const std::string& name) {
    node.name = name;
    node.name_value = immortal(Value(name));
  }

  // ---- statements
  // Parses until one of the end tags; that tag's name is the current token then (the block is still open).
  Body parse_body(std::initializer_list<std::string_view> end_tags) {
    const Nesting nesting(*this);
    end_tags_.push_back(std::vector<std::string_view>(end_tags));
    Body body;
    StatementPtr output;
    const auto flush = [&] {
      if (output != nullptr) body.push_back(std::move(output));
    };
    while (!at(K::end)) {
      const int line = current().line;
      if (at(K::data)) {
        if (output == nullptr) output = std::make_unique<Statement>(StatementKind::output, line);
        ExpressionPtr data = make(X::template_data, line);
        data->name = advance().text;
        output->expressions.push_back(std::move(data));
      } else if (at(K::variable_begin)) {
        advance();
        if (output == nullptr) output = std::make_unique<Statement>(StatementKind::output, line);
        output->expressions.push_back(parse_tuple(true, {}, false));
        expect(K::variable_end);
      } else {
        flush();
        expect(K::block_begin);
        if (at(K::name) && std::find(end_tags.begin(), end_tags.end(), current().text) != end_tags.end()) {
          end_tags_.pop_back();
          return body;
        }
        body.push_back(parse_statement());
        expect(K::block_end);
      }
    }
    flush();
    if (end_tags.size() != 0) fail_tag({}, current().line);
    end_tags_.pop_back();
    return body;
  }

  // The body of a statement: an optional colon, the end of its tag, then statements up to the end tag.
  Body parse_block_body(std::initializer_list<std::string_view> end_tags) {
    skip(K::colon);
    expect(K::block_end);
    return parse_body(end_tags);
  }

  [[noreturn]] void fail_tag(std::string_view unknown, int line) const {
    std::string message = unknown.empty() ? "Unexpected end of template."
                                          : fmt::format("Encountered unknown tag '{}'.", unknown);
    std::string looking;
    if (!end_tags_.empty()) {
      for (const std::string_view tag : end_tags_.back()) {
        if (!looking.empty()) looking += " or ";
        looking += fmt::format("'{}'", tag);
      }
    }
    if (!looking.empty()) {
      const bool nested = std::any_of(end_tags_.begin(), end_tags_.end(), [&](const auto& tags) {
        return std::find(tags.begin(), tags.end(), unknown) != tags.end();
      });
      message += nested
                     ? fmt::format(" It closes an outer block, but the innermost one waits for {}.", looking)
                     : fmt::format(" Expected {}.", looking);
    }
    if (!open_tags_.empty()) message += fmt::format(" The innermost open block is '{}'.", open_tags_.back());
    error(std::move(message), line);
  }

  StatementPtr parse_statement() {
    if (!at(K::name)) error("tag name expected");
    const std::string tag = current().text;
    const int line = current().line;
    static const std::vector<std::pair<std::string_view, StatementPtr (Parser::*)()>> kTags = {
        {"for", &Parser::parse_for},
        {"if", &Parser::parse_if},
        {"block", &Parser::parse_named_block},
        {"print", &Parser::parse_print},
        {"macro", &Parser::parse_macro},
        {"set", &Parser::parse_set},
        {"with", &Parser::parse_with},
        {"autoescape", &Parser::parse_autoescape},
        {"call", &Parser::parse_call_block},
        {"filter", &Parser::parse_filter_block},
        {"break", &Parser::parse_break},
        {"continue", &Parser::parse_continue},
        {"generation", &Parser::parse_generation}};
    for (const std::string_view other : {"extends", "include", "import", "from"})
      if (tag == other) error(fmt::format("the tag '{}' is not supported in chat templates", tag), line);
    for (const auto& [name, parse] : kTags) {
      if (name != tag) continue;
      open_tags_.push_back(tag);
      advance();
      StatementPtr statement = (this->*parse)();
      statement->line = line;
      open_tags_.pop_back();
      return statement;
    }
    fail_tag(tag, line);
  }

  StatementPtr statement(StatementKind kind) { return std::make_unique<Statement>(kind, current().line); }

  StatementPtr parse_set() {
    StatementPtr node = statement(StatementKind::assign);
    node->target = parse_target(true, {}, true);
    if (skip(K::assign)) {
      node->value = parse_tuple(true, {}, false);
      return node;
    }
    node->kind = StatementKind::assign_block;
    node->value = parse_filters(nullptr, false);
    node->body = parse_block_body({"endset"});
    advance();
    return node;
  }

  StatementPtr parse_for() {
    StatementPtr node = statement(StatementKind::for_loop);
    node->target = parse_target(true, {"in"}, false);
    expect_name("in");
    node->value = parse_tuple(false, {"recursive"}, false);
    if (skip_name("if")) node->condition = parse_expression();
    node->recursive = skip_name("recursive");
    node->body = parse_block_body({"endfor", "else"});
    if (advance().text == "else") {
      node->otherwise = parse_block_body({"endfor"});
      advance();
    }
    return node;
  }

  StatementPtr parse_if() {
    StatementPtr node = statement(StatementKind::if_chain);
    while (true) {
      ExpressionPtr condition = parse_tuple(false, {}, false);
      Body body = parse_block_body({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      const std::string tag = advance().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        node->branches.emplace_back(nullptr, parse_block_body({"endif"}));
        advance();
      }
      return node;
    }
  }

  StatementPtr parse_with() {
    StatementPtr node = statement(StatementKind::with);
    while (!at(K::block_end)) {
      if (!node->assignments.empty()) expect(K::comma);
      ExpressionPtr target = parse_target(true, {}, false);
      set_use(*target, NameUse::parameter);
      expect(K::assign);
      node->assignments.emplace_back(std::move(target), parse_expression());
    }
    node->body = parse_block_body({"endwith"});
    advance();
    return node;
  }

  StatementPtr parse_autoescape() {
    StatementPtr node = statement(StatementKind::autoescape);
    node->value = parse_expression();
    node->body = parse_block_body({"endautoescape"});
    advance();
    return node;
  }

  StatementPtr parse_named_block() {
    StatementPtr node = statement(StatementKind::block);
    const int line = node->line;
    node->name = expect(K::name).text;
    node->scoped = skip_name("scoped");
    node->required = skip_name("required");
    if (at(K::subtract)) error("a block's name has to be an identifier: it may not contain a hyphen");
    node->body = parse_block_body({"endblock"});
    advance();
    if (node->required) {
      for (const StatementPtr& child : node->body) {
        bool blank = child->kind == StatementKind::output;
        for (const ExpressionPtr& part : child->expressions)
          blank = blank && part->kind == X::template_data && strip_space(part->name).empty();
        if (!blank) error("a required block may only hold comments or white space");
      }
    }
    skip_name(node->name);
    for (const auto& [name, definition] : tree_.blocks)
      if (name == node->name) error(fmt::format("block '{}' defined twice", node->name), line);
    auto definition = std::make_unique<BlockDefinition>();
    definition->statement = node.get();
    tree_.blocks.emplace_back(node->name, std::move(definition));
    return node;
  }

  StatementPtr parse_print() {
    StatementPtr node = statement(StatementKind::output);
    while (!at(K::block_end)) {
      if (!node->expressions.empty()) expect(K::comma);
      node->expressions.push_back(parse_expression());
    }
    return node;
  }

  void parse_signature(Macro& macro) {
    expect(K::left_paren);
    while (!at(K::right_paren)) {
      if (!macro.arguments.empty()) expect(K::comma);
      ExpressionPtr target = parse_name_target();
      target->use = NameUse::parameter;
      if (skip(K::assign))
        macro.defaults.push_back(parse_expression());
      else if (!macro.defaults.empty())
        error("non-default argument follows default argument");
      if (std::find(macro.arguments.begin(), macro.arguments.end(), target->name) != macro.arguments.end())
        error(fmt::format("duplicate argument '{}' in function definition", target->name));
      macro.arguments.push_back(target->name);
      macro.targets.push_back(std::move(target));
    }
    expect(K::right_paren);
  }

  StatementPtr parse_macro() {
    StatementPtr node = statement(StatementKind::macro);
    node->target = parse_name_target();
    node->macro = std::make_unique<Macro>();
    node->macro->name = node->target->name;
    parse_signature(*node->macro);
    node->body = parse_block_body({"endmacro"});
    advance();
    return node;
  }

  StatementPtr parse_call_block() {
    StatementPtr node = statement(StatementKind::call_block);
    const int line = node->line;
    node->macro = std::make_unique<Macro>();
    node->macro->anonymous = true;
    if (at(K::left_paren)) parse_signature(*node->macro);
    node->value = parse_expression();
    if (node->value->kind != X::call) error("expected call", line);
    node->body = parse_block_body({"endcall"});
    advance();
    return node;
  }

  StatementPtr parse_generation() {
    StatementPtr node = statement(StatementKind::call_block);
    node->generation = true;
    tree_.has_generation = true;
    node->macro = std::make_unique<Macro>();
    node->macro->anonymous = true;
    node->body = parse_block_body({"endgeneration"});
    advance();
    return node;
  }

  StatementPtr parse_filter_block() {
    StatementPtr node = statement(StatementKind::filter_block);
    node->value = parse_filters(nullptr, true);
    node->body = parse_block_body({"endfilter"});
    advance();
    return node;
  }

  StatementPtr parse_break() { return statement(StatementKind::break_loop); }
  StatementPtr parse_continue() { return statement(StatementKind::continue_loop); }

  // ---- assignment targets
  void set_use(Expression& target, NameUse use) {
    if (target.kind == X::name) target.use = use;
    if (target.kind == X::tuple)
      for (ExpressionPtr& child : target.children) set_use(*child, use);
  }

  static std::string_view kind_name(const Expression& node) {
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

  static bool assignable(const Expression& target) {
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

  ExpressionPtr parse_name_target() {
    const Token& token = expect(K::name);
    ExpressionPtr target = make(X::name, token.line);
    target->use = NameUse::store;
    set_name(*target, token.text);
    if (!assignable(*target)) error("can't assign to 'name'", token.line);
    return target;
  }

  ExpressionPtr parse_target(bool with_tuple, std::initializer_list<std::string_view> ends,
                             bool with_namespace) {
    ExpressionPtr target = with_tuple
                               ? parse_tuple_of([&] { return parse_primary(with_namespace); }, ends, false)
                               : parse_primary(with_namespace);
    set_use(*target, NameUse::store);
    if (!assignable(*target)) error(fmt::format("can't assign to '{}'", kind_name(*target)), target->line);
    return target;
  }

  // ---- expressions
  ExpressionPtr parse_tuple(bool with_conditional, std::initializer_list<std::string_view> ends,
                            bool parenthesised) {
    return parse_tuple_of([&] { return parse_expression(with_conditional); }, ends, parenthesised);
  }

  bool at_tuple_end(std::initializer_list<std::string_view> ends) const {
    if (at(K::variable_end) || at(K::block_end) || at(K::right_paren)) return true;
    return std::any_of(ends.begin(), ends.end(), [&](std::string_view name) { return at_name(name); });
  }

  ExpressionPtr parse_tuple_of(const std::function<ExpressionPtr()>& parse,
                               std::initializer_list<std::string_view> ends, bool parenthesised) {
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

  ExpressionPtr parse_expression(bool with_conditional = true) {
    return with_conditional ? parse_conditional() : parse_or();
  }

  ExpressionPtr parse_conditional() {
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

  ExpressionPtr parse_or() {
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

  ExpressionPtr parse_and() {
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

  ExpressionPtr parse_not() {
    if (!at_name("not")) return parse_compare();
    const Nesting nesting(*this);
    ExpressionPtr node = make(X::logical_not, current().line);
    advance();
    adopt(*node, parse_not());
    return node;
  }

  ExpressionPtr parse_compare() {
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

  ExpressionPtr binary(Binary operation, ExpressionPtr left, ExpressionPtr right, int line) {
    ExpressionPtr node = make(X::binary, line);
    node->binary = operation;
    adopt(*node, std::move(left));
    adopt(*node, std::move(right));
    return node;
  }

  ExpressionPtr parse_sum() {
    int line = current().line;
    ExpressionPtr left = parse_concat();
    while (at(K::add) || at(K::subtract)) {
      const Binary operation = advance().kind == K::add ? Binary::add : Binary::subtract;
      left = binary(operation, std::move(left), parse_concat(), line);
      line = current().line;
    }
    return left;
  }

  ExpressionPtr parse_concat() {
    const int line = current().line;
    ExpressionPtr first = parse_product();
    if (!at(K::tilde)) return first;
    ExpressionPtr node = make(X::concat, line);
    adopt(*node, std::move(first));
    while (skip(K::tilde)) adopt(*node, parse_product());
    return node;
  }

  ExpressionPtr parse_product() {
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

  ExpressionPtr parse_power() {
    int line = current().line;
    ExpressionPtr left = parse_unary(true);
    while (skip(K::power)) {
      left = binary(Binary::power, std::move(left), parse_unary(true), line);
      line = current().line;
    }
    return left;
  }

  ExpressionPtr parse_unary(bool with_filter) {
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

  ExpressionPtr parse_primary(bool with_namespace) {
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

  ExpressionPtr parse_list() {
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

  ExpressionPtr parse_dict() {
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

  ExpressionPtr parse_postfix(ExpressionPtr node) {
    while (true) {
      if (at(K::dot) || at(K::left_bracket))
        node = parse_subscript(std::move(node));
      else if (at(K::left_paren))
        node = parse_call(std::move(node));
      else
        return node;
    }
  }

  ExpressionPtr parse_filter_expression(ExpressionPtr node) {
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

  ExpressionPtr parse_subscript(ExpressionPtr object) {
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

  ExpressionPtr parse_subscribed() {
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

  void parse_arguments(Expression& owner) {
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

  ExpressionPtr parse_call(ExpressionPtr callee) {
    ExpressionPtr node = make(X::call, current().line);
    adopt(*node, std::move(callee));
    parse_arguments(*node);
    return node;
  }

  std::string parse_dotted_name() {
    std::string name = expect(K::name).text;
    while (skip(K::dot)) name += "." + expect(K::name).text;
    return name;
  }

  // `| filter | filter ...`; with `inline_first`, the first filter has no pipe.
  ExpressionPtr parse_filters(ExpressionPtr operand, bool inline_first) {
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

  ExpressionPtr parse_test(ExpressionPtr operand) {
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

  std::vector<Token> tokens_;
  const Limits& limits_;
  size_t position_ = 0;
  int nesting_ = 0;
  TemplateTree tree_;
  std::vector<std::vector<std::string_view>> end_tags_;
  std::vector<std::string> open_tags_;
};

}  // namespace

TemplateTree parse_template(std::string_view source, const Limits& limits) {
  if (source.size() > limits.source_bytes)
    fail(FailureKind::limit, "the template has {} bytes, more than {} (limit)", source.size(),
         limits.source_bytes);
  if (!is_valid_utf8(source)) throw SyntaxFailure{1, "the template is not valid UTF-8"};
  return Parser(tokenize(source), limits).run();
}

}  // namespace kvasir::jinja
