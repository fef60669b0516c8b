// The expressions of templates: the tokens they are made of, and the precedence of operators.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/lexer.h"

namespace kvasir::jinja {

class ExpressionParser {
 protected:
  using K = TokenKind;
  using X = ExpressionKind;

  ExpressionParser(std::vector<Token> tokens, const Limits& limits)
      : tokens_(std::move(tokens)), limits_(limits) {}

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
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.tree_depth)
        fail(FailureKind::limit, "the template is nested more than {} levels deep (limit)",
             parser_.limits_.tree_depth);
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
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

  // ---- targets and expressions
  void set_use(Expression& target, NameUse use);
  static std::string_view kind_name(const Expression& node);
  static bool assignable(const Expression& target);
  ExpressionPtr parse_name_target();
  ExpressionPtr parse_target(bool with_tuple, std::initializer_list<std::string_view> ends,
                             bool with_namespace);
  ExpressionPtr parse_tuple(bool with_conditional, std::initializer_list<std::string_view> ends,
                            bool parenthesised);
  bool at_tuple_end(std::initializer_list<std::string_view> ends) const;
  ExpressionPtr parse_tuple_of(const std::function<ExpressionPtr()>& parse,
                               std::initializer_list<std::string_view> ends, bool parenthesised);
  ExpressionPtr parse_expression(bool with_conditional = true);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr binary(Binary operation, ExpressionPtr left, ExpressionPtr right, int line);
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary(bool with_namespace);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filter_expression(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_subscribed();
  void parse_arguments(Expression& owner);
  ExpressionPtr parse_call(ExpressionPtr callee);
  std::string parse_dotted_name();
  // `| filter | filter ...`; with `inline_first`, the first filter has no pipe.
  ExpressionPtr parse_filters(ExpressionPtr operand, bool inline_first);
  ExpressionPtr parse_test(ExpressionPtr operand);

  TemplateTree tree_;

 private:
  std::vector<Token> tokens_;
  const Limits& limits_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace kvasir::jinja
