// Runs a resolved template.
#pragma once

#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/budget.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/value.h"

namespace kvasir::jinja {

// The variables a template can look up by name.
struct Context {
  std::unordered_map<std::string, Value> given;  // of the caller, and the locals of a scoped block
  std::unordered_map<std::string, Value> set;    // assigned at the top level
};

// The variables of one running function.
struct Activation {
  Activation* parent = nullptr;
  Context* context = nullptr;
  std::vector<Value> slots;
  bool captured = false;  // a macro, loop or iterator may outlive the call
};

enum class Flow : uint8_t { normal, break_loop, continue_loop };

// Half-open range of bytes of the output.
struct ByteSpan {
  size_t begin, end;
};

class MacroObject;
class LoopObject;

class Interpreter {
 public:
  // `tree` may be null (only constant expressions are evaluated then).
  Interpreter(const TemplateTree* tree, std::unordered_map<std::string, Value> variables, std::time_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render();

  // The line that runs, for error messages.
  int line() const { return line_; }
  const std::vector<ByteSpan>& generation_spans() const { return generation_spans_; }
  std::time_t now() const { return now_; }
  bool autoescape() const { return autoescape_; }

  Value call(const Value& callee, Arguments& arguments);
  Value get_attribute(const Value& object, const Value& name);
  Value get_item(const Value& object, const Value& key);
  Value apply_filter(const Value& name, const Value& operand, Arguments& arguments);
  bool apply_test(const Value& name, const Value& operand, Arguments& arguments);

  // The value of an expression without names and calls, or nullopt.
  std::optional<Value> constant(const Expression& expression, bool autoescape);

  // For the objects that templates hold.
  Value call_macro(MacroObject& macro, Arguments& arguments, std::optional<bool> autoescape);
  Value render_recursive_loop(const Statement& loop, Activation* parent, const Value& iterable, int depth);
  Value render_block(const BlockDefinition& block, Context* context);
  // The next item of `source` that passes the loop's `if`; `own` is the filter's activation, made on the
  // first call.
  bool next_filtered(const Statement& loop, Activation* parent, std::unique_ptr<Activation>& own,
                     Iteration& source, Value& out);
  const TemplateTree* tree() const { return tree_; }
  // An object that may be part of a reference cycle (namespaces, some loops): it is emptied when the render
  // ends.
  void remember(Value object) { remembered_.push_back(std::move(object)); }

 private:
  friend class FunctionCall;

  Value evaluate(const Expression& node);
  Value evaluate_name(const Expression& node);
  Value evaluate_compare(const Expression& node);
  Value evaluate_concat(const Expression& node);
  Value evaluate_call(const Expression& node, const Value* caller);
  Value evaluate_filter(const Expression& node, const Value* operand);
  bool evaluate_test(const Expression& node);
  Arguments evaluate_arguments(const CallArguments* arguments);

  Flow execute(const Body& body);
  Flow execute(const Statement& node);
  Flow execute_for(const Statement& node);
  Flow run_loop(const Statement& node, const Value& iterable, int depth, Activation* definition);
  Flow execute_assign(const Statement& node);
  Flow execute_autoescape(const Statement& node);
  void execute_output(const Statement& node);
  void execute_macro(const Statement& node);
  Flow execute_call_block(const Statement& node);
  void execute_block(const Statement& node);

  void assign(const Expression& target, const Value& value);
  Value target_value(const Expression& target);
  void enter(const Scope& scope);
  void leave(const Scope& scope);
  Value& slot(const Slot& where);
  Value resolve(const std::string& name);
  // Keeps an activation (and those around it) until the render ends: something refers to it.
  void capture(Activation* activation);
  Value make_macro(const Macro& macro, const Statement& node);
  Value wrap_output(std::string text, OutputMode mode);

  void write(std::string_view text);
  // Writes the text of a value that has to be a string already (the results of calls and filter blocks).
  void write_text(const Value& value);

  // Output captured between begin and end.
  class Capture {
   public:
    explicit Capture(Interpreter& interpreter);
    ~Capture();
    std::string take();

   private:
    Interpreter& interpreter_;
    std::string text_;
    std::string* outer_;
  };

  const TemplateTree* tree_;
  Budget* budget_;
  std::deque<Context> contexts_;
  Activation* activation_ = nullptr;
  std::vector<std::unique_ptr<Activation>> kept_;
  std::vector<Value> remembered_;
  std::string output_;
  std::string* sink_ = &output_;
  size_t buffered_ = 0;
  std::vector<ByteSpan> generation_spans_;
  std::time_t now_;
  int line_ = 1;
  int call_depth_ = 0;
  bool autoescape_ = false;
  bool folding_ = false;
};

// Replaces constant parts of expressions by their values, when a template is parsed.
class ConstantFolder {
 public:
  explicit ConstantFolder(ConstantPool& pool);
  void fold(ExpressionPtr& node, bool autoescape);
  // The same for an expression whose text is printed.
  void fold_printed(ExpressionPtr& node, bool autoescape);
  // Inside {% autoescape %} with a setting that is not constant: the value that is printed, if it is known
  // already. Filters and tests are not tried then.
  std::optional<Value> constant_without_filters(Expression& node, bool autoescape);

 private:
  bool mark(Expression& node);
  void replace(ExpressionPtr& node, bool autoescape);

  ConstantPool& pool_;
  bool without_filters_ = false;
  Interpreter interpreter_;
};

// attributes.cc: what `object.name` finds before it looks for an item.
struct MethodEntry {
  std::string_view name;
  Value (*apply)(Interpreter&, const Value& self, Arguments&);
};
enum class AttributeKind { none, value, method, forbidden };
// For `method`, *method is set; for `value`, *out.
AttributeKind find_attribute(Interpreter& interpreter, const Value& object, std::string_view name, Value* out,
                             const MethodEntry** method);
Value bind_method(const Value& self, const MethodEntry* method);
const MethodEntry* find_string_method(std::string_view name);

// format.cc: `text % operand`.
Value format_percent(const Value& text, const Value& operand);
// str.format of a template's string: attributes are looked up through the sandbox.
Value format_braces(Interpreter& interpreter, const Value& text, const std::vector<Value>& positional,
                    const std::vector<std::pair<std::string, Value>>& keywords, const Value* mapping);

// globals.cc: the functions that every template can call; false if there is none of this name.
bool find_global(const std::string& name, Value& out);

}  // namespace kvasir::jinja
