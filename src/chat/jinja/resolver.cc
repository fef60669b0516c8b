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
#include "chat/jinja/operations.h"
#include "chat/jinja/symbols.h"

namespace kvasir::jinja {
namespace {

using X = ExpressionKind;
using S = StatementKind;

constexpr int kMaxNestedLoops = 20;  // CPython's limit within one function, and so jinja2's
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
    const std::set<std::string> undeclared = find_undeclared(tree_.body, {"self"});
    if (undeclared.contains("self")) {
      tree_.uses_self = true;
      frame.symbols->declare_parameter("self");
    }
    record_symbols(*frame.symbols, tree_.body);
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
  Scope scope_of(const Frame& frame, bool leaves) {
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
          tree_.variables.insert(name);
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
          if (volatile_) {
            // Constants are printed as the setting around the block says, which is known before it runs.
            if (const auto value = folder_.constant_without_filters(*expression, autoescape_)) {
              std::string text = to_text(autoescape_ ? escape(*value) : *value);
              expression = std::make_unique<Expression>(X::template_data, expression->line);
              expression->name = std::move(text);
              continue;
            }
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
        for (auto& [target, value] : node.assignments) record_symbols(*inner.symbols, *target);
        record_symbols(*inner.symbols, node.body);
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
        record_symbols(*inner.symbols, node.body);
        record_symbols(*inner.symbols, *node.value);
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
      record_symbols(*inner.symbols, node.body);
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
    const std::set<std::string> undeclared = find_undeclared(node.body, {"loop"});
    node.extended = node.recursive || undeclared.contains("loop") || has_scoped_block(node.body) ||
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
      record_symbols(*test.symbols, *node.target, true);
      record_symbols(*test.symbols, *node.condition);
      node.test_scope = scope_of(test, false);
      node.filter_target_expression = copy_target(*node.target);
      bind(*node.filter_target_expression, test);
      resolve_expression(node.condition, test);
    }
    resolve_expression(node.value, frame);

    Frame loop = frame.inner(body_function);
    if (node.extended) loop.symbols->declare_parameter("loop");
    record_symbols(*loop.symbols, *node.target, true);
    record_symbols(*loop.symbols, node.body);
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
      record_symbols(*otherwise.symbols, node.otherwise);
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
    record_symbols(*inner.symbols, *node.value);
    record_symbols(*inner.symbols, node.body);
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
    const auto analyze = [&] {
      for (const ExpressionPtr& target : macro.targets) record_symbols(*inner.symbols, *target);
      for (const ExpressionPtr& value : macro.defaults) record_symbols(*inner.symbols, *value);
      record_symbols(*inner.symbols, node.body);
    };
    analyze();
    const std::set<std::string> undeclared = find_undeclared(node.body, {"caller", "kwargs", "varargs"});
    const auto is_argument = [&](std::string_view name) {
      return std::find(macro.arguments.begin(), macro.arguments.end(), name) != macro.arguments.end();
    };
    if (undeclared.contains("caller")) {
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
    if (undeclared.contains("kwargs") && !is_argument("kwargs")) {
      inner.symbols->declare_parameter("kwargs");
      macro.accesses_kwargs = true;
    }
    if (undeclared.contains("varargs") && !is_argument("varargs")) {
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
    const std::set<std::string> undeclared = find_undeclared(block.statement->body, {"self", "super"});
    for (const char* name : {"self", "super"})
      if (undeclared.contains(name)) frame.symbols->declare_parameter(name);
    record_symbols(*frame.symbols, block.statement->body);
    block.uses_self = undeclared.contains("self");
    block.uses_super = undeclared.contains("super");
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
