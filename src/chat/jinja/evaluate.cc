// The expressions of the interpreter.
#include <utility>

#include "chat/jinja/failure.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/runtime_objects.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

using X = ExpressionKind;

Value Interpreter::evaluate_name(const Expression& node) {
  if (folding_) fail(FailureKind::unsupported, "a name is not constant");
  const Value& value = slot(node.slot);
  if (!value.is_missing()) return value;
  if (node.always_assigned)
    fail(FailureKind::unsupported,
         "{} is read by a macro after the loop or block that it belongs to has ended", quote(node.name));
  return Value::undefined_name(node.name);
}

Value Interpreter::evaluate(const Expression& node) {
  budget_->step();
  budget_->check_stack();
  switch (node.kind) {
    case X::constant:
      return node.value;
    case X::template_data:
      return Value(node.name);
    case X::name:
      return evaluate_name(node);
    case X::namespace_target:
      return evaluate_name(node);
    case X::tuple:
    case X::list: {
      std::vector<Value> items;
      items.reserve(node.children.size());
      for (const ExpressionPtr& child : node.children) items.push_back(evaluate(*child));
      return node.kind == X::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case X::dict: {
      Value dict = Value::dict();
      for (size_t i = 0; i < node.children.size(); i += 2) {
        Value key = evaluate(*node.children[i]);
        Value value = evaluate(*node.children[i + 1]);
        line_ = node.line;
        dict.dictionary().set(std::move(key), std::move(value));
      }
      return dict;
    }
    case X::conditional: {
      if (truth(evaluate(*node.children[0]))) return evaluate(*node.children[1]);
      if (node.children.size() > 2) return evaluate(*node.children[2]);
      if (folding_) fail(FailureKind::unsupported, "an undefined value is not constant");
      return Value::undefined_hint(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined.",
          node.line));
    }
    case X::binary: {
      const Value left = evaluate(*node.children[0]);
      const Value right = evaluate(*node.children[1]);
      line_ = node.line;
      if (node.binary == Binary::modulo && left.is_string()) return format_percent(left, right);
      return arithmetic(node.binary, left, right);
    }
    case X::negate:
    case X::positive: {
      const Value value = evaluate(*node.children[0]);
      line_ = node.line;
      return node.kind == X::negate ? negate(value) : positive(value);
    }
    case X::logical_not:
      return Value(!truth(evaluate(*node.children[0])));
    case X::logical_and: {
      Value left = evaluate(*node.children[0]);
      return truth(left) ? evaluate(*node.children[1]) : left;
    }
    case X::logical_or: {
      Value left = evaluate(*node.children[0]);
      return truth(left) ? left : evaluate(*node.children[1]);
    }
    case X::compare:
      return evaluate_compare(node);
    case X::concat:
      return evaluate_concat(node);
    case X::get_attribute: {
      const Value object = evaluate(*node.children[0]);
      line_ = node.line;
      return get_attribute(object, node.name_value);
    }
    case X::get_item: {
      const Value object = evaluate(*node.children[0]);
      const Value key = evaluate(*node.children[1]);
      line_ = node.line;
      return get_item(object, key);
    }
    case X::slice: {
      const Value object = evaluate(*node.children[0]);
      Value bounds[3];
      for (size_t i = 0; i < 3; ++i)
        if (node.children[i + 1] != nullptr) bounds[i] = evaluate(*node.children[i + 1]);
      line_ = node.line;
      // A constant subscript is looked up as an item while it is folded: what cannot be sliced is undefined
      // then.
      if (folding_)
        return get_item(object, Value(Kind::slice, new SliceObject(bounds[0], bounds[1], bounds[2])));
      return slice(object, bounds[0], bounds[1], bounds[2]);
    }
    case X::slice_key: {
      Value bounds[3];
      for (size_t i = 0; i < 3; ++i)
        if (node.children[i] != nullptr) bounds[i] = evaluate(*node.children[i]);
      return Value(Kind::slice, new SliceObject(bounds[0], bounds[1], bounds[2]));
    }
    case X::call:
      return evaluate_call(node, nullptr);
    case X::filter:
      return evaluate_filter(node, nullptr);
    case X::test:
      return Value(evaluate_test(node));
  }
  return Value();
}

