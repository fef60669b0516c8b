// Filters on numbers.
#include <cmath>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

Value absolute(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("abs", arguments, {}, 0);
  if (operand.is(Kind::floating)) return Value(std::fabs(operand.floating()));
  if (!operand.is_integer()) {
    if (operand.is_undefined()) type_error("bad operand type for abs(): 'Undefined'");
    type_error("bad operand type for abs(): '{}'", type_name(operand));
  }
  return compare(operand, Value(0), Order::less) ? negate(operand) : positive(operand);
}

Value to_integer(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("int", arguments, {"default", "base"}, 0);
  const Value otherwise = p.get(0, Value(0));
  if (operand.is_string()) {
    const Value base = p.get(1, Value(10));
    if (base.is_integer()) {
      const int64_t radix = as_index(base, "int()", true);
      // A base out of range and unreadable text are the same ValueError to this filter.
      if (radix == 0 || (radix >= 2 && radix <= 36)) {
        try {
          if (const auto value = parse_integer(operand.text(), radix)) return *value;
        } catch (const Failure& failure) {
          if (failure.kind != FailureKind::value_error) throw;
        }
      }
    }
    const auto number = parse_float(operand.text());
    if (!number || !std::isfinite(*number)) return otherwise;
    return float_to_integer(*number);
  }
  if (operand.is_integer()) return positive(operand);
  if (operand.is(Kind::floating)) {
    if (std::isnan(operand.floating())) return otherwise;
    // int(inf) raises OverflowError, which the first attempt does not catch.
    return float_to_integer(operand.floating());
  }
  if (operand.is_undefined()) {
    raise_undefined(operand);
  }
  return otherwise;
}

Value to_float(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("float", arguments, {"default"}, 0);
  const Value otherwise = p.get(0, Value(0.0));
  if (operand.is_number()) return Value(as_double(operand));
  if (operand.is_string()) {
    const auto value = parse_float(operand.text());
    return value ? Value(*value) : otherwise;
  }
  if (operand.is_undefined()) {
    raise_undefined(operand);
  }
  return otherwise;
}

Value round_value(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("round", arguments, {"precision", "method"}, 0);
  const Value method = p.get(1, Value("common"));
  const Value precision = p.get(0, Value(0));
  const std::string name = method.is_string() ? method.text() : "";
  if (name != "common" && name != "ceil" && name != "floor")
    fail(FailureKind::runtime_error, "method must be common, ceil or floor");
  if (name == "common") {
    if (!operand.is_number()) type_error("type {} doesn't define __round__ method", type_name(operand));
    if (precision.is_none()) {
      // round(x, None) gives an int
      if (operand.is_integer()) return positive(operand);
      return float_to_integer(std::nearbyint(operand.floating()));
    }
    return round_number(operand, as_index(precision, "round()", true));
  }
  const Value scale = arithmetic(Binary::power, Value(10), precision);
  const Value scaled = arithmetic(Binary::multiply, operand, scale);
  if (!scaled.is_number()) type_error("must be real number, not {}", type_name(scaled));
  Value whole = scaled;
  if (scaled.is(Kind::floating))
    whole = float_to_integer(name == "ceil" ? std::ceil(scaled.floating()) : std::floor(scaled.floating()));
  return arithmetic(Binary::divide, positive(whole), scale);
}

Value file_size(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("filesizeformat", arguments, {"binary"}, 0);
  double bytes = 0;
  if (operand.is_string()) {
    const auto value = parse_float(operand.text());
    if (!value) value_error("could not convert string to float: {}", repr(operand));
    bytes = *value;
  } else {
    if (!operand.is_number() && !operand.is_undefined())
      type_error("float() argument must be a string or a real number, not '{}'", type_name(operand));
    bytes = as_double(operand);
  }
  const bool binary = p.flag(0, false);
  const double base = binary ? 1024 : 1000;
  static constexpr std::string_view kLetters = "kMGTPEZY";
  if (bytes == 1) return Value("1 Byte");
  if (bytes < base) return Value(integer_text(float_to_integer(bytes)) + " Bytes");
  double unit = base;
  for (size_t i = 0; i < kLetters.size(); ++i) {
    unit *= base;
    if (bytes < unit || i + 1 == kLetters.size()) {
      const char letter = binary && i == 0 ? 'K' : kLetters[i];
      return Value(format_float(base * bytes / unit, 'f', 1, false) + " " + letter + (binary ? "iB" : "B"));
    }
  }
  return Value();
}

}  // namespace

void add_number_filters(std::vector<FilterEntry>& table) {
  table.insert(table.end(), {
                                {"abs", false, absolute},
                                {"int", false, to_integer},
                                {"float", false, to_float},
                                {"round", false, round_value},
                                {"filesizeformat", false, file_size},
                            });
}

}  // namespace kvasir::jinja
