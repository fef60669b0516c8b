// The tables of filters and tests.
#pragma once

#include <initializer_list>
#include <string_view>

#include "chat/jinja/value.h"

namespace kvasir::jinja {

class Interpreter;

struct FilterEntry {
  std::string_view name;
  // `map`, `select` ... call other filters and tests of the running template: never folded into a constant.
  bool needs_context;
  Value (*apply)(Interpreter&, const Value& operand, Arguments&);
};

struct TestEntry {
  std::string_view name;
  bool (*apply)(Interpreter&, const Value& operand, Arguments&);
};

// Null if there is no such filter (test).
const FilterEntry* find_filter(std::string_view name);
const TestEntry* find_test(std::string_view name);
// All names, for documentation and tests.
std::vector<std::string_view> filter_names();
std::vector<std::string_view> test_names();

// Binds the arguments of a call to a built-in function's parameters. Throws TypeError for missing, surplus,
// repeated or unknown ones.
class Parameters {
 public:
  // positional_only: the first so many parameters cannot be given by name.
  Parameters(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> names,
             size_t required, size_t positional_only = 0);

  bool has(size_t index) const { return !values_[index].is_missing(); }
  const Value& operator[](size_t index) const { return values_[index]; }
  Value get(size_t index, const Value& otherwise) const { return has(index) ? values_[index] : otherwise; }
  bool flag(size_t index, bool otherwise) const;

 private:
  std::vector<Value> values_;
};

// filters_*.cc: each part adds its entries.
void add_text_filters(std::vector<FilterEntry>& table);
void add_sequence_filters(std::vector<FilterEntry>& table);
void add_number_filters(std::vector<FilterEntry>& table);
void add_markup_filters(std::vector<FilterEntry>& table);
void add_layout_filters(std::vector<FilterEntry>& table);
Value apply_tojson(Interpreter&, const Value& operand, Arguments&);

}  // namespace kvasir::jinja