Value Interpreter::evaluate_compare(const Expression& node) {
  Value left = evaluate(*node.children[0]);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    line_ = node.line;
    bool result = false;
    switch (node.operators[i]) {
      case CompareOperator::equal:
        result = equals(left, right);
        break;
      case CompareOperator::not_equal:
        result = !equals(left, right);
        break;
      case CompareOperator::less:
        result = compare(left, right, Order::less);
        break;
      case CompareOperator::less_equal:
        result = compare(left, right, Order::less_equal);
        break;
      case CompareOperator::greater:
        result = compare(left, right, Order::greater);
        break;
      case CompareOperator::greater_equal:
        result = compare(left, right, Order::greater_equal);
        break;
      case CompareOperator::in:
        result = contains(right, left);
        break;
      case CompareOperator::not_in:
        result = !contains(right, left);
        break;
    }
    if (!result) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_concat(const Expression& node) {
  std::vector<Value> parts;
  parts.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) parts.push_back(evaluate(*child));
  line_ = node.line;
  bool markup = false;
  if (node.markup_join && !folding_)
    for (const Value& part : parts) markup = markup || part.is_markup();
  std::string out;
  for (const Value& part : parts) {
    if (markup)
      out += escape(part).text();
    else if (part.is_string())
      out += part.text();
    else
      out += to_text(part);
    check_string_size(out.size());
  }
  return Value(std::move(out), markup);
}

Arguments Interpreter::evaluate_arguments(const CallArguments* arguments) {
  Arguments out;
  if (arguments == nullptr) return out;
  out.positional.reserve(arguments->positional.size());
  for (const ExpressionPtr& argument : arguments->positional) out.positional.push_back(evaluate(*argument));
  if (arguments->positional_pack != nullptr) {
    const Value pack = evaluate(*arguments->positional_pack);
    if (!is_iterable(pack)) type_error("the value after * must be an iterable, not {}", type_name(pack));
    for (Value& item : to_vector(pack)) out.positional.push_back(std::move(item));
  }
  for (const auto& [key, argument] : arguments->keywords) out.keywords.emplace_back(key, evaluate(*argument));
  if (arguments->keyword_pack != nullptr) {
    const Value pack = evaluate(*arguments->keyword_pack);
    if (!pack.is(Kind::dict)) type_error("the value after ** must be a mapping, not {}", type_name(pack));
    for (const auto& [key, value] : pack.dictionary().entries) {
      if (!key.is_string()) type_error("keywords must be strings");
      for (const auto& [other, unused] : out.keywords)
        if (other == key.text()) type_error("got multiple values for keyword argument {}", repr(key));
      out.keywords.emplace_back(key.text(), value);
    }
  }
  return out;
}

Value Interpreter::evaluate_call(const Expression& node, const Value* caller) {
  if (folding_) fail(FailureKind::unsupported, "a call is not constant");
  const Expression& callee = *node.children[0];
  const MethodEntry* method = nullptr;
  Value target, self;
  if (callee.kind == X::get_attribute) {
    // A method that is called at once needs no method object.
    self = evaluate(*callee.children[0]);
    line_ = callee.line;
    if (find_attribute(*this, self, callee.name, nullptr, &method) != AttributeKind::method) {
      method = nullptr;
      target = get_attribute(self, callee.name_value);
    }
  } else {
    target = evaluate(callee);
  }
  Arguments arguments = evaluate_arguments(node.arguments.get());
  if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
  line_ = node.line;
  if (method != nullptr) return method->apply(*this, self, arguments);
  return call(target, arguments);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is_undefined()) {
    raise_undefined(callee);
  }
  if (!callee.is(Kind::callable) || !callee.callable().is_callable())
    type_error("'{}' object is not callable", type_name(callee));
  const Value keep = callee;  // the callee may drop the last other reference to itself
  return keep.callable().call(*this, arguments);
}

