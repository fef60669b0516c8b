#include "chat/jinja/symbols.h"

namespace kvasir::jinja {
namespace {

using X = ExpressionKind;
using S = StatementKind;

// Calls `visit` for every expression below (not into) `node`, in the reference's order.
template <typename Visit>
void for_each_child(const Expression& node, Visit&& visit) {
  for (const ExpressionPtr& child : node.children)
    if (child != nullptr) visit(*child);
  if (node.arguments == nullptr) return;
  for (const ExpressionPtr& argument : node.arguments->positional) visit(*argument);
  for (const auto& [key, argument] : node.arguments->keywords) visit(*argument);
  if (node.arguments->positional_pack != nullptr) visit(*node.arguments->positional_pack);
  if (node.arguments->keyword_pack != nullptr) visit(*node.arguments->keyword_pack);
}

// Whether a body assigns names of its own scope.
bool assigns(const Body& body) {
  for (const StatementPtr& statement : body) {
    if (statement->kind == S::assign || statement->kind == S::assign_block || statement->kind == S::macro)
      return true;
    for (const auto& [condition, branch] : statement->branches)
      if (assigns(branch)) return true;
  }
  return false;
}

// Records what a scope references and assigns. Inner scopes are not entered.
class SymbolVisitor {
 public:
  explicit SymbolVisitor(Symbols& symbols) : symbols_(&symbols) {}

  void visit(const Expression* node, bool as_parameter = false) {
    if (node != nullptr) visit(*node, as_parameter);
  }

  void visit(const Expression& node, bool as_parameter = false) {
    if (node.kind == X::name) {
      if (as_parameter || node.use == NameUse::parameter)
        symbols_->declare_parameter(node.name);
      else if (node.use == NameUse::store)
        symbols_->store(node.name);
      else
        symbols_->load(node.name);
      return;
    }
    if (node.kind == X::namespace_target) {
      symbols_->load(node.name);
      return;
    }
    for_each_child(node, [&](const Expression& child) { visit(child, as_parameter); });
  }

  void visit(const Body& body) {
    for (const StatementPtr& statement : body) visit(*statement);
  }

  void visit(const Statement& node) {
    switch (node.kind) {
      case S::output:
        for (const ExpressionPtr& expression : node.expressions) visit(*expression);
        break;
      case S::assign:
        visit(*node.value);
        visit(*node.target);
        break;
      case S::assign_block:
        visit(*node.target);
        break;
      case S::for_loop:
        visit(*node.value);
        break;
      case S::if_chain:
        visit_if(node);
        break;
      case S::with:
        for (const auto& [target, value] : node.assignments) visit(*value);
        break;
      case S::macro:
        symbols_->store(node.macro->name);
        break;
      case S::call_block:
        visit(node.value.get());
        break;
      case S::filter_block:
        visit(*node.value);
        break;
      case S::autoescape:
      case S::block:
      case S::break_loop:
      case S::continue_loop:
        break;
    }
  }

 private:
  // An elif is an `if` of its own in a branch of the first one, beside (not inside) the branches before it.
  void visit_if(const Statement& node) {
    bool any = false;
    for (const auto& [condition, branch] : node.branches) any = any || assigns(branch);
    if (!any) {
      // Branches that only read leave the same marks in any order: no copies needed.
      for (const auto& [condition, branch] : node.branches) {
        visit(condition.get());
        visit(branch);
      }
      return;
    }
    visit(*node.branches[0].first);
    Symbols* const original = symbols_;
    Symbols body = *original, elifs = *original, otherwise = *original;
    symbols_ = &body;
    visit(node.branches[0].second);
    symbols_ = &elifs;
    for (size_t i = 1; i < node.branches.size(); ++i) {
      if (node.branches[i].first == nullptr) break;
      visit(*node.branches[i].first);
      Symbols* const outer = symbols_;
      Symbols inner = *outer, none = *outer;
      symbols_ = &inner;
      visit(node.branches[i].second);
      symbols_ = outer;
      outer->merge_branches({inner, none, none});
    }
    symbols_ = &otherwise;
    if (node.branches.back().first == nullptr) visit(node.branches.back().second);
    symbols_ = original;
    original->merge_branches({body, elifs, otherwise});
  }

  Symbols* symbols_;
};

// Which of some special names a piece of template reads before it assigns them.
class UndeclaredFinder {
 public:
  explicit UndeclaredFinder(std::set<std::string> names) : names_(std::move(names)) {}

  const std::set<std::string>& found() const { return found_; }

  void visit(const Expression* node) {
    if (node == nullptr || done_) return;
    if (node->kind == X::name) {
      if (node->use == NameUse::load && names_.contains(node->name)) {
        found_.insert(node->name);
        done_ = found_ == names_;
      } else {
        names_.erase(node->name);
      }
      return;
    }
    if (node->kind == X::namespace_target) return;
    for_each_child(*node, [&](const Expression& child) { visit(&child); });
  }

  void visit(const Body& body) {
    for (const StatementPtr& statement : body) visit(*statement);
  }

  void visit(const Statement& node) {
    switch (node.kind) {
      case S::block:
        return;
      case S::with:
        for (const auto& [target, value] : node.assignments) visit(target.get());
        for (const auto& [target, value] : node.assignments) visit(value.get());
        break;
      case S::if_chain:
        for (const auto& [condition, body] : node.branches) {
          visit(condition.get());
          visit(body);
        }
        break;
      case S::call_block:
        visit(node.value.get());
        break;
      case S::macro:
      case S::filter_block:
        break;
      default:
        for (const ExpressionPtr& expression : node.expressions) visit(expression.get());
        visit(node.target.get());
        visit(node.value.get());
    }
    if (node.macro != nullptr) {
      for (const ExpressionPtr& target : node.macro->targets) visit(target.get());
      for (const ExpressionPtr& value : node.macro->defaults) visit(value.get());
    }
    visit(node.body);
    visit(node.otherwise);
    visit(node.condition.get());
    if (node.kind == S::filter_block) visit(node.value.get());
  }

 private:
  std::set<std::string> names_, found_;
  bool done_ = false;
};

}  // namespace

void record_symbols(Symbols& symbols, const Body& body) {
  SymbolVisitor(symbols).visit(body);
}

void record_symbols(Symbols& symbols, const Expression& expression, bool as_parameter) {
  SymbolVisitor(symbols).visit(expression, as_parameter);
}

std::set<std::string> find_undeclared(const Body& body, std::set<std::string> names) {
  UndeclaredFinder finder(std::move(names));
  finder.visit(body);
  return finder.found();
}

}  // namespace kvasir::jinja
