#include "chat/jinja/resolver.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/lexer.h"

namespace kvasir::jinja {
namespace {

using X = ExpressionKind;
using S = StatementKind;

constexpr int kMaxNestedLoops = 20;  // CPython's limit within one function, and so jinja2's

struct FunctionState {
  Function* function;
  FunctionState* parent;
  std::map<std::pair<int, std::string>, int> slots;
  int loops = 0;  // loops around the statement that is being resolved

  int slot(int level, const std::string& name) {
    const auto [it, added] = slots.try_emplace({level, name}, function->slot_count);
    if (added) ++function->slot_count;
    return it->second;
  }
};

struct Symbols;

struct Load {
  enum class From { parameter, resolve, alias, undefined } from;
  const Symbols* source = nullptr;  // alias
};

// The names of one scope, as far as they were referenced or assigned in it.
struct Symbols {
  const Symbols* parent = nullptr;
  int level = 0;
  FunctionState* function = nullptr;
  std::set<std::string> references;
  std::map<std::string, Load> loads;
  std::set<std::string> stores;

  const Symbols* find(const std::string& name) const {
    for (const Symbols* scope = this; scope != nullptr; scope = scope->parent)
      if (scope->references.contains(name)) return scope;
    return nullptr;
  }

  void define(const std::string& name, Load load) {
    references.insert(name);
    loads[name] = load;
  }

  void declare_parameter(const std::string& name) {
    stores.insert(name);
    define(name, {Load::From::parameter});
  }

  void load(const std::string& name) {
    if (find(name) == nullptr) define(name, {Load::From::resolve});
  }

  void store(const std::string& name) {
    stores.insert(name);
    if (references.contains(name)) return;
    const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
    if (outer != nullptr)
      define(name, {Load::From::alias, outer});
    else
      define(name, {Load::From::undefined});
  }

