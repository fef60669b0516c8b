#include "chat/jinja/interpreter.h"

#include <utility>

#include "chat/jinja/failure.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/runtime_objects.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

using X = ExpressionKind;
using S = StatementKind;

// Makes an activation current for the length of a call, and keeps it if something captured it.
class FunctionCall {
 public:
  FunctionCall(Interpreter& interpreter, const Function& function, Activation* parent, Context* context)
      : interpreter_(interpreter), saved_(interpreter.activation_), own_(std::make_unique<Activation>()) {
    const int limit = interpreter.budget_->limits().call_depth;
    if (++interpreter.call_depth_ > limit)
      fail(FailureKind::limit, "macros and recursive loops are nested more than {} levels deep (limit)",
           limit);
    interpreter.budget_->check_stack();
    own_->parent = parent;
    own_->context = context;
    own_->slots.assign(static_cast<size_t>(function.slot_count), Value::missing());
    interpreter.activation_ = own_.get();
  }
  ~FunctionCall() {
    interpreter_.activation_ = saved_;
    --interpreter_.call_depth_;
    if (own_->captured) interpreter_.kept_.push_back(std::move(own_));
  }
  FunctionCall(const FunctionCall&) = delete;
  FunctionCall& operator=(const FunctionCall&) = delete;

 private:
  Interpreter& interpreter_;
  Activation* saved_;
  std::unique_ptr<Activation> own_;
};

Interpreter::Capture::Capture(Interpreter& interpreter)
    : interpreter_(interpreter), outer_(interpreter.sink_) {
  interpreter.sink_ = &text_;
}

Interpreter::Capture::~Capture() {
  if (outer_ != nullptr) take();
}

std::string Interpreter::Capture::take() {
  interpreter_.sink_ = outer_;
  interpreter_.buffered_ -= text_.size();
  outer_ = nullptr;
  return std::move(text_);
}

Interpreter::Interpreter(const TemplateTree* tree, std::unordered_map<std::string, Value> variables,
                         std::time_t now)
    : tree_(tree), budget_(Budget::current()), now_(now) {
  contexts_.emplace_back();
  contexts_.back().given = std::move(variables);
}

Interpreter::~Interpreter() {
  // Macros keep activations that hold those macros; namespaces may hold each other. Break the cycles.
  for (const auto& activation : kept_) {
    std::vector<Value> slots = std::move(activation->slots);
    activation->slots.clear();
  }
  for (Context& context : contexts_) {
    context.set.clear();
    context.given.clear();
  }
  for (const Value& value : remembered_) {
    if (value.is(Kind::name_space))
      value.name_space().attributes = Value();
    else
      value.callable().break_cycles();
  }
}

std::string Interpreter::render() {
  kept_.push_back(std::make_unique<Activation>());
  Activation& root = *kept_.back();
  root.context = &contexts_.front();
  root.slots.assign(static_cast<size_t>(tree_->function.slot_count), Value::missing());
  activation_ = &root;
  if (tree_->uses_self) slot(tree_->self_slot) = Value(Kind::callable, new TemplateSelfObject(root.context));
  enter(tree_->scope);
  execute(tree_->body);
  return std::move(output_);
}

// ---- variables

Value& Interpreter::slot(const Slot& where) {
  Activation* activation = activation_;
  for (int i = 0; i < where.hops; ++i) activation = activation->parent;
  return activation->slots[static_cast<size_t>(where.index)];
}

Value Interpreter::resolve(const std::string& name) {
  const Context& context = *activation_->context;
  if (const auto it = context.set.find(name); it != context.set.end()) return it->second;
  if (const auto it = context.given.find(name); it != context.given.end()) return it->second;
  Value global;
  return find_global(name, global) ? global : Value::missing();
}

void Interpreter::enter(const Scope& scope) {
  for (const SlotLoad& load : scope.loads) {
    switch (load.from) {
      case SlotLoad::From::undefined:
        slot(load.target) = Value::missing();
        break;
      case SlotLoad::From::resolve:
        slot(load.target) = resolve(load.name);
        break;
      case SlotLoad::From::alias:
        slot(load.target) = Value(slot(load.source));
        break;
    }
  }
}

void Interpreter::leave(const Scope& scope) {
  for (const Slot& target : scope.leave) slot(target) = Value::missing();
}

