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

[[noreturn]] void raise_undefined(const Value& value) {
  const UndefinedObject& object = value.undefined();
  throw Failure{object.security ? FailureKind::security_error : FailureKind::undefined_error,
                object.message()};
}

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

std::string_view symbol(Binary operation) {
  switch (operation) {
    case Binary::add:
      return "+";
    case Binary::subtract:
      return "-";
    case Binary::multiply:
      return "*";
    case Binary::divide:
      return "/";
    case Binary::floor_divide:
      return "//";
    case Binary::modulo:
      return "%";
    case Binary::power:
      return "** or pow()";
  }
  return "";
}

[[noreturn]] void unsupported_operands(Binary operation, const Value& a, const Value& b) {
  type_error("unsupported operand type(s) for {}: '{}' and '{}'", symbol(operation), type_name(a),
             type_name(b));
}

// int / int, correctly rounded: the quotient to at least 66 bits with a sticky bit below.
double divide_integers(const BigInteger& a, const BigInteger& b) {
  if (a.is_zero()) return 0.0;
  const auto power_of_two = [](size_t n) {
    BigInteger out(1);
    for (; n >= 1000; n -= 1000) out = out * BigInteger::from_double(std::ldexp(1.0, 1000));
    return out * BigInteger::from_double(std::ldexp(1.0, static_cast<int>(n)));
  };
  const bool negative = a.negative() != b.negative();
  BigInteger n = a.negative() ? a.negated() : a;
  BigInteger d = b.negative() ? b.negated() : b;
  const int64_t shift = static_cast<int64_t>(d.bits()) - static_cast<int64_t>(n.bits()) + 66;
  if (shift > 0)
    n = n * power_of_two(static_cast<size_t>(shift));
  else
    d = d * power_of_two(static_cast<size_t>(-shift));
  BigInteger quotient, remainder;
  BigInteger::divide_floor(n, d, quotient, remainder);
  quotient = quotient + quotient;
  if (!remainder.is_zero()) quotient = quotient + BigInteger(1);
  const double value =
      std::ldexp(quotient.to_double(), static_cast<int>(std::clamp<int64_t>(-shift - 1, -5000, 5000)));
  if (std::isinf(value)) fail(FailureKind::overflow_error, "integer division result too large for a float");
  return negative ? -value : value;
}

double float_modulo(double a, double b) {
  double r = std::fmod(a, b);
  if (r != 0) {
    if ((b < 0) != (r < 0)) r += b;
  } else {
    r = std::copysign(0.0, b);
  }
  return r;
}

double float_floor_divide(double a, double b) {
  double r = std::fmod(a, b);
  double d = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) d -= 1.0;
  if (d == 0) return std::copysign(0.0, a / b);
  double f = std::floor(d);
  if (d - f > 0.5) f += 1.0;
  return f;
}

Value integer_arithmetic(Binary operation, const Value& a, const Value& b) {
  if (a.is_small_integer() && b.is_small_integer()) {
    const int64_t x = a.small_integer(), y = b.small_integer();
    int64_t out = 0;
    switch (operation) {
      case Binary::add:
        if (!__builtin_add_overflow(x, y, &out)) return Value(out);
        break;
      case Binary::subtract:
        if (!__builtin_sub_overflow(x, y, &out)) return Value(out);
        break;
      case Binary::multiply:
        if (!__builtin_mul_overflow(x, y, &out)) return Value(out);
        break;
      case Binary::divide: {
        if (y == 0) fail(FailureKind::zero_division, "division by zero");
        constexpr int64_t kExact = int64_t{1} << 53;
        if (x >= -kExact && x <= kExact && y >= -kExact && y <= kExact)
          return Value(static_cast<double>(x) / static_cast<double>(y));
        break;
      }
      case Binary::floor_divide:
      case Binary::modulo: {
        if (y == 0) fail(FailureKind::zero_division, "integer division or modulo by zero");
        if (y == -1) {
          if (operation == Binary::modulo) return Value(0);
          if (!__builtin_sub_overflow(int64_t{0}, x, &out)) return Value(out);
          break;
        }
        int64_t quotient = x / y, remainder = x % y;
        if (remainder != 0 && (remainder < 0) != (y < 0)) {
          --quotient;
          remainder += y;
        }
        return Value(operation == Binary::modulo ? remainder : quotient);
      }
      case Binary::power:
        return power(a, b);
    }
  }
  const BigInteger x = as_big(a), y = as_big(b);
  switch (operation) {
    case Binary::add:
      return Value::integer(x + y);
    case Binary::subtract:
      return Value::integer(x - y);
    case Binary::multiply:
      return Value::integer(x * y);
    case Binary::divide:
      if (y.is_zero()) fail(FailureKind::zero_division, "division by zero");
      return Value(divide_integers(x, y));
    case Binary::floor_divide:
    case Binary::modulo: {
      if (y.is_zero()) fail(FailureKind::zero_division, "integer division or modulo by zero");
      BigInteger quotient, remainder;
      BigInteger::divide_floor(x, y, quotient, remainder);
      return Value::integer(operation == Binary::modulo ? remainder : quotient);
    }
    case Binary::power:
      return power(a, b);
  }
  return Value();
}

