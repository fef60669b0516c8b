// The objects that a running template makes of its own statements: macros, loops, blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/jinja/failure.h"
#include "chat/jinja/interpreter.h"

namespace kvasir::jinja {

class MacroObject : public CallableObject {
 public:
  MacroObject(const Macro& definition, const Statement& node, Activation* where, bool escapes)
      : macro(definition), statement(node), parent(where), default_autoescape(escapes) {}
  std::string_view type_name() const override { return "Macro"; }
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  bool attribute(Interpreter& interpreter, std::string_view name, Value& out) override;
  std::string repr(Interpreter*) const override;

  const Macro& macro;
  const Statement& statement;
  Activation* parent;
  bool default_autoescape;
};

// What a loop walks over: the items of its iterable that pass its `if`.
class LoopSource {
 public:
  LoopSource(Interpreter& interpreter, const Statement& loop, const Value& iterable, Activation* definition)
      : interpreter_(interpreter), loop_(loop), definition_(definition), iteration_(iterable) {}
  bool next(Value& out);

 private:
  Interpreter& interpreter_;
  const Statement& loop_;
  Activation* definition_;
  Iteration iteration_;
  std::unique_ptr<Activation> own_;
};

// The `loop` variable.
class LoopObject : public CallableObject {
 public:
  LoopObject(Interpreter& interpreter, const Statement& loop, const Value& iterable, int depth,
             Activation* definition);
  bool next(Value& item);

  std::string_view type_name() const override { return "LoopContext"; }
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  bool attribute(Interpreter& interpreter, std::string_view name, Value& out) override;
  std::string repr(Interpreter*) const override;
  int64_t length(Interpreter*) override;
  // Walking over `loop` itself takes the loop's own items, each with the loop.
  bool is_iterable() const override { return true; }
  bool iterate_next(Value& out) override;

  Value cycle(Arguments& arguments);
  Value changed(Interpreter& interpreter, Arguments& arguments);
  void break_cycles() override { last_changed_.reset(); }

 private:
  bool peek();

  const Statement& loop_;
  Value iterable_;
  LoopSource source_;
  Activation* definition_;
  int depth0_;
  int64_t index0_ = -1;
  int64_t length_ = -1;
  bool has_after_ = false;
  bool drained_ = false;
  size_t drained_position_ = 0;
  std::vector<Value> rest_;
  Value after_, current_ = Value::missing(), before_ = Value::missing();
  std::optional<std::vector<Value>> last_changed_;

  bool pull(Value& out);
};

// `self` and `self.name`, `super`.
class TemplateSelfObject : public CallableObject {
 public:
  explicit TemplateSelfObject(Context* where) : context_(where) {}
  std::string_view type_name() const override { return "TemplateReference"; }
  bool is_callable() const override { return false; }
  Value call(Interpreter&, Arguments&) override;
  bool item(Interpreter& interpreter, std::string_view name, Value& out) override;
  std::string repr(Interpreter*) const override { return "<TemplateReference None>"; }
  // Python tries to walk anything with a subscript, and fails at the first item.
  bool is_iterable() const override { return true; }
  bool iterate_next(Value&) override { fail(FailureKind::key_error, "0"); }

 private:
  Context* context_;
};

class BlockReferenceObject : public CallableObject {
 public:
  BlockReferenceObject(std::string block_name, const BlockDefinition& definition, Context* where)
      : name_(std::move(block_name)), block_(definition), context_(where) {}
  std::string_view type_name() const override { return "BlockReference"; }
  Value call(Interpreter& interpreter, Arguments& arguments) override;
  bool attribute(Interpreter& interpreter, std::string_view name, Value& out) override;

 private:
  std::string name_;
  const BlockDefinition& block_;
  Context* context_;
};

// A built-in function or method with its own state captured in a closure.
class FunctionObject : public CallableObject {
 public:
  using Body = Value (*)(Interpreter&, const Value& self, Arguments&);
  FunctionObject(std::string_view function_name, Value self, Body body, std::string_view type)
      : name_(function_name), self_(std::move(self)), body_(body), type_(type) {}
  std::string_view type_name() const override { return type_; }
  Value call(Interpreter& interpreter, Arguments& arguments) override {
    return body_(interpreter, self_, arguments);
  }
  const Value& self() const { return self_; }

 private:
  std::string_view name_;
  Value self_;
  Body body_;
  std::string_view type_;
};

}  // namespace kvasir::jinja
