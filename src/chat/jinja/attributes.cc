// What `object.name` finds: methods, a few plain attributes, and the names that the sandbox forbids.
#include <algorithm>
#include <cmath>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/runtime_objects.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// Attributes of every Python object, and of its containers: they exist, so reading them is forbidden (and not
// merely undefined) for templates.
constexpr std::string_view kSpecialNames[] = {"__add__",         "__class__",      "__class_getitem__",
                                              "__contains__",    "__delattr__",    "__delitem__",
                                              "__dir__",         "__doc__",        "__eq__",
                                              "__format__",      "__ge__",         "__getattribute__",
                                              "__getitem__",     "__getnewargs__", "__getstate__",
                                              "__gt__",          "__hash__",       "__iadd__",
                                              "__imul__",        "__init__",       "__init_subclass__",
                                              "__ior__",         "__iter__",       "__le__",
                                              "__len__",         "__lt__",         "__mod__",
                                              "__mul__",         "__ne__",         "__new__",
                                              "__or__",          "__reduce__",     "__reduce_ex__",
                                              "__repr__",        "__reversed__",   "__rmod__",
                                              "__rmul__",        "__ror__",        "__setattr__",
                                              "__setitem__",     "__sizeof__",     "__str__",
                                              "__subclasshook__"};

bool is_special_name(std::string_view name) {
  return std::find(std::begin(kSpecialNames), std::end(kSpecialNames), name) != std::end(kSpecialNames);
}

using Method = Value (*)(Interpreter&, const Value&, Arguments&);

Value dict_view(const Value& self, Arguments& arguments, DictViewObject::Part part, std::string_view name) {
  Parameters(name, arguments, {}, 0);
  return Value(Kind::dict_view, new DictViewObject(self, part));
}

Value dict_get(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("get", arguments, {"key", "default"}, 1, 2);
  if (p[0].is(Kind::list) || p[0].is(Kind::dict)) type_error("unhashable type: '{}'", type_name(p[0]));
  const Value* found = self.dictionary().find(p[0]);
  return found != nullptr ? *found : p.get(1, Value());
}

Value dict_fromkeys(Interpreter&, const Value&, Arguments& arguments) {
  const Parameters p("fromkeys", arguments, {"iterable", "value"}, 1, 2);
  Value dict = Value::dict();
  Iteration keys(p[0]);
  Value key;
  while (keys.next(key)) dict.dictionary().set(key, p.get(1, Value()));
  return dict;
}

Value dict_copy(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("copy", arguments, {}, 0);
  Value dict = Value::dict();
  for (const auto& [k, v] : self.dictionary().entries) dict.dictionary().set(k, v);
  return dict;
}

constexpr MethodEntry kDictMethods[] = {
    {"get", dict_get},
    {"keys", [](Interpreter&, const Value& s,
                Arguments& a) { return dict_view(s, a, DictViewObject::Part::keys, "keys"); }},
    {"values", [](Interpreter&, const Value& s,
                  Arguments& a) { return dict_view(s, a, DictViewObject::Part::values, "values"); }},
    {"items", [](Interpreter&, const Value& s,
                 Arguments& a) { return dict_view(s, a, DictViewObject::Part::items, "items"); }},
    {"copy", dict_copy},
    {"fromkeys", dict_fromkeys},
};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

Value sequence_count(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("count", arguments, {"value"}, 1, 1);
  int64_t count = 0;
  Iteration items(self);
  Value item;
  while (items.next(item)) count += item.same(p[0]) || equals(item, p[0]) ? 1 : 0;
  return Value(count);
}

Value sequence_index(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("index", arguments, {"value", "start", "stop"}, 1, 3);
  const int64_t size = length(self);
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!p.has(i)) return otherwise;
    int64_t at = as_index(p[i], "index()", true);
    if (at < 0) at = std::max<int64_t>(at + size, 0);
    return at;
  };
  const int64_t start = bound(1, 0), stop = bound(2, size);
  Iteration items(self);
  Value item;
  for (int64_t i = 0; items.next(item); ++i)
    if (i >= start && i < stop && (item.same(p[0]) || equals(item, p[0]))) return Value(i);
  if (self.is(Kind::tuple)) value_error("tuple.index(x): x not in tuple");
  value_error("{} is not in {}", repr(p[0]), type_name(self));
}

