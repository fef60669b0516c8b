#include "chat/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/number.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

uint64_t mix(uint64_t hash, uint64_t more) {
  hash ^= more + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDULL;
}

uint64_t hash_integer(int64_t value) {
  return mix(0x12345, static_cast<uint64_t>(value));
}

void append_repr(std::string& out, const Value& value);

void append_items(std::string& out, const std::vector<Value>& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, item);
    check_string_size(out.size());
  }
}

void append_repr(std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
      out += "missing";
      return;
    case Kind::none:
      out += "None";
      return;
    case Kind::boolean:
      out += value.boolean() ? "True" : "False";
      return;
    case Kind::integer:
    case Kind::big_integer:
      out += integer_text(value);
      return;
    case Kind::floating:
      out += float_repr(value.floating());
      return;
    case Kind::undefined:
      out += "Undefined";
      return;
    case Kind::string:
      if (value.is_markup()) out += "Markup(";
      out += quote(value.text());
      if (value.is_markup()) out += ')';
      return;
    default:
      break;
  }
  const DepthGuard guard;
  if (Budget* budget = Budget::current(); budget != nullptr) budget->check_stack();
  switch (value.kind()) {
    case Kind::list:
      out += '[';
      append_items(out, value.items());
      out += ']';
      return;
    case Kind::tuple:
      out += '(';
      append_items(out, value.items());
      out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::dict: {
      out += '{';
      bool first = true;
      for (const auto& [k, v] : value.dictionary().entries) {
        if (!first) out += ", ";
        first = false;
        append_repr(out, k);
        out += ": ";
        append_repr(out, v);
        check_string_size(out.size());
      }
      out += '}';
      return;
    }
    case Kind::range: {
      const RangeObject& r = value.range();
      out += r.step == 1 ? fmt::format("range({}, {})", r.start, r.stop)
                         : fmt::format("range({}, {}, {})", r.start, r.stop, r.step);
      return;
    }
    case Kind::dict_view: {
      out += fmt::format("{}([", type_name(value));
      const DictViewObject& view = value.view();
      for (size_t i = 0; i < view.dict.dictionary().entries.size(); ++i) {
        if (i != 0) out += ", ";
        append_repr(out, view.at(i));
      }
      out += "])";
      return;
    }
    case Kind::iterator:
      fail(FailureKind::unsupported,
           "a {} would be printed with its address, which is not reproducible (add |list)", type_name(value));
    case Kind::name_space:
      out += "<Namespace ";
      append_repr(out, value.name_space().attributes);
      out += '>';
      return;
    case Kind::slice:
      out += "slice";
      return;
    default:
      out += value.callable().repr(nullptr);
      return;
  }
}

bool sequences_equal(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  count_work(a.size() * 16);
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].same(b[i]) && !equals(a[i], b[i])) return false;
  return true;
}

bool numbers_equal(const Value& a, const Value& b) {
  if (a.is_small_integer() && b.is_small_integer()) return a.small_integer() == b.small_integer();
  if (a.is(Kind::floating) && b.is(Kind::floating)) return a.floating() == b.floating();
  if (a.is(Kind::floating)) return compare_mixed(as_big(b), a.floating()) == 0;
  if (b.is(Kind::floating)) return compare_mixed(as_big(a), b.floating()) == 0;
  return BigInteger::compare(as_big(a), as_big(b)) == 0;
}

bool ordered(int comparison, Order order) {
  switch (order) {
    case Order::less:
      return comparison < 0;
    case Order::less_equal:
      return comparison <= 0;
    case Order::greater:
      return comparison > 0;
    case Order::greater_equal:
      return comparison >= 0;
  }
  return false;
}

std::string_view symbol(Order order) {
  switch (order) {
    case Order::less:
      return "<";
    case Order::less_equal:
      return "<=";
    case Order::greater:
      return ">";
    case Order::greater_equal:
      return ">=";
  }
  return "";
}
}  // namespace

