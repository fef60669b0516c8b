#include "chat/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "chat/jinja/expression_parser.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits) : ExpressionParser(std::move(tokens), limits) {}

  TemplateTree run() {
    tree_.body = parse_body({});
    return std::move(tree_);
  }

 private:
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