void Interpreter::assign(const Expression& target, const Value& value) {
  switch (target.kind) {
    case X::name:
      slot(target.slot) = value;
      return;
    case X::namespace_target: {
      const Value space = slot(target.slot);
      const Value& attribute = target.children[0]->value;
      if (!space.is(Kind::name_space))
        fail(FailureKind::runtime_error, "cannot assign attribute on non-namespace object");
      if (attribute.text().starts_with('_'))
        fail(FailureKind::security_error,
             "a namespace cannot store attributes that start with an underscore, got {}", repr(attribute));
      space.name_space().attributes.dictionary().set(attribute, value);
      return;
    }
    default: {
      // Unpacking.
      if (!is_iterable(value)) {
        if (value.is_undefined()) break;
        type_error("cannot unpack non-iterable {} object", type_name(value));
      }
      break;
    }
  }
  const size_t wanted = target.children.size();
  std::vector<Value> items;
  Iteration iteration(value);
  Value item;
  while (items.size() <= wanted && iteration.next(item)) items.push_back(item);
  if (items.size() > wanted) value_error("too many values to unpack (expected {})", wanted);
  if (items.size() < wanted)
    value_error("not enough values to unpack (expected {}, got {})", wanted, items.size());
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], items[i]);
}

Value Interpreter::target_value(const Expression& target) {
  if (target.kind == X::name) return slot(target.slot);
  std::vector<Value> items;
  for (const ExpressionPtr& child : target.children) items.push_back(target_value(*child));
  return Value::tuple(std::move(items));
}

// ---- output

void Interpreter::write(std::string_view text) {
  const Limits& limits = budget_->limits();
  buffered_ += text.size();
  if (buffered_ > limits.output_bytes)
    fail(FailureKind::limit, "the output would be larger than {} bytes (limit)", limits.output_bytes);
  budget_->work(text.size());
  sink_->append(text);
}

void Interpreter::write_text(const Value& value) {
  if (!value.is_string()) type_error("expected a string to print, got {}", type_name(value));
  write(value.text());
}

Value Interpreter::wrap_output(std::string text, OutputMode mode) {
  const bool markup = mode == OutputMode::escape || (mode == OutputMode::at_run_time && autoescape_);
  return Value(std::move(text), markup);
}

void Interpreter::execute_output(const Statement& node) {
  const bool escapes =
      node.mode == OutputMode::escape || (node.mode == OutputMode::at_run_time && autoescape_);
  for (const ExpressionPtr& expression : node.expressions) {
    if (expression->kind == X::template_data) {
      write(expression->name);
      continue;
    }
    const Value value = evaluate(*expression);
    line_ = expression->line;
    if (escapes)
      write(escape(value).text());
    else if (value.is_string())
      write(value.text());
    else
      write(to_text(value));
  }
}

// ---- statements

Flow Interpreter::execute(const Body& body) {
  for (const StatementPtr& statement : body)
    if (const Flow flow = execute(*statement); flow != Flow::normal) return flow;
  return Flow::normal;
}

