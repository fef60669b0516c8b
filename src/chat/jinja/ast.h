// The parsed template. The parser makes it, the resolver (resolver.h) fills in where variables live, the
// interpreter walks it; after that it never changes, so renders on several threads share it.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/operations.h"
#include "chat/jinja/value.h"

namespace kvasir::jinja {

// A variable: `hops` functions outwards from the one that runs, then the slot in its activation.
struct Slot {
  int hops = 0;
  int index = -1;
};

enum class ExpressionKind : uint8_t {
  constant,
  template_data,
  name,
  namespace_target,  // ns.attribute on the left of a set
  tuple,
  list,
  dict,         // children: key, value, key, value ...
  conditional,  // children: test, then, [else]
  binary,
  negate,
  positive,
  logical_not,
  logical_and,
  logical_or,
  compare,  // children: first operand, then one per operator
  concat,
  get_attribute,
  get_item,
  slice,      // children: object, start, stop, step (null: absent); the slice operator itself
  slice_key,  // children: start, stop, step: a slice inside a tuple of subscripts
  call,
  filter,  // children[0]: the operand, null inside a filter block
  test,
};

enum class CompareOperator : uint8_t {
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in
};

struct FilterEntry;
struct TestEntry;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr positional_pack;  // *args
  ExpressionPtr keyword_pack;     // **kwargs
};

enum class NameUse : uint8_t { load, store, parameter };

struct Expression {
  Expression(ExpressionKind of, int at) : kind(of), line(at) {}
  ExpressionKind kind;
  Binary binary = Binary::add;
  NameUse use = NameUse::load;
  bool may_fold = false;  // could be constant (decided while resolving)
  int line;
  int depth = 1;
  Value value;       // constant
  std::string name;  // name, attribute, filter, test, template data
  Value name_value;  // the name as an (immortal) string value: keys of attribute look-ups
  std::vector<ExpressionPtr> children;
  std::vector<CompareOperator> operators;
  std::unique_ptr<CallArguments> arguments;
  Slot slot;
  const FilterEntry* filter = nullptr;  // null: unknown, fails when it is executed
  const TestEntry* test = nullptr;
  bool always_assigned = false;  // a loop variable or argument: unassigned only after its scope has ended
  bool markup_join = false;      // concat inside {% autoescape true %}
};

enum class StatementKind : uint8_t {
  output,
  assign,
  assign_block,
  for_loop,
  if_chain,
  with,
  autoescape,
  macro,
  call_block,
  filter_block,
  block,
  break_loop,
  continue_loop,
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

// What entering a scope does to a slot (and leaving it resets).
struct SlotLoad {
  enum class From : uint8_t { undefined, resolve, alias };
  Slot target;
  From from;
  std::string name;  // resolve: looked up in the template's context
  Slot source;       // alias
};

struct Scope {
  std::vector<SlotLoad> loads;
  std::vector<Slot> leave;  // slots that become unassigned when the scope ends
};

// One function of the template: the root, a block, a macro or call block, a recursive loop, a loop's filter.
struct Function {
  int slot_count = 0;
};

struct Macro {
  std::string name;  // empty: the body of a call block
  bool anonymous = false;
  std::vector<std::string> arguments;
  std::vector<Slot> argument_slots;
  std::vector<ExpressionPtr> defaults;  // for the last arguments
  std::vector<ExpressionPtr> targets;   // the argument names, as the parser saw them
  bool accesses_caller = false, accesses_kwargs = false, accesses_varargs = false;
  Slot caller_slot, kwargs_slot, varargs_slot;
  Function function;
  Scope scope;
};

enum class OutputMode : uint8_t { plain, escape, at_run_time };

struct Statement {
  Statement(StatementKind of, int at) : kind(of), line(at) {}
  StatementKind kind;
  OutputMode mode = OutputMode::plain;  // output, and how captured text is wrapped
  bool store_in_context = false;        // assign, macro: at top level
  bool generation = false;              // call_block made by {% generation %}
  int line;
  int depth = 1;
  std::vector<ExpressionPtr> expressions;  // output
  ExpressionPtr target, value;  // assign, for (target, iterable), filter chain, call, autoescape value
  ExpressionPtr condition;      // for ... if
  std::vector<std::pair<ExpressionPtr, Body>> branches;  // if, elif; the condition of else is null
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;  // with
  Body body, otherwise;
  std::vector<std::string> namespaces;  // assign: the checked targets
  std::vector<Slot> namespace_slots;
  std::vector<std::pair<std::string, Slot>> exported;  // assign: names that go into the context
  Scope scope, else_scope, test_scope;
  std::unique_ptr<Macro> macro;
  Slot slot;  // macro: its name; for: `loop`
  // for
  bool recursive = false, extended = false;
  std::unique_ptr<Function> loop_function, filter_function;
  ExpressionPtr filter_target_expression;
  // block
  std::string name;
  bool scoped = false, required = false;
  std::vector<std::pair<std::string, Slot>> scoped_names;
};

struct BlockDefinition {
  Statement* statement = nullptr;
  Function function;
  Scope scope;
  bool uses_self = false, uses_super = false;
  Slot self_slot, super_slot;
};

struct TemplateTree {
  ConstantPool constants;  // first, so that it goes last: the expressions below refer to it
  Body body;
  Function function;
  Scope scope;
  bool uses_self = false;
  bool has_generation = false;      // some {% generation %}
  std::set<std::string> variables;  // names that are looked up in the context
  Slot self_slot;
  std::vector<std::pair<std::string, std::unique_ptr<BlockDefinition>>> blocks;

  const BlockDefinition* block(std::string_view name) const {
    for (const auto& [block_name, definition] : blocks)
      if (block_name == name) return definition.get();
    return nullptr;
  }
};

}  // namespace kvasir::jinja
