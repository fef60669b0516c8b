// + - * / // % ** of values.
#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

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
  int64_t times = as_index(count, "the repeat count");
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

}  // namespace

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

}  // namespace kvasir::jinja