  // Names assigned in only some branches of an `if` keep their outer value in the others.
  void merge_branches(const std::vector<Symbols>& branches) {
    std::set<std::string> assigned;
    for (const Symbols& branch : branches)
      for (const std::string& name : branch.stores)
        if (!stores.contains(name)) assigned.insert(name);
    for (const Symbols& branch : branches) {
      references.insert(branch.references.begin(), branch.references.end());
      for (const auto& [name, load] : branch.loads) loads[name] = load;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : assigned) {
      const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
      loads[name] = outer != nullptr ? Load{Load::From::alias, outer} : Load{Load::From::resolve};
    }
  }
};

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
        visit_if(node, 0);
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
  void visit_if(const Statement& node, size_t) {
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

bool has_scoped_block(const Body& body) {
  for (const StatementPtr& statement : body) {
    if (statement->kind == S::block && statement->scoped) return true;
    if (has_scoped_block(statement->body) || has_scoped_block(statement->otherwise)) return true;
    for (const auto& [condition, branch] : statement->branches)
      if (has_scoped_block(branch)) return true;
  }
  return false;
}

struct Frame {
  std::shared_ptr<Symbols> symbols;
  bool top_level = false;
  bool soft = false;

  FunctionState* function() const { return symbols->function; }

  Frame inner(FunctionState* function = nullptr) const {
    Frame frame;
    frame.symbols = std::make_shared<Symbols>();
    frame.symbols->parent = symbols.get();
    frame.symbols->level = symbols->level + 1;
    frame.symbols->function = function != nullptr ? function : symbols->function;
    frame.keep_alive = symbols;
    return frame;
  }
  Frame softened() const {
    Frame frame = *this;
    frame.soft = true;
    return frame;
  }

  std::shared_ptr<Symbols> keep_alive;
};

class Resolver {
 public:
  explicit Resolver(TemplateTree& tree) : tree_(tree), folder_(tree.constants) {}

  void run() {
    FunctionState root{&tree_.function, nullptr, {}, 0};
    Frame frame = new_frame(&root);
    frame.top_level = true;
    UndeclaredFinder finder({"self"});
    finder.visit(tree_.body);
    if (finder.found().contains("self")) {
      tree_.uses_self = true;
      frame.symbols->declare_parameter("self");
    }
    SymbolVisitor(*frame.symbols).visit(tree_.body);
    if (tree_.uses_self) tree_.self_slot = slot_of(frame, "self", 1);
    tree_.scope = scope_of(frame, false);
    resolve_body(tree_.body, frame);
    for (auto& [name, block] : tree_.blocks) resolve_block(*block);
  }

 private:
  static Frame new_frame(FunctionState* function) {
    Frame frame;
    frame.symbols = std::make_shared<Symbols>();
    frame.symbols->function = function;
    return frame;
  }

  static int hops(const FunctionState* from, const FunctionState* to) {
    int count = 0;
    for (; from != to; from = from->parent) ++count;
    return count;
  }

  static Slot slot_in(const FunctionState* from, const Symbols& owner, const std::string& name) {
    return {hops(from, owner.function), owner.function->slot(owner.level, name)};
  }

  static Slot slot_of(const Frame& frame, const std::string& name, int line) {
    const Symbols* owner = frame.symbols->find(name);
    if (owner == nullptr)
      throw SyntaxFailure{
          line, fmt::format("the name '{}' cannot be used in the filter of a set block here", name)};
    return slot_in(frame.function(), *owner, name);
  }

  // What to do on entering the frame; `leaves`: its slots are cleared at its end.
  static Scope scope_of(const Frame& frame, bool leaves) {
    Scope scope;
    const Symbols& symbols = *frame.symbols;
    for (const auto& [name, load] : symbols.loads) {
      const Slot target = slot_in(symbols.function, symbols, name);
      if (leaves) scope.leave.push_back(target);
      switch (load.from) {
        case Load::From::parameter:
          break;
        case Load::From::resolve:
          scope.loads.push_back({target, SlotLoad::From::resolve, name, {}});
          break;
        case Load::From::alias:
          scope.loads.push_back(
              {target, SlotLoad::From::alias, {}, slot_in(symbols.function, *load.source, name)});
          break;
        case Load::From::undefined:
          scope.loads.push_back({target, SlotLoad::From::undefined, {}, {}});
          break;
      }
    }
    return scope;
  }

  OutputMode mode() const {
    if (volatile_) return OutputMode::at_run_time;
    return autoescape_ ? OutputMode::escape : OutputMode::plain;
  }

  // ---- expressions
  void resolve_expression(ExpressionPtr& node, const Frame& frame) {
    if (node == nullptr) return;
    if (!volatile_) folder_.fold(node, autoescape_);
    bind(*node, frame);
  }

  void bind(Expression& node, const Frame& frame) {
    switch (node.kind) {
      case X::constant:
        return;
      case X::name: {
        node.slot = slot_of(frame, node.name, node.line);
        const Symbols* owner = frame.symbols->find(node.name);
        const auto load = owner->loads.find(node.name);
        node.always_assigned = node.use == NameUse::load && owner != default_arguments_of_ &&
                               load != owner->loads.end() && load->second.from == Load::From::parameter;
        return;
      }
      case X::namespace_target:
        node.slot = slot_of(frame, node.name, node.line);
        return;
      case X::filter:
        node.filter = find_filter(node.name);
        if (node.filter == nullptr && !frame.soft)
          throw SyntaxFailure{node.line, fmt::format("No filter named '{}'.", node.name)};
        break;
      case X::test:
        node.test = find_test(node.name);
        if (node.test == nullptr && !frame.soft)
          throw SyntaxFailure{node.line, fmt::format("No test named '{}'.", node.name)};
        break;
      case X::concat:
        node.markup_join = autoescape_ && !volatile_;
        break;
      default:
        break;
    }
    if (node.kind == X::conditional && !frame.soft)
      bind_children(node, frame.softened());
    else
      bind_children(node, frame);
  }

  void bind_children(Expression& node, const Frame& frame) {
    for (ExpressionPtr& child : node.children)
      if (child != nullptr) bind(*child, frame);
    if (node.arguments == nullptr) return;
    for (ExpressionPtr& argument : node.arguments->positional) bind(*argument, frame);
    for (auto& [key, argument] : node.arguments->keywords) bind(*argument, frame);
    if (node.arguments->positional_pack != nullptr) bind(*node.arguments->positional_pack, frame);
    if (node.arguments->keyword_pack != nullptr) bind(*node.arguments->keyword_pack, frame);
  }

  // ---- statements
  void resolve_body(Body& body, const Frame& frame) {
    for (StatementPtr& statement : body) resolve_statement(*statement, frame);
  }

  void resolve_statement(Statement& node, const Frame& frame) {
    node.mode = mode();
    switch (node.kind) {
      case S::output:
        for (ExpressionPtr& expression : node.expressions) {
          if (expression->kind == X::template_data) continue;
          if (!volatile_) folder_.fold_printed(expression, autoescape_);
          if (volatile_ && expression->kind == X::constant) {
            // Constants are printed as the setting around the block says, which is known before it runs.
            std::string text = to_text(autoescape_ ? escape(expression->value) : expression->value);
            expression = std::make_unique<Expression>(X::template_data, expression->line);
            expression->name = std::move(text);
            continue;
          }
          bind(*expression, frame);
        }
        break;
      case S::assign:
      case S::assign_block:
        resolve_assign(node, frame);
        break;
      case S::for_loop:
        resolve_for(node, frame);
        break;
      case S::if_chain: {
        const Frame soft = frame.softened();
        for (auto& [condition, body] : node.branches) {
          resolve_expression(condition, soft);
          resolve_body(body, soft);
        }
        break;
      }
      case S::with: {
        Frame inner = frame.inner();
        SymbolVisitor visitor(*inner.symbols);
        for (auto& [target, value] : node.assignments) visitor.visit(*target);
        visitor.visit(node.body);
        node.scope = scope_of(inner, true);
        for (auto& [target, value] : node.assignments) {
          resolve_expression(value, frame);
          bind(*target, inner);
        }
        resolve_body(node.body, inner);
        break;
      }
      case S::autoescape:
        resolve_autoescape(node, frame);
        break;
      case S::macro:
        resolve_macro(node, frame);
        node.slot = slot_of(frame, node.macro->name, node.line);
        node.store_in_context = frame.top_level;
        break;
      case S::call_block:
        resolve_macro(node, frame);
        if (node.value != nullptr) {
          for (const auto& [key, argument] : node.value->arguments->keywords)
            if (key == "caller") throw SyntaxFailure{node.line, "keyword argument repeated: caller"};
          bind(*node.value, frame);
        }
        break;
      case S::filter_block: {
        Frame inner = frame.inner();
        SymbolVisitor visitor(*inner.symbols);
        visitor.visit(node.body);
        visitor.visit(*node.value);
        node.scope = scope_of(inner, true);
        resolve_body(node.body, inner);
        bind(*node.value, inner);
        break;
      }
      case S::block:
        resolve_block_call(node, frame);
        break;
      case S::break_loop:
      case S::continue_loop:
        if (frame.function()->loops == 0)
          throw SyntaxFailure{
              node.line, fmt::format("'{}' outside loop", node.kind == S::break_loop ? "break" : "continue")};
        break;
    }
  }

  void collect_targets(const Expression& target, Statement& node, const Frame& frame) {
    if (target.kind == X::name) {
      if (frame.top_level) node.exported.emplace_back(target.name, slot_of(frame, target.name, target.line));
    } else if (target.kind == X::namespace_target) {
      if (std::find(node.namespaces.begin(), node.namespaces.end(), target.name) == node.namespaces.end()) {
        node.namespaces.push_back(target.name);
        node.namespace_slots.push_back(slot_of(frame, target.name, target.line));
      }
    }
    for (const ExpressionPtr& child : target.children) collect_targets(*child, node, frame);
  }

  void resolve_assign(Statement& node, const Frame& frame) {
    if (node.kind == S::assign_block) {
      Frame inner = frame.inner();
      SymbolVisitor(*inner.symbols).visit(node.body);
      node.scope = scope_of(inner, true);
      resolve_body(node.body, inner);
      if (node.value != nullptr) bind(*node.value, inner);
    } else {
      resolve_expression(node.value, frame);
    }
    bind(*node.target, frame);
    collect_targets(*node.target, node, frame);
  }

  static void check_loop_assignment(const Expression* target) {
    if (target == nullptr) return;
    if (target->kind == X::name && target->use == NameUse::store && target->name == "loop")
      throw SyntaxFailure{target->line, "Can't assign to special loop variable in for-loop target"};
    for (const ExpressionPtr& child : target->children) check_loop_assignment(child.get());
  }

  static void check_loop_assignments(const Body& body) {
    for (const StatementPtr& statement : body) {
      if (statement->kind != S::macro) check_loop_assignment(statement->target.get());
      check_loop_assignments(statement->body);
      check_loop_assignments(statement->otherwise);
      for (const auto& [condition, branch] : statement->branches) check_loop_assignments(branch);
    }
  }

  void resolve_for(Statement& node, const Frame& frame) {
    check_loop_assignment(node.target.get());
    check_loop_assignments(node.body);
    check_loop_assignments(node.otherwise);
    UndeclaredFinder finder({"loop"});
    finder.visit(node.body);
    node.extended = node.recursive || finder.found().contains("loop") || has_scoped_block(node.body) ||
                    has_scoped_block(node.otherwise);
    FunctionState loop_function{nullptr, frame.function(), {}, 0};
    FunctionState* body_function = frame.function();
    if (node.recursive) {
      node.loop_function = std::make_unique<Function>();
      loop_function.function = node.loop_function.get();
      body_function = &loop_function;
    }
    if (node.condition != nullptr) {
      node.filter_function = std::make_unique<Function>();
      FunctionState filter_function{node.filter_function.get(), frame.function(), {}, 0};
      Frame test = frame.inner(&filter_function);
      SymbolVisitor visitor(*test.symbols);
      visitor.visit(*node.target, true);
      visitor.visit(*node.condition);
      node.test_scope = scope_of(test, false);
      node.filter_target_expression = copy_target(*node.target);
      bind(*node.filter_target_expression, test);
      resolve_expression(node.condition, test);
    }
    resolve_expression(node.value, frame);

    Frame loop = frame.inner(body_function);
    if (node.extended) loop.symbols->declare_parameter("loop");
    SymbolVisitor visitor(*loop.symbols);
    visitor.visit(*node.target, true);
    visitor.visit(node.body);
    const bool keeps_scope = node.recursive && node.otherwise.empty();
    node.scope = scope_of(loop, !keeps_scope);
    if (node.extended) node.slot = slot_of(loop, "loop", node.line);
    bind(*node.target, loop);
    if (++body_function->loops > kMaxNestedLoops)
      throw SyntaxFailure{node.line, "too many statically nested blocks"};
    resolve_body(node.body, loop);
    --body_function->loops;
    if (!node.otherwise.empty()) {
      Frame otherwise = frame.inner(body_function);
      SymbolVisitor(*otherwise.symbols).visit(node.otherwise);
      node.else_scope = scope_of(otherwise, true);
      resolve_body(node.otherwise, otherwise);
    }
  }

  static ExpressionPtr copy_target(const Expression& target) {
    auto copy = std::make_unique<Expression>(target.kind, target.line);
    copy->use = target.use;
    copy->name = target.name;
    for (const ExpressionPtr& child : target.children) copy->children.push_back(copy_target(*child));
    return copy;
  }

  void resolve_autoescape(Statement& node, const Frame& frame) {
    Frame inner = frame.inner();
    SymbolVisitor visitor(*inner.symbols);
    visitor.visit(*node.value);
    visitor.visit(node.body);
    node.scope = scope_of(inner, true);
    const bool saved_autoescape = autoescape_, saved_volatile = volatile_;
    resolve_expression(node.value, inner);
    if (node.value->kind == X::constant)
      autoescape_ = truth(node.value->value);
    else
      volatile_ = true;
    resolve_body(node.body, inner);
    autoescape_ = saved_autoescape;
    volatile_ = saved_volatile;
  }

  // The function of a macro or call block, defined in `frame`.
  void resolve_macro(Statement& node, const Frame& frame) {
    Macro& macro = *node.macro;
    FunctionState function{&macro.function, frame.function(), {}, 0};
    Frame inner = frame.inner(&function);
    SymbolVisitor visitor(*inner.symbols);
    const auto analyze = [&] {
      for (const ExpressionPtr& target : macro.targets) visitor.visit(*target);
      for (const ExpressionPtr& value : macro.defaults) visitor.visit(*value);
      visitor.visit(node.body);
    };
    analyze();
    UndeclaredFinder finder({"caller", "kwargs", "varargs"});
    finder.visit(node.body);
    const auto is_argument = [&](std::string_view name) {
      return std::find(macro.arguments.begin(), macro.arguments.end(), name) != macro.arguments.end();
    };
    if (finder.found().contains("caller")) {
      if (is_argument("caller")) {
        const auto index = static_cast<size_t>(
            std::find(macro.arguments.begin(), macro.arguments.end(), "caller") - macro.arguments.begin());
        if (macro.arguments.size() - index > macro.defaults.size())
          throw SyntaxFailure{node.line,
                              "the special \"caller\" argument of a macro must be omitted or have a default"};
      } else {
        inner.symbols->declare_parameter("caller");
      }
      macro.accesses_caller = true;
    }
    if (finder.found().contains("kwargs") && !is_argument("kwargs")) {
      inner.symbols->declare_parameter("kwargs");
      macro.accesses_kwargs = true;
    }
    if (finder.found().contains("varargs") && !is_argument("varargs")) {
      inner.symbols->declare_parameter("varargs");
      macro.accesses_varargs = true;
    }
    analyze();
    macro.scope = scope_of(inner, false);
    for (const std::string& name : macro.arguments)
      macro.argument_slots.push_back(slot_of(inner, name, node.line));
    if (macro.accesses_caller && !is_argument("caller"))
      macro.caller_slot = slot_of(inner, "caller", node.line);
    if (macro.accesses_kwargs) macro.kwargs_slot = slot_of(inner, "kwargs", node.line);
    if (macro.accesses_varargs) macro.varargs_slot = slot_of(inner, "varargs", node.line);
    // The default of an argument may refer to a later one, which has no value yet.
    default_arguments_of_ = inner.symbols.get();
    for (ExpressionPtr& value : macro.defaults) resolve_expression(value, inner);
    default_arguments_of_ = nullptr;
    resolve_body(node.body, inner);
  }

  void resolve_block_call(Statement& node, const Frame& frame) {
    if (!node.scoped) return;
    for (const Symbols* scope = frame.symbols.get(); scope != nullptr; scope = scope->parent) {
      for (const std::string& name : scope->stores) {
        const bool known = std::any_of(node.scoped_names.begin(), node.scoped_names.end(),
                                       [&](const auto& entry) { return entry.first == name; });
        if (!known) node.scoped_names.emplace_back(name, slot_of(frame, name, node.line));
      }
    }
  }

  void resolve_block(BlockDefinition& block) {
    FunctionState function{&block.function, nullptr, {}, 0};
    Frame frame = new_frame(&function);
    UndeclaredFinder finder({"self", "super"});
    finder.visit(block.statement->body);
    for (const char* name : {"self", "super"})
      if (finder.found().contains(name)) frame.symbols->declare_parameter(name);
    SymbolVisitor(*frame.symbols).visit(block.statement->body);
    block.uses_self = finder.found().contains("self");
    block.uses_super = finder.found().contains("super");
    if (block.uses_self) block.self_slot = slot_of(frame, "self", 1);
    if (block.uses_super) block.super_slot = slot_of(frame, "super", 1);
    block.scope = scope_of(frame, false);
    resolve_body(block.statement->body, frame);
  }

  TemplateTree& tree_;
  ConstantFolder folder_;
  const Symbols* default_arguments_of_ = nullptr;
  bool autoescape_ = false, volatile_ = false;
};

}  // namespace

void resolve(TemplateTree& tree) {
  Resolver(tree).run();
}

}  // namespace kvasir::jinja