void raise_undefined(const Value& value) {
  const UndefinedObject& object = value.undefined();
  throw Failure{object.security ? FailureKind::security_error : FailureKind::undefined_error,
                object.message()};
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
      return "missing";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
    case Kind::big_integer:
      return "int";
    case Kind::floating:
      return "float";
    case Kind::undefined:
      return "Undefined";
    case Kind::string:
      return value.is_markup() ? "Markup" : "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return value.as<SequenceObject>().is_group ? "_GroupTuple" : "tuple";
    case Kind::dict:
      return "dict";
    case Kind::range:
      return "range";
    case Kind::dict_view:
      switch (value.view().part) {
        case DictViewObject::Part::keys:
          return "dict_keys";
        case DictViewObject::Part::values:
          return "dict_values";
        case DictViewObject::Part::items:
          return "dict_items";
      }
      return "dict_items";
    case Kind::iterator:
      return value.iterator().type_name();
    case Kind::name_space:
      return "Namespace";
    case Kind::slice:
      return "slice";
    case Kind::callable:
      return value.callable().type_name();
  }
  return "object";
}

std::string qualified_type_name(const Value& value) {
  if (value.is_markup()) return "markupsafe.Markup";
  const std::string_view type = type_name(value);
  if (type == "Namespace") return "transformers.utils.chat_template_utils.TemplateNamespace";
  if (type == "Undefined" || type == "LoopContext" || type == "Macro")
    return fmt::format("jinja2.runtime.{}", type);
  if (type == "Cycler" || type == "Joiner") return fmt::format("jinja2.utils.{}", type);
  if (type == "_GroupTuple") return "jinja2.filters._GroupTuple";
  return std::string(type);
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::none:
    case Kind::undefined:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return value.small_integer() != 0;
    case Kind::big_integer:
      return true;
    case Kind::floating:
      return value.floating() != 0;
    case Kind::string:
      return !value.text().empty();
    case Kind::list:
    case Kind::tuple:
      return !value.items().empty();
    case Kind::dict:
      return !value.dictionary().entries.empty();
    case Kind::range:
      return value.range().length > 0;
    case Kind::dict_view:
      return !value.view().dict.dictionary().entries.empty();
    case Kind::callable:
      return value.callable().length(nullptr) != 0;
    default:
      return true;
  }
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return numbers_equal(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::missing:
    case Kind::none:
    case Kind::undefined:
      return true;
    case Kind::string:
      if (a.text().size() != b.text().size()) return false;
      count_work(a.text().size());
      return a.text() == b.text();
    default:
      break;
  }
  if (a.object() == b.object() && !a.is(Kind::floating)) return true;
  const DepthGuard guard;
  if (Budget* budget = Budget::current(); budget != nullptr) budget->check_stack();
  switch (a.kind()) {
    case Kind::list:
    case Kind::tuple:
      return sequences_equal(a.items(), b.items());
    case Kind::dict: {
      const auto& entries = a.dictionary().entries;
      if (entries.size() != b.dictionary().entries.size()) return false;
      for (const auto& [k, v] : entries) {
        const Value* other = b.dictionary().find(k);
        if (other == nullptr || (!v.same(*other) && !equals(v, *other))) return false;
      }
      return true;
    }
    case Kind::range: {
      const RangeObject &x = a.range(), &y = b.range();
      if (x.length != y.length) return false;
      return x.length == 0 || (x.start == y.start && (x.length == 1 || x.step == y.step));
    }
    case Kind::dict_view: {
      const DictViewObject &x = a.view(), &y = b.view();
      if (x.part != y.part || x.part == DictViewObject::Part::values) return false;
      const auto& entries = x.dict.dictionary().entries;
      if (entries.size() != y.dict.dictionary().entries.size()) return false;
      for (const auto& [k, v] : entries) {
        const Value* other = y.dict.dictionary().find(k);
        if (other == nullptr) return false;
        if (x.part == DictViewObject::Part::items && !equals(v, *other)) return false;
      }
      return true;
    }
    default:
      return false;
  }
}