Value number_arithmetic(Binary operation, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(operation, a, b);
  if (operation == Binary::power) return power(a, b);
  const double x = as_double(a), y = as_double(b);
  switch (operation) {
    case Binary::add:
      return Value(x + y);
    case Binary::subtract:
      return Value(x - y);
    case Binary::multiply:
      return Value(x * y);
    case Binary::divide:
      if (y == 0) fail(FailureKind::zero_division, "float division by zero");
      return Value(x / y);
    case Binary::floor_divide:
      if (y == 0) fail(FailureKind::zero_division, "float floor division by zero");
      return Value(float_floor_divide(x, y));
    case Binary::modulo:
      if (y == 0) fail(FailureKind::zero_division, "float modulo");
      return Value(float_modulo(x, y));
    case Binary::power:
      break;
  }
  return Value();
}

Value repeat(const Value& sequence, const Value& count) {
  int64_t times = as_index(count, "the repeat count", true);
  times = std::max<int64_t>(times, 0);
  if (sequence.is_string()) {
    const std::string& text = sequence.text();
    const size_t total = checked_repeat(text.size(), times, true);
    std::string out;
    out.reserve(total);
    if (!text.empty())
      for (int64_t i = 0; i < times; ++i) out += text;
    return Value(std::move(out), sequence.is_markup());
  }
  const std::vector<Value>& items = sequence.items();
  std::vector<Value> out;
  out.reserve(checked_repeat(items.size(), times, false));
  if (!items.empty())
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return sequence.is(Kind::list) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value add_values(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    check_string_size(a.text().size() + b.text().size());
    if (a.is_markup() || b.is_markup()) return Value(escape(a).text() + escape(b).text(), true);
    std::string out;
    out.reserve(a.text().size() + b.text().size());
    out += a.text();
    out += b.text();
    return Value(std::move(out));
  }
  if (a.kind() == b.kind() && a.is_sequence()) {
    check_list_size(a.items().size() + b.items().size());
    std::vector<Value> out;
    out.reserve(a.items().size() + b.items().size());
    out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.is(Kind::list) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
  }
  if (a.is_string() && !a.is_markup())
    type_error("can only concatenate str (not \"{}\") to str", type_name(b));
  if (a.is_sequence())
    type_error("can only concatenate {} (not \"{}\") to {}", type_name(a), type_name(b), type_name(a));
  unsupported_operands(Binary::add, a, b);
}

// Adjusted [start, stop) walk of a slice over `size` items (PySlice_AdjustIndices).
struct SliceBounds {
  int64_t start, stop, step, count;
};

SliceBounds slice_bounds(int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto index = [](const Value& value) -> int64_t {
    if (!value.is_integer()) {
      if (value.is_undefined())
        type_error("slice indices must be integers or None or have an __index__ method");
      type_error("slice indices must be integers or None or have an __index__ method");
    }
    return as_index(value, "slice index", true);
  };
  int64_t stride = step.is_none() ? 1 : index(step);
  if (stride == 0) value_error("slice step cannot be zero");
  stride = std::max(stride, -std::numeric_limits<int64_t>::max());
  const auto clamp = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t i = index(value);
    if (i < 0) {
      i = i < -size ? -1 : i + size;
      if (i < 0) i = stride < 0 ? -1 : 0;
    } else if (i >= size) {
      i = stride < 0 ? size - 1 : size;
    }
    return i;
  };
  const int64_t first = clamp(start, stride < 0 ? size - 1 : 0);
  const int64_t last = clamp(stop, stride < 0 ? -1 : size);
  int64_t count = 0;
  if (stride > 0 && first < last) count = (last - first - 1) / stride + 1;
  if (stride < 0 && first > last) count = (first - last - 1) / -stride + 1;
  return {first, last, stride, count};
}