Flow Interpreter::execute(const Statement& node) {
  budget_->step();
  budget_->check_stack();
  line_ = node.line;
  switch (node.kind) {
    case S::output:
      execute_output(node);
      return Flow::normal;
    case S::assign:
    case S::assign_block:
      return execute_assign(node);
    case S::for_loop:
      return execute_for(node);
    case S::if_chain:
      for (const auto& [condition, body] : node.branches)
        if (condition == nullptr || truth(evaluate(*condition))) return execute(body);
      return Flow::normal;
    case S::with: {
      enter(node.scope);
      for (const auto& [target, value] : node.assignments) assign(*target, evaluate(*value));
      const Flow flow = execute(node.body);
      if (flow == Flow::normal) leave(node.scope);
      return flow;
    }
    case S::autoescape:
      return execute_autoescape(node);
    case S::macro:
      execute_macro(node);
      return Flow::normal;
    case S::call_block:
      return execute_call_block(node);
    case S::filter_block: {
      enter(node.scope);
      Capture capture(*this);
      const Flow flow = execute(node.body);
      if (flow != Flow::normal) return flow;
      const Value text = wrap_output(capture.take(), node.mode);
      write_text(evaluate_filter(*node.value, &text));
      leave(node.scope);
      return Flow::normal;
    }
    case S::block:
      execute_block(node);
      return Flow::normal;
    case S::break_loop:
      return Flow::break_loop;
    case S::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::normal;
}

Flow Interpreter::execute_assign(const Statement& node) {
  Value value;
  if (node.kind == S::assign) {
    for (const Slot& where : node.namespace_slots)
      if (!slot(where).is(Kind::name_space))
        fail(FailureKind::runtime_error, "cannot assign attribute on non-namespace object");
    value = evaluate(*node.value);
    line_ = node.line;
    assign(*node.target, value);
  } else {
    enter(node.scope);
    Capture capture(*this);
    const Flow flow = execute(node.body);
    if (flow != Flow::normal) return flow;
    if (node.value != nullptr) {
      const Value text = wrap_output(capture.take(), node.mode);
      value = evaluate_filter(*node.value, &text);
      if (autoescape_) value = value.is_markup() ? value : Value(to_text(value), true);
    } else {
      value = Value(capture.take(), autoescape_);
    }
    assign(*node.target, value);
    leave(node.scope);
  }
  for (const auto& [name, where] : node.exported) activation_->context->set[name] = slot(where);
  return Flow::normal;
}

Flow Interpreter::execute_autoescape(const Statement& node) {
  enter(node.scope);
  const bool saved = autoescape_;
  autoescape_ = truth(evaluate(*node.value));
  const Flow flow = execute(node.body);
  // A break or continue jumps out past the point that restores the setting, as in the reference.
  if (flow != Flow::normal) return flow;
  autoescape_ = saved;
  leave(node.scope);
  return flow;
}

Flow Interpreter::execute_for(const Statement& node) {
  const Value iterable = evaluate(*node.value);
  line_ = node.line;
  if (!node.recursive) return run_loop(node, iterable, 0, activation_);
  write_text(render_recursive_loop(node, activation_, iterable, 0));
  return Flow::normal;
}

Value Interpreter::render_recursive_loop(const Statement& node, Activation* parent, const Value& iterable,
                                         int depth) {
  capture(parent);
  Context* const context = parent->context;
  const FunctionCall call(*this, *node.loop_function, parent, context);
  Capture capture(*this);
  run_loop(node, iterable, depth, parent);
  return wrap_output(capture.take(), node.mode);
}

bool Interpreter::next_filtered(const Statement& loop, Activation* parent, std::unique_ptr<Activation>& own,
                                Iteration& source, Value& out) {
  Activation* const saved = activation_;
  if (own == nullptr) {
    own = std::make_unique<Activation>();
    own->parent = parent;
    own->context = parent->context;
    own->slots.assign(static_cast<size_t>(loop.filter_function->slot_count), Value::missing());
    activation_ = own.get();
    enter(loop.test_scope);
  }
  activation_ = own.get();
  Value item;
  bool found = false;
  while (!found && source.next(item)) {
    budget_->iteration();
    assign(*loop.filter_target_expression, item);
    found = truth(evaluate(*loop.condition));
  }
  if (found) out = target_value(*loop.filter_target_expression);
  activation_ = saved;
  return found;
}

Flow Interpreter::run_loop(const Statement& node, const Value& iterable, int depth, Activation* definition) {
  Value loop;
  std::optional<LoopSource> source;
  if (node.extended) {
    // Only these two use the variables around the loop again, perhaps after the function that they belong to.
    if (node.recursive || node.condition != nullptr) capture(definition);
    loop = Value(Kind::callable, new LoopObject(*this, node, iterable, depth, definition));
  } else {
    source.emplace(*this, node, iterable, definition);
  }
  bool completed = false;  // some iteration ran to the end of the body
  Value item;
  while (node.extended ? loop.as<LoopObject>().next(item) : source->next(item)) {
    budget_->iteration();
    assign(*node.target, item);
    if (node.extended) slot(node.slot) = loop;
    enter(node.scope);
    const Flow flow = execute(node.body);
    if (flow == Flow::break_loop) break;
    if (flow == Flow::normal) completed = true;
    line_ = node.line;
  }
  leave(node.scope);
  if (completed || node.otherwise.empty()) return Flow::normal;
  enter(node.else_scope);
  const Flow flow = execute(node.otherwise);
  if (flow == Flow::normal) leave(node.else_scope);
  return flow;
}

void Interpreter::capture(Activation* activation) {
  for (; activation != nullptr && !activation->captured; activation = activation->parent) {
    budget_->charge(sizeof(Activation) + activation->slots.size() * sizeof(Value));
    activation->captured = true;
  }
}

Value Interpreter::make_macro(const Macro& macro, const Statement& node) {
  capture(activation_);
  return Value(Kind::callable, new MacroObject(macro, node, activation_, autoescape_));
}

void Interpreter::execute_macro(const Statement& node) {
  const Value macro = make_macro(*node.macro, node);
  if (node.store_in_context) activation_->context->set[node.macro->name] = macro;
  slot(node.slot) = macro;
}

Flow Interpreter::execute_call_block(const Statement& node) {
  const Value caller = make_macro(*node.macro, node);
  if (!node.generation) {
    write_text(evaluate_call(*node.value, &caller));
    return Flow::normal;
  }
  // {% generation %}: the span counts from the text that the template has sent out so far.
  Arguments none;
  const Value text = call_macro(caller.as<MacroObject>(), none, std::nullopt);
  const size_t begin = output_.size();
  generation_spans_.push_back({begin, begin + text.text().size()});
  write_text(text);
  return Flow::normal;
}

void Interpreter::execute_block(const Statement& node) {
  const BlockDefinition& block = *tree_->block(node.name);
  if (node.required) fail(FailureKind::runtime_error, "Required block {} not found", quote(node.name));
  Context* context = activation_->context;
  if (node.scoped) {
    contexts_.emplace_back();
    Context& derived = contexts_.back();
    derived.given = context->given;
    for (const auto& [name, value] : context->set) derived.given[name] = value;
    for (const auto& [name, where] : node.scoped_names)
      if (const Value& value = slot(where); !value.is_missing()) derived.given[name] = value;
    context = &derived;
  }
  const FunctionCall call(*this, block.function, nullptr, context);
  if (block.uses_self) slot(block.self_slot) = Value(Kind::callable, new TemplateSelfObject(context));
  if (block.uses_super)
    slot(block.super_slot) =
        Value::undefined_hint(fmt::format("there is no parent block called {}.", quote(node.name)));
  enter(block.scope);
  execute(block.statement->body);
}

Value Interpreter::render_block(const BlockDefinition& block, Context* context) {
  const FunctionCall call(*this, block.function, nullptr, context);
  if (block.uses_self) slot(block.self_slot) = Value(Kind::callable, new TemplateSelfObject(context));
  if (block.uses_super)
    slot(block.super_slot) = Value::undefined_hint(
        fmt::format("there is no parent block called {}.", quote(block.statement->name)));
  enter(block.scope);
  Capture capture(*this);
  execute(block.statement->body);
  return Value(capture.take(), autoescape_);
}

Value Interpreter::call_macro(MacroObject& object, Arguments& arguments, std::optional<bool> autoescape) {
  const Macro& macro = object.macro;
  const size_t count = macro.arguments.size();
  const auto take_keyword = [&](std::string_view name) {
    for (size_t i = 0; i < arguments.keywords.size(); ++i) {
      if (arguments.keywords[i].first != name) continue;
      Value value = std::move(arguments.keywords[i].second);
      arguments.keywords.erase(arguments.keywords.begin() + static_cast<std::ptrdiff_t>(i));
      return value;
    }
    return Value::missing();
  };
  std::vector<Value> values(count, Value::missing());
  const size_t given = std::min(arguments.positional.size(), count);
  for (size_t i = 0; i < given; ++i) values[i] = arguments.positional[i];
  for (size_t i = given; i < count; ++i) values[i] = take_keyword(macro.arguments[i]);
  Value caller = Value::missing();
  if (macro.caller_slot.index >= 0) {
    caller = take_keyword("caller");
    if (caller.is_missing() || caller.is_none()) caller = Value::undefined_hint("No caller defined");
  }
  Value kwargs = Value::dict();
  if (macro.accesses_kwargs) {
    for (auto& [key, value] : arguments.keywords) kwargs.dictionary().set(Value(key), value);
  } else if (!arguments.keywords.empty()) {
    for (const auto& [key, value] : arguments.keywords)
      if (key == "caller")
        type_error("macro {} was invoked with two values for the special caller argument", quote(macro.name));
    type_error("macro {} takes no keyword argument {}", macro.anonymous ? "None" : quote(macro.name),
               quote(arguments.keywords[0].first));
  }
  std::vector<Value> surplus;
  for (size_t i = count; i < arguments.positional.size(); ++i) surplus.push_back(arguments.positional[i]);
  if (!macro.accesses_varargs && !surplus.empty())
    type_error("macro {} takes not more than {} argument(s)", macro.anonymous ? "None" : quote(macro.name),
               count);

  const int line = line_;
  Value result;
  {
    const FunctionCall call(*this, macro.function, object.parent, object.parent->context);
    for (size_t i = 0; i < count; ++i) slot(macro.argument_slots[i]) = values[i];
    if (macro.caller_slot.index >= 0) slot(macro.caller_slot) = caller;
    if (macro.accesses_kwargs) slot(macro.kwargs_slot) = kwargs;
    if (macro.accesses_varargs) slot(macro.varargs_slot) = Value::tuple(std::move(surplus));
    enter(macro.scope);
    for (size_t i = 0; i < count; ++i) {
      if (!slot(macro.argument_slots[i]).is_missing()) continue;
      const size_t from_end = count - i;
      Value value;
      if (from_end <= macro.defaults.size())
        value = evaluate(*macro.defaults[macro.defaults.size() - from_end]);
      else
        value =
            Value::undefined_hint(fmt::format("parameter {} was not provided", quote(macro.arguments[i])));
      slot(macro.argument_slots[i]) = std::move(value);
    }
    Capture capture(*this);
    execute(object.statement.body);
    result = Value(capture.take(), autoescape.value_or(object.default_autoescape));
  }
  line_ = line;
  return result;
}

}  // namespace kvasir::jinja
