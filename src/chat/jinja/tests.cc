// The tests of `is`, and the look-up of filters and tests by name.
#include <algorithm>
#include <unordered_map>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

template <bool (*Test)(const Value&)>
bool unary(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("test", arguments, {}, 0);
  return Test(operand);
}

template <bool (*Test)(const Value&, const Value&)>
bool binary(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("test", arguments, {"other"}, 1);
  return Test(operand, p[0]);
}

Value remainder(const Value& value, const Value& divisor) {
  if (value.is_string()) return format_percent(value, divisor);
  return arithmetic(Binary::modulo, value, divisor);
}

bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_boolean(const Value& v) {
  return v.is(Kind::boolean);
}
bool is_true(const Value& v) {
  return v.is(Kind::boolean) && v.boolean();
}
bool is_false(const Value& v) {
  return v.is(Kind::boolean) && !v.boolean();
}
bool is_integer(const Value& v) {
  return v.is_integer() && !v.is(Kind::boolean);
}
bool is_float(const Value& v) {
  return v.is(Kind::floating);
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_string(const Value& v) {
  return v.is_string();
}
bool is_mapping(const Value& v) {
  return v.is(Kind::dict);
}
bool is_iterable_value(const Value& v) {
  return is_iterable(v);
}
bool is_callable(const Value& v) {
  return v.is_undefined() || (v.is(Kind::callable) && v.callable().is_callable());
}
bool is_escaped(const Value& v) {
  return v.is_markup();
}
bool is_lower_text(const Value& v) {
  return text_is_lower(to_text(v));
}
bool is_upper_text(const Value& v) {
  return text_is_upper(to_text(v));
}
bool is_odd(const Value& v) {
  return equals(remainder(v, Value(2)), Value(1));
}
bool is_even(const Value& v) {
  return equals(remainder(v, Value(2)), Value(0));
}
bool is_sequence(const Value& v) {
  // len() and a subscript
  switch (v.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
      return true;
    default:
      return false;
  }
}

bool divisible(const Value& v, const Value& by) {
  return equals(remainder(v, by), Value(0));
}
bool equal(const Value& a, const Value& b) {
  return equals(a, b);
}
bool not_equal(const Value& a, const Value& b) {
  return !equals(a, b);
}
bool less(const Value& a, const Value& b) {
  return compare(a, b, Order::less);
}
bool less_equal(const Value& a, const Value& b) {
  return compare(a, b, Order::less_equal);
}
bool greater(const Value& a, const Value& b) {
  return compare(a, b, Order::greater);
}
bool greater_equal(const Value& a, const Value& b) {
  return compare(a, b, Order::greater_equal);
}
bool same(const Value& a, const Value& b) {
  return a.same(b);
}
bool in(const Value& a, const Value& b) {
  return contains(b, a);
}

bool is_filter(const Value& v) {
  hash_value(v);
  return v.is_string() && find_filter(v.text()) != nullptr;
}
bool is_test(const Value& v) {
  hash_value(v);
  return v.is_string() && find_test(v.text()) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"defined", unary<is_defined>},
    {"undefined", unary<is_undefined>},
    {"none", unary<is_none>},
    {"boolean", unary<is_boolean>},
    {"true", unary<is_true>},
    {"false", unary<is_false>},
    {"integer", unary<is_integer>},
    {"float", unary<is_float>},
    {"number", unary<is_number>},
    {"string", unary<is_string>},
    {"mapping", unary<is_mapping>},
    {"sequence", unary<is_sequence>},
    {"iterable", unary<is_iterable_value>},
    {"callable", unary<is_callable>},
    {"escaped", unary<is_escaped>},
    {"lower", unary<is_lower_text>},
    {"upper", unary<is_upper_text>},
    {"odd", unary<is_odd>},
    {"even", unary<is_even>},
    {"divisibleby", binary<divisible>},
    {"filter", unary<is_filter>},
    {"test", unary<is_test>},
    {"sameas", binary<same>},
    {"in", binary<in>},
    {"==", binary<equal>},
    {"eq", binary<equal>},
    {"equalto", binary<equal>},
    {"!=", binary<not_equal>},
    {"ne", binary<not_equal>},
    {"<", binary<less>},
    {"lt", binary<less>},
    {"lessthan", binary<less>},
    {"<=", binary<less_equal>},
    {"le", binary<less_equal>},
    {">", binary<greater>},
    {"gt", binary<greater>},
    {"greaterthan", binary<greater>},
    {">=", binary<greater_equal>},
    {"ge", binary<greater_equal>},
};

const std::vector<FilterEntry>& filters() {
  static const std::vector<FilterEntry> table = [] {
    std::vector<FilterEntry> entries;
    add_text_filters(entries);
    add_sequence_filters(entries);
    add_number_filters(entries);
    add_markup_filters(entries);
    add_layout_filters(entries);
    entries.push_back({"tojson", false, apply_tojson});
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }();
  return table;
}

}  // namespace

const FilterEntry* find_filter(std::string_view name) {
  const std::vector<FilterEntry>& table = filters();
  const auto it = std::lower_bound(table.begin(), table.end(), name,
                                   [](const FilterEntry& e, std::string_view n) { return e.name < n; });
  return it != table.end() && it->name == name ? &*it : nullptr;
}

const TestEntry* find_test(std::string_view name) {
  for (const TestEntry& entry : kTests)
    if (entry.name == name) return &entry;
  return nullptr;
}

std::vector<std::string_view> filter_names() {
  std::vector<std::string_view> names;
  for (const FilterEntry& entry : filters()) names.push_back(entry.name);
  return names;
}

std::vector<std::string_view> test_names() {
  std::vector<std::string_view> names;
  for (const TestEntry& entry : kTests) names.push_back(entry.name);
  return names;
}

}  // namespace kvasir::jinja