class ReverseIterator : public IteratorObject {
 public:
  explicit ReverseIterator(Value of, int64_t size) : of_(std::move(of)), left_(size) {}
  std::string_view type_name() const override {
    switch (of_.kind()) {
      case Kind::list:
        return "list_reverseiterator";
      case Kind::range:
        return "range_iterator";
      case Kind::dict:
        return "dict_reversekeyiterator";
      default:
        return "reversed";
    }
  }

 protected:
  bool advance(Value& out) override {
    if (left_ == 0) return false;
    --left_;
    const auto i = static_cast<size_t>(left_);
    switch (of_.kind()) {
      case Kind::list:
      case Kind::tuple:
        out = of_.items()[i];
        break;
      case Kind::range:
        out = Value(of_.range().start + left_ * of_.range().step);
        break;
      case Kind::dict:
        out = of_.dictionary().entries[i].first;
        break;
      default:
        out = of_.view().at(i);
        break;
    }
    return true;
  }

 private:
  Value of_;
  int64_t left_;
};

}  // namespace

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

Value arithmetic(Binary operation, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return number_arithmetic(operation, a, b);
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  switch (operation) {
    case Binary::add:
      return add_values(a, b);
    case Binary::multiply: {
      const bool left = a.is_string() || a.is_sequence(), right = b.is_string() || b.is_sequence();
      if (left && b.is_integer()) return repeat(a, b);
      if (right && a.is_integer()) return repeat(b, a);
      if (left && !a.is_markup()) type_error("can't multiply sequence by non-int of type '{}'", type_name(b));
      if (right && !b.is_markup())
        type_error("can't multiply sequence by non-int of type '{}'", type_name(a));
      unsupported_operands(operation, a, b);
    }
    default:
      if (a.is(Kind::dict_view) && b.is(Kind::dict_view))
        fail(FailureKind::unsupported, "set operations on the keys of dicts are not supported");
      unsupported_operands(operation, a, b);
  }
}

Value negate(const Value& value) {
  if (value.is(Kind::floating)) return Value(-value.floating());
  if (value.is_small_integer() && value.small_integer() != std::numeric_limits<int64_t>::min())
    return Value(-value.small_integer());
  if (value.is_integer()) return Value::integer(as_big(value).negated());
  if (value.is_undefined()) raise_undefined(value);
  type_error("bad operand type for unary -: '{}'", type_name(value));
}

Value positive(const Value& value) {
  if (value.is(Kind::boolean)) return Value(value.small_integer());
  if (value.is_number()) return value;
  if (value.is_undefined()) raise_undefined(value);
  type_error("bad operand type for unary +: '{}'", type_name(value));
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!item.is_string())
        type_error("'in <string>' requires string as left operand, not {}", type_name(item));
      count_work(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Kind::list:
    case Kind::tuple:
      count_work(container.items().size() * 16);
      for (const Value& candidate : container.items())
        if (candidate.same(item) || equals(candidate, item)) return true;
      return false;
    case Kind::dict:
      return container.dictionary().find(item) != nullptr;
    case Kind::range: {
      const RangeObject& r = container.range();
      if (!item.is_number()) return false;
      int64_t value = 0;
      if (item.is_small_integer()) {
        value = item.small_integer();
      } else if (item.is(Kind::floating)) {
        if (item.floating() != std::floor(item.floating()) || std::fabs(item.floating()) > 9e18) return false;
        value = static_cast<int64_t>(item.floating());
      } else {
        return false;
      }
      const bool inside =
          r.step > 0 ? value >= r.start && value < r.stop : value <= r.start && value > r.stop;
      return inside && r.length > 0 && (value - r.start) % r.step == 0;
    }
    case Kind::dict_view: {
      const DictViewObject& view = container.view();
      if (view.part == DictViewObject::Part::keys) return view.dict.dictionary().find(item) != nullptr;
      if (view.part == DictViewObject::Part::items) {
        if (!item.is(Kind::tuple) || item.items().size() != 2) return false;
        const Value* found = view.dict.dictionary().find(item.items()[0]);
        return found != nullptr && (found->same(item.items()[1]) || equals(*found, item.items()[1]));
      }
      break;
    }
    default:
      break;
  }
  if (!is_iterable(container)) type_error("argument of type '{}' is not iterable", type_name(container));
  Iteration iteration(container);
  Value candidate;
  while (iteration.next(candidate))
    if (candidate.same(item) || equals(candidate, item)) return true;
  return false;
}