bool compare(const Value& a, const Value& b, Order order) {
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_small_integer() && b.is_small_integer()) {
      const int64_t x = a.small_integer(), y = b.small_integer();
      return ordered(x < y ? -1 : x > y ? 1 : 0, order);
    }
    if (a.is(Kind::floating) && b.is(Kind::floating)) {
      const double x = a.floating(), y = b.floating();
      if (std::isnan(x) || std::isnan(y)) return false;
      return ordered(x < y ? -1 : x > y ? 1 : 0, order);
    }
    int result = 0;
    if (a.is(Kind::floating)) {
      result = compare_mixed(as_big(b), a.floating());
      if (result != 2) result = -result;
    } else if (b.is(Kind::floating)) {
      result = compare_mixed(as_big(a), b.floating());
    } else {
      result = BigInteger::compare(as_big(a), as_big(b));
    }
    return result != 2 && ordered(result, order);
  }
  if (a.is_string() && b.is_string()) {
    count_work(std::min(a.text().size(), b.text().size()));
    // UTF-8 orders as code points do.
    return ordered(a.text().compare(b.text()), order);
  }
  if (a.kind() == b.kind() && a.is_sequence()) {
    const DepthGuard guard;
    if (Budget* budget = Budget::current(); budget != nullptr) budget->check_stack();
    const auto &x = a.items(), &y = b.items();
    const size_t common = std::min(x.size(), y.size());
    count_work(common * 16);
    for (size_t i = 0; i < common; ++i)
      if (!x[i].same(y[i]) && !equals(x[i], y[i])) return compare(x[i], y[i], order);
    return ordered(x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0, order);
  }
  if (a.is(Kind::dict_view) && b.is(Kind::dict_view))
    fail(FailureKind::unsupported, "comparing the keys of dicts by < or > is not supported");
  type_error("'{}' not supported between instances of '{}' and '{}'", symbol(order), type_name(a),
             type_name(b));
}

uint64_t hash_text(std::string_view text) {
  return std::hash<std::string_view>{}(text) | 1;
}

uint64_t hash_value(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::none:
      return 0x5EED;
    case Kind::boolean:
    case Kind::integer:
      return hash_integer(value.small_integer());
    case Kind::big_integer: {
      const double d = value.big().to_double();
      // A float equal to this integer must hash alike.
      if (std::isfinite(d) && compare_mixed(value.big(), d) == 0)
        return mix(7, BigInteger::from_double(d).hash());
      return mix(7, value.big().hash());
    }
    case Kind::floating: {
      const double d = value.floating();
      if (std::isfinite(d) && d == std::floor(d)) {
        if (std::fabs(d) < 9.2e18) return hash_integer(static_cast<int64_t>(d));
        const BigInteger big = BigInteger::from_double(d);
        if (const auto small = big.to_int64()) return hash_integer(*small);
        return mix(7, big.hash());
      }
      uint64_t bits = 0;
      std::memcpy(&bits, &d, sizeof bits);
      return mix(11, bits);
    }
    case Kind::undefined:
      return 0xDEFDEF;
    case Kind::string:
      return hash_text(value.text());
    case Kind::tuple: {
      const DepthGuard guard;
      uint64_t hash = 17;
      for (const Value& item : value.items()) hash = mix(hash, hash_value(item));
      return hash;
    }
    case Kind::range:
      return mix(mix(19, static_cast<uint64_t>(value.range().length)),
                 value.range().length == 0 ? 0 : static_cast<uint64_t>(value.range().start));
    case Kind::list:
    case Kind::dict:
    case Kind::slice:
      type_error("unhashable type: '{}'", type_name(value));
    case Kind::dict_view:
      if (value.view().part != DictViewObject::Part::values)
        type_error("unhashable type: '{}'", type_name(value));
      break;
    default:
      break;
  }
  return mix(23, reinterpret_cast<uintptr_t>(value.object()));
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  std::string out;
  append_repr(out, value);
  return out;
}

std::string repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  return out;
}

Value soft_text(const Value& value) {
  return value.is_string() ? value : Value(to_text(value));
}

double as_double(const Value& value) {
  if (value.is_small_integer()) return static_cast<double>(value.small_integer());
  if (value.is(Kind::floating)) return value.floating();
  if (value.is(Kind::big_integer)) {
    const double d = value.big().to_double();
    if (std::isinf(d)) fail(FailureKind::overflow_error, "int too large to convert to float");
    return d;
  }
  if (value.is_undefined()) raise_undefined(value);
  type_error("must be real number, not {}", type_name(value));
}

BigInteger as_big(const Value& value) {
  return value.is(Kind::big_integer) ? value.big() : BigInteger(value.small_integer());
}

int64_t as_index(const Value& value, std::string_view what, bool clamp) {
  if (value.is_small_integer()) return value.small_integer();
  if (value.is(Kind::big_integer)) {
    if (!clamp) fail(FailureKind::overflow_error, "{}: Python int too large to convert to C ssize_t", what);
    return value.big().negative() ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
  type_error("'{}' object cannot be interpreted as an integer", type_name(value));
}

std::string escape_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value escape(const Value& value) {
  if (value.is_markup()) return value;
  return Value(escape_text(to_text(value)), true);
}

}  // namespace kvasir::jinja
