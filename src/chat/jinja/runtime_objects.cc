#include "chat/jinja/runtime_objects.h"

#include "chat/jinja/failure.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

Value MacroObject::call(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.call_macro(*this, arguments, interpreter.autoescape());
}

bool MacroObject::attribute(Interpreter&, std::string_view name, Value& out) {
  if (name == "name") {
    out = macro.anonymous ? Value() : Value(macro.name);
  } else if (name == "arguments") {
    std::vector<Value> names(macro.arguments.begin(), macro.arguments.end());
    out = Value::tuple(std::move(names));
  } else if (name == "catch_kwargs") {
    out = Value(macro.accesses_kwargs);
  } else if (name == "catch_varargs") {
    out = Value(macro.accesses_varargs);
  } else if (name == "caller") {
    out = Value(macro.accesses_caller);
  } else if (name == "explicit_caller") {
    bool is_explicit = false;
    for (const std::string& argument : macro.arguments) is_explicit = is_explicit || argument == "caller";
    out = Value(is_explicit);
  } else {
    return false;
  }
  return true;
}

std::string MacroObject::repr(Interpreter*) const {
  return macro.anonymous ? "<Macro anonymous>" : fmt::format("<Macro {}>", quote(macro.name));
}

bool LoopSource::next(Value& out) {
  if (loop_.condition == nullptr) return iteration_.next(out);
  return interpreter_.next_filtered(loop_, definition_, own_, iteration_, out);
}

LoopObject::LoopObject(Interpreter& interpreter, const Statement& loop, const Value& iterable, int depth,
                       Activation* definition)
    : loop_(loop),
      iterable_(iterable),
      source_(interpreter, loop, iterable, definition),
      definition_(definition),
      depth0_(depth) {}

bool LoopObject::pull(Value& out) {
  if (!drained_) return source_.next(out);
  if (drained_position_ >= rest_.size()) return false;
  out = rest_[drained_position_++];
  return true;
}

bool LoopObject::next(Value& item) {
  if (has_after_) {
    item = std::move(after_);
    has_after_ = false;
  } else if (!pull(item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(current_);
  current_ = item;
  return true;
}

bool LoopObject::iterate_next(Value& out) {
  Value item;
  if (!next(item)) return false;
  out = Value::tuple({item, Value(Kind::callable, this)});
  return true;
}

bool LoopObject::peek() {
  if (!has_after_) has_after_ = pull(after_);
  return has_after_;
}

int64_t LoopObject::length(Interpreter*) {
  if (length_ >= 0) return length_;
  if (loop_.condition == nullptr) length_ = length_or_negative(iterable_);
  if (length_ < 0) {
    std::vector<Value> rest;
    Value item;
    while (pull(item)) rest.push_back(item);
    rest_ = std::move(rest);
    drained_ = true;
    drained_position_ = 0;
    length_ = static_cast<int64_t>(rest_.size()) + index0_ + 1 + (has_after_ ? 1 : 0);
  }
  return length_;
}

Value LoopObject::cycle(Arguments& arguments) {
  if (!arguments.keywords.empty()) type_error("cycle() takes no keyword arguments");
  if (arguments.positional.empty()) type_error("no items for cycling given");
  return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
}

Value LoopObject::changed(Interpreter& interpreter, Arguments& arguments) {
  if (!arguments.keywords.empty()) type_error("changed() takes no keyword arguments");
  if (last_changed_.has_value() && last_changed_->size() == arguments.positional.size()) {
    bool same = true;
    for (size_t i = 0; i < last_changed_->size() && same; ++i)
      same = (*last_changed_)[i].same(arguments.positional[i]) ||
             equals((*last_changed_)[i], arguments.positional[i]);
    if (same) return Value(false);
  }
  for (const Value& value : arguments.positional) {
    // `loop.changed(loop)`, or something that holds the loop
    if (value.object() == nullptr || value.is_string()) continue;
    interpreter.remember(Value(Kind::callable, this));
    break;
  }
  last_changed_ = arguments.positional;
  return Value(true);
}

bool LoopObject::attribute(Interpreter&, std::string_view name, Value& out) {
  const auto method = [this](std::string_view method_name, FunctionObject::Body body) {
    return Value(Kind::callable,
                 new FunctionObject(method_name, Value(Kind::callable, this), body, "method"));
  };
  if (name == "index") {
    out = Value(index0_ + 1);
  } else if (name == "index0") {
    out = Value(index0_);
  } else if (name == "first") {
    out = Value(index0_ == 0);
  } else if (name == "last") {
    out = Value(!peek());
  } else if (name == "length") {
    out = Value(length(nullptr));
  } else if (name == "revindex") {
    out = Value(length(nullptr) - index0_);
  } else if (name == "revindex0") {
    out = Value(length(nullptr) - index0_ - 1);
  } else if (name == "depth") {
    out = Value(static_cast<int64_t>(depth0_ + 1));
  } else if (name == "depth0") {
    out = Value(static_cast<int64_t>(depth0_));
  } else if (name == "previtem") {
    out = index0_ == 0 ? Value::undefined_hint("there is no previous item") : before_;
  } else if (name == "nextitem") {
    out = peek() ? after_ : Value::undefined_hint("there is no next item");
  } else if (name == "cycle") {
    out = method("cycle", [](Interpreter&, const Value& self, Arguments& a) {
      return self.as<LoopObject>().cycle(a);
    });
  } else if (name == "changed") {
    out = method("changed", [](Interpreter& i, const Value& self, Arguments& a) {
      return self.as<LoopObject>().changed(i, a);
    });
  } else {
    return false;
  }
  return true;
}

std::string LoopObject::repr(Interpreter*) const {
  auto& self = const_cast<LoopObject&>(*this);  // len() may have to drain the source
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, self.length(nullptr));
}

Value LoopObject::call(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.positional.size() + arguments.keywords.size() != 1)
    type_error("loop() takes one argument, the iterable of the inner loop");
  if (!loop_.recursive) type_error("The loop must have the 'recursive' marker to be called recursively.");
  const Value& iterable =
      arguments.positional.empty() ? arguments.keywords[0].second : arguments.positional[0];
  return interpreter.render_recursive_loop(loop_, definition_, iterable, depth0_ + 1);
}

Value TemplateSelfObject::call(Interpreter&, Arguments&) {
  type_error("'TemplateReference' object is not callable");
}

bool TemplateSelfObject::item(Interpreter& interpreter, std::string_view name, Value& out) {
  const BlockDefinition* block = interpreter.tree()->block(name);
  if (block == nullptr) return false;
  out = Value(Kind::callable, new BlockReferenceObject(std::string(name), *block, context_));
  return true;
}

Value BlockReferenceObject::call(Interpreter& interpreter, Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.keywords.empty()) type_error("a block takes no arguments");
  return interpreter.render_block(block_, context_);
}

bool BlockReferenceObject::attribute(Interpreter&, std::string_view name, Value& out) {
  if (name == "name") {
    out = Value(name_);
    return true;
  }
  if (name == "super") {
    out = Value::undefined_hint(fmt::format("there is no parent block called {}.", quote(name_)));
    return true;
  }
  return false;
}

}  // namespace kvasir::jinja