Value Interpreter::evaluate_filter(const Expression& node, const Value* operand) {
  if (node.filter == nullptr) {
    const FilterEntry* entry = folding_ ? find_filter(node.name) : nullptr;
    if (entry == nullptr) fail(FailureKind::runtime_error, "No filter named {} found.", quote(node.name));
    if (entry->needs_context) fail(FailureKind::unsupported, "not constant");
    const Value value = evaluate(*node.children[0]);
    Arguments arguments = evaluate_arguments(node.arguments.get());
    return entry->apply(*this, value, arguments);
  }
  const Value value = node.children[0] == nullptr           ? *operand
                      : node.children[0]->kind == X::filter ? evaluate_filter(*node.children[0], operand)
                                                            : evaluate(*node.children[0]);
  Arguments arguments = evaluate_arguments(node.arguments.get());
  line_ = node.line;
  return node.filter->apply(*this, value, arguments);
}

bool Interpreter::evaluate_test(const Expression& node) {
  const TestEntry* test = node.test;
  if (test == nullptr && folding_) test = find_test(node.name);
  if (test == nullptr) fail(FailureKind::runtime_error, "No test named {} found.", quote(node.name));
  const Value value = evaluate(*node.children[0]);
  Arguments arguments = evaluate_arguments(node.arguments.get());
  line_ = node.line;
  return test->apply(*this, value, arguments);
}

Value Interpreter::apply_filter(const Value& name, const Value& operand, Arguments& arguments) {
  const FilterEntry* filter = name.is_string() ? find_filter(name.text()) : nullptr;
  if (filter == nullptr) fail(FailureKind::runtime_error, "No filter named {}.", repr(name));
  return filter->apply(*this, operand, arguments);
}

bool Interpreter::apply_test(const Value& name, const Value& operand, Arguments& arguments) {
  const TestEntry* test = name.is_string() ? find_test(name.text()) : nullptr;
  if (test == nullptr) fail(FailureKind::runtime_error, "No test named {}.", repr(name));
  return test->apply(*this, operand, arguments);
}

Value Interpreter::get_attribute(const Value& object, const Value& name) {
  Value out;
  const MethodEntry* method = nullptr;
  switch (find_attribute(*this, object, name.text(), &out, &method)) {
    case AttributeKind::value:
      return out;
    case AttributeKind::method:
      return bind_method(object, method);
    case AttributeKind::forbidden:
      return Value::undefined_unsafe(name.text(), object);
    case AttributeKind::none:
      break;
  }
  if (subscript(this, object, name, out)) return out;
  return Value::undefined_member(object, name);
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  Value out;
  if (subscript(this, object, key, out)) return out;
  if (key.is_string()) {
    const MethodEntry* method = nullptr;
    switch (find_attribute(*this, object, key.text(), &out, &method)) {
      case AttributeKind::value:
        return out;
      case AttributeKind::method:
        return bind_method(object, method);
      case AttributeKind::forbidden:
        return Value::undefined_unsafe(key.text(), object);
      case AttributeKind::none:
        break;
    }
  }
  return Value::undefined_member(object, key);
}

std::optional<Value> Interpreter::constant(const Expression& expression, bool autoescape) {
  folding_ = true;
  autoescape_ = autoescape;
  try {
    return evaluate(expression);
  } catch (const Failure&) {
    return std::nullopt;  // decided when the template runs
  }
}

// ---- constant folding

namespace {

bool can_be_written_as_constant(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating:
    case Kind::big_integer:
    case Kind::string:
      return true;
    case Kind::list:
    case Kind::tuple:
      if (value.is(Kind::tuple) && value.as<SequenceObject>().is_group) return false;
      for (const Value& item : value.items())
        if (!can_be_written_as_constant(item)) return false;
      return true;
    case Kind::dict:
      for (const auto& [k, v] : value.dictionary().entries)
        if (!can_be_written_as_constant(k) || !can_be_written_as_constant(v)) return false;
      return true;
    default:
      return false;
  }
}

}  // namespace