int64_t length_or_negative(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return value.string().length;
    case Kind::list:
    case Kind::tuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::dict:
      return static_cast<int64_t>(value.dictionary().entries.size());
    case Kind::range:
      return value.range().length;
    case Kind::dict_view:
      return static_cast<int64_t>(value.view().dict.dictionary().entries.size());
    case Kind::callable:
      return value.callable().length(nullptr);
    default:
      return -1;
  }
}

int64_t length(const Value& value) {
  const int64_t size = length_or_negative(value);
  if (size < 0) type_error("object of type '{}' has no len()", type_name(value));
  return size;
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::dict_view:
    case Kind::iterator:
      return true;
    case Kind::callable:
      return value.callable().is_iterable();
    default:
      return false;
  }
}

Iteration::Iteration(const Value& value) : value_(value) {
  if (!is_iterable(value)) type_error("'{}' object is not iterable", type_name(value));
  if (value.is(Kind::dict)) counter_ = static_cast<int64_t>(value.dictionary().entries.size());
}

bool Iteration::next(Value& out) {
  switch (value_.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string: {
      const std::string& text = value_.text();
      if (position_ >= text.size()) return false;
      const size_t start = position_;
      next_code_point(text, position_);
      out = Value(text.substr(start, position_ - start));
      return true;
    }
    case Kind::list:
    case Kind::tuple:
      if (position_ >= value_.items().size()) return false;
      out = value_.items()[position_++];
      return true;
    case Kind::dict:
      if (position_ >= value_.dictionary().entries.size()) return false;
      out = value_.dictionary().entries[position_++].first;
      return true;
    case Kind::dict_view:
      if (position_ >= value_.view().dict.dictionary().entries.size()) return false;
      out = value_.view().at(position_++);
      return true;
    case Kind::range:
      if (counter_ >= value_.range().length) return false;
      out = Value(value_.range().start + counter_ * value_.range().step);
      ++counter_;
      return true;
    case Kind::iterator:
      return value_.iterator().next(out);
    default:
      return value_.callable().iterate_next(out);
  }
}

std::vector<Value> to_vector(const Value& value) {
  if (value.is_sequence()) return value.items();
  std::vector<Value> out;
  Iteration iteration(value);
  Value item;
  while (iteration.next(item)) {
    out.push_back(item);
    if ((out.size() & 0xFFF) == 0) {
      check_list_size(out.size());
      count_work(0x1000 * sizeof(Value));
    }
  }
  return out;
}