constexpr MethodEntry kListMethods[] = {
    {"index", sequence_index},
    {"count", sequence_count},
    {"copy",
     [](Interpreter&, const Value& self, Arguments& a) {
       Parameters("copy", a, {}, 0);
       return Value::list(self.items());
     }},
};
constexpr std::string_view kListMutators[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
constexpr MethodEntry kTupleMethods[] = {{"index", sequence_index}, {"count", sequence_count}};

Value bit_length(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("bit_length", arguments, {}, 0);
  return Value(static_cast<int64_t>(as_big(self).bits()));
}

Value bit_count(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("bit_count", arguments, {}, 0);
  const std::string bits = as_big(self).to_string(2);
  return Value(static_cast<int64_t>(std::count(bits.begin(), bits.end(), '1')));
}

Value conjugate(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("conjugate", arguments, {}, 0);
  return positive(self);
}

Value integer_ratio(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("as_integer_ratio", arguments, {}, 0);
  if (self.is_integer()) return Value::tuple({positive(self), Value(1)});
  const double value = self.floating();
  if (std::isnan(value)) value_error("cannot convert NaN to integer ratio");
  if (std::isinf(value)) fail(FailureKind::overflow_error, "cannot convert Infinity to integer ratio");
  int exponent = 0;
  double fraction = std::frexp(value, &exponent);
  for (; fraction != std::floor(fraction); --exponent) fraction *= 2;
  Value numerator = float_to_integer(fraction), denominator(1);
  const Value factor = power(Value(2), Value(static_cast<int64_t>(std::abs(exponent))));
  if (exponent > 0)
    numerator = arithmetic(Binary::multiply, numerator, factor);
  else
    denominator = factor;
  return Value::tuple({numerator, denominator});
}

Value bytes_refused(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported, "bytes are not supported in chat templates");
}

Value is_integer(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("is_integer", arguments, {}, 0);
  return Value(std::isfinite(self.floating()) && self.floating() == std::floor(self.floating()));
}

Value float_hex(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("hex", arguments, {}, 0);
  const double value = self.floating();
  if (!std::isfinite(value)) return Value(float_repr(value));
  if (value == 0) return Value(std::signbit(value) ? "-0x0.0p+0" : "0x0.0p+0");
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.13a", value);
  return Value(std::string(buffer));
}

constexpr MethodEntry kIntegerMethods[] = {{"bit_length", bit_length},  {"bit_count", bit_count},
                                           {"conjugate", conjugate},    {"as_integer_ratio", integer_ratio},
                                           {"to_bytes", bytes_refused}, {"from_bytes", bytes_refused}};
constexpr MethodEntry kFloatMethods[] = {{"is_integer", is_integer},
                                         {"hex", float_hex},
                                         {"conjugate", conjugate},
                                         {"as_integer_ratio", integer_ratio}};

template <size_t N>
const MethodEntry* find_in(const MethodEntry (&table)[N], std::string_view name) {
  for (const MethodEntry& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

template <size_t N>
bool listed(const std::string_view (&table)[N], std::string_view name) {
  return std::find(std::begin(table), std::end(table), name) != std::end(table);
}

}  // namespace

AttributeKind find_attribute(Interpreter& interpreter, const Value& object, std::string_view name, Value* out,
                             const MethodEntry** method) {
  const auto value = [&](Value found) {
    if (out != nullptr) *out = std::move(found);
    return AttributeKind::value;
  };
  const auto found = [&](const MethodEntry* entry) {
    *method = entry;
    return entry != nullptr ? AttributeKind::method : AttributeKind::none;
  };
  if (name.starts_with('_')) {
    if (object.is(Kind::name_space))
      return name == "__class__" ? AttributeKind::forbidden : AttributeKind::none;
    if (is_special_name(name)) return AttributeKind::forbidden;
    if (!object.is_undefined()) return AttributeKind::none;
  }
  switch (object.kind()) {
    case Kind::undefined: {
      raise_undefined(object);
    }
    case Kind::dict:
      if (listed(kDictMutators, name)) return AttributeKind::forbidden;
      return found(find_in(kDictMethods, name));
    case Kind::string:
      return found(find_string_method(name));
    case Kind::list:
      if (listed(kListMutators, name)) return AttributeKind::forbidden;
      return found(find_in(kListMethods, name));
    case Kind::tuple:
      if (object.as<SequenceObject>().is_group) {
        if (name == "grouper") return value(object.items()[0]);
        if (name == "list") return value(object.items()[1]);
      }
      return found(find_in(kTupleMethods, name));
    case Kind::boolean:
    case Kind::integer:
    case Kind::big_integer:
      if (name == "real" || name == "numerator") return value(positive(object));
      if (name == "imag") return value(Value(0));
      if (name == "denominator") return value(Value(1));
      return found(find_in(kIntegerMethods, name));
    case Kind::floating:
      if (name == "real") return value(object);
      if (name == "imag") return value(Value(0.0));
      return found(find_in(kFloatMethods, name));
    case Kind::range:
      if (name == "start") return value(Value(object.range().start));
      if (name == "stop") return value(Value(object.range().stop));
      if (name == "step") return value(Value(object.range().step));
      return found(find_in(kTupleMethods, name));
    case Kind::name_space: {
      const Value* attribute = object.name_space().attributes.dictionary().find(name);
      return attribute != nullptr ? value(*attribute) : AttributeKind::none;
    }
    case Kind::callable: {
      Value attribute;
      if (!object.callable().attribute(interpreter, name, attribute)) return AttributeKind::none;
      return value(std::move(attribute));
    }
    default:
      return AttributeKind::none;
  }
}

Value bind_method(const Value& self, const MethodEntry* method) {
  return Value(Kind::callable,
               new FunctionObject(method->name, self, method->apply, "builtin_function_or_method"));
}

}  // namespace kvasir::jinja