ConstantFolder::ConstantFolder(ConstantPool& pool) : pool_(pool), interpreter_(nullptr, {}, 0) {}

// Sets may_fold: whether the expression can be constant, judged by its leaves.
bool ConstantFolder::mark(Expression& node) {
  bool all = true;
  for (const ExpressionPtr& child : node.children)
    all = (child == nullptr ? node.kind != X::filter && node.kind != X::test : mark(*child)) && all;
  if (node.arguments != nullptr) {
    for (const ExpressionPtr& argument : node.arguments->positional) all = mark(*argument) && all;
    for (const auto& [key, argument] : node.arguments->keywords) all = mark(*argument) && all;
    if (node.arguments->positional_pack != nullptr) all = mark(*node.arguments->positional_pack) && all;
    if (node.arguments->keyword_pack != nullptr) all = mark(*node.arguments->keyword_pack) && all;
  }
  switch (node.kind) {
    case X::constant:
      node.may_fold = true;
      break;
    case X::name:
    case X::namespace_target:
    case X::template_data:
    case X::call:
      node.may_fold = false;
      break;
    case X::filter: {
      const FilterEntry* filter = find_filter(node.name);
      node.may_fold = all && filter != nullptr && !filter->needs_context && !without_filters_;
      break;
    }
    case X::test:
      node.may_fold = all && find_test(node.name) != nullptr && !without_filters_;
      break;
    // These stop early.
    case X::logical_and:
    case X::logical_or:
    case X::conditional:
      node.may_fold = node.children[0]->may_fold;
      break;
    case X::compare:
      node.may_fold = node.children[0]->may_fold && node.children[1]->may_fold;
      break;
    default:
      node.may_fold = all;
      break;
  }
  return node.may_fold;
}

void ConstantFolder::replace(ExpressionPtr& node, bool autoescape) {
  if (node == nullptr || node->kind == X::constant) return;
  for (ExpressionPtr& child : node->children) replace(child, autoescape);
  if (node->arguments != nullptr) {
    for (ExpressionPtr& argument : node->arguments->positional) replace(argument, autoescape);
    for (auto& [key, argument] : node->arguments->keywords) replace(argument, autoescape);
    replace(node->arguments->positional_pack, autoescape);
    replace(node->arguments->keyword_pack, autoescape);
  }
  if (!node->may_fold) return;
  const std::optional<Value> value = interpreter_.constant(*node, autoescape);
  if (!value || !can_be_written_as_constant(*value)) return;
  auto constant = std::make_unique<Expression>(X::constant, node->line);
  constant->value = *value;
  constant->may_fold = true;
  pool_.adopt(constant->value);
  node = std::move(constant);
}

void ConstantFolder::fold(ExpressionPtr& node, bool autoescape) {
  mark(*node);
  replace(node, autoescape);
}

std::optional<Value> ConstantFolder::constant_without_filters(Expression& node, bool autoescape) {
  without_filters_ = true;
  const bool folds = mark(node);
  without_filters_ = false;
  return folds ? interpreter_.constant(node, autoescape) : std::nullopt;
}

void ConstantFolder::fold_printed(ExpressionPtr& node, bool autoescape) {
  fold(node, autoescape);
  if (node->kind == X::constant || !node->may_fold) return;
  // A constant expression that is undefined prints nothing, even where evaluating it later would be an error.
  const std::optional<Value> value = interpreter_.constant(*node, autoescape);
  if (!value || !value->is_undefined()) return;
  auto constant = std::make_unique<Expression>(X::constant, node->line);
  constant->value = Value(std::string());
  pool_.adopt(constant->value);
  node = std::move(constant);
}

}  // namespace kvasir::jinja