bool subscript(Interpreter* interpreter, const Value& object, const Value& key, Value& out) {
  if (object.is_undefined()) raise_undefined(object);
  if (key.is(Kind::slice)) {
    if (!object.is_string() && !object.is_sequence() && !object.is(Kind::range)) return false;
    const SliceObject& bounds = key.as<SliceObject>();
    for (const Value* bound : {&bounds.start, &bounds.stop, &bounds.step})
      if (!bound->is_none() && !bound->is_integer()) return false;
    out = slice(object, bounds.start, bounds.stop, bounds.step);
    return true;
  }
  switch (object.kind()) {
    case Kind::dict: {
      if (key.is_sequence() || key.is(Kind::dict)) {
        if (!key.is(Kind::tuple)) return false;
      }
      const Value* found = nullptr;
      if (key.is_string()) {
        found = object.dictionary().find(std::string_view(key.text()));
      } else {
        try {
          found = object.dictionary().find(key);
        } catch (const Failure& failure) {
          if (failure.kind != FailureKind::type_error) throw;
          return false;  // unhashable
        }
      }
      if (found == nullptr) return false;
      out = *found;
      return true;
    }
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::range: {
      if (!key.is_small_integer()) return false;
      const int64_t size = length(object);
      int64_t index = key.small_integer();
      if (index < 0) index += size;
      if (index < 0 || index >= size) return false;
      if (object.is_sequence()) {
        out = object.items()[static_cast<size_t>(index)];
      } else if (object.is(Kind::range)) {
        out = Value(object.range().start + index * object.range().step);
      } else {
        const std::string& text = object.text();
        const size_t start = byte_offset(text, index, object.string().ascii());
        size_t end = start;
        next_code_point(text, end);
        out = Value(text.substr(start, end - start), object.is_markup());
      }
      return true;
    }
    case Kind::callable:
      return key.is_string() && interpreter != nullptr &&
             object.callable().item(*interpreter, key.text(), out);
    default:
      return false;
  }
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) raise_undefined(object);
  if (object.is(Kind::dict)) type_error("unhashable type: 'slice'");
  if (!object.is_string() && !object.is_sequence() && !object.is(Kind::range))
    type_error("'{}' object is not subscriptable", type_name(object));
  const SliceBounds bounds = slice_bounds(length(object), start, stop, step);
  if (object.is_string()) {
    const std::string& text = object.text();
    if (bounds.step == 1) {
      if (bounds.count == 0) return Value(std::string(), object.is_markup());
      const bool ascii = object.string().ascii();
      const size_t from = byte_offset(text, bounds.start, ascii);
      const size_t bytes = byte_offset(std::string_view(text).substr(from), bounds.count, ascii);
      return Value(text.substr(from, bytes), object.is_markup());
    }
    const std::vector<char32_t> codes = decode(text);
    std::string out;
    for (int64_t i = 0; i < bounds.count; ++i)
      append_code_point(out, codes[static_cast<size_t>(bounds.start + i * bounds.step)]);
    return Value(std::move(out), object.is_markup());
  }
  if (object.is(Kind::range)) {
    const RangeObject& r = object.range();
    const int64_t stride = std::clamp<int64_t>(bounds.step, -1'000'000'000, 1'000'000'000);
    return make_range(r.start + bounds.start * r.step, r.start + bounds.stop * r.step, stride * r.step);
  }
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(bounds.count));
  for (int64_t i = 0; i < bounds.count; ++i)
    out.push_back(object.items()[static_cast<size_t>(bounds.start + i * bounds.step)]);
  return object.is(Kind::list) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value reversed(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
    case Kind::dict:
    case Kind::dict_view:
      return Value(Kind::iterator, new ReverseIterator(value, length(value)));
    default:
      type_error("'{}' object is not reversible", type_name(value));
  }
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

Value make_range(int64_t start, int64_t stop, int64_t step) {
  int64_t count = 0;
  __extension__ using Wide = __int128;
  if (step > 0 && start < stop)
    count = static_cast<int64_t>((static_cast<Wide>(stop) - start - 1) / step + 1);
  if (step < 0 && start > stop)
    count = static_cast<int64_t>((static_cast<Wide>(start) - stop - 1) / -static_cast<Wide>(step) + 1);
  return Value(Kind::range, new RangeObject(start, stop, step, count));
}

Value make_range(const Value& start, const Value& stop, const Value& step) {
  constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox
  constexpr int64_t kFar = int64_t{1} << 62;
  int64_t bounds[3];
  int i = 0;
  for (const Value* value : {&start, &stop, &step}) {
    if (value->is_undefined()) type_error("'Undefined' object cannot be interpreted as an integer");
    if (!value->is_integer())
      type_error("'{}' object cannot be interpreted as an integer", type_name(*value));
    bounds[i++] = as_index(*value, "range()", true);
  }
  if (bounds[2] == 0) value_error("range() arg 3 must not be zero");
  Value range = make_range(bounds[0], bounds[1], bounds[2]);
  if (range.range().length > kMaxRange || range.range().length < 0)
    fail(FailureKind::overflow_error, "Range too big. The sandbox blocks ranges larger than {} items.",
         kMaxRange);
  for (const int64_t bound : bounds)
    if (bound > kFar || bound < -kFar)
      fail(FailureKind::unsupported, "range() with bounds beyond 2^62 is not supported");
  return range;
}

}  // namespace kvasir::jinja
