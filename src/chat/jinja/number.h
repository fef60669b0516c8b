// Python's number parsing, printing, rounding and powers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace kvasir::jinja {

// int(text, base): nullopt where Python raises ValueError. base 0 or 2..36.
std::optional<Value> parse_integer(std::string_view text, int64_t base);
// float(text)
std::optional<double> parse_float(std::string_view text);
// int(x) of a float; throws OverflowError / ValueError for infinities and NaN.
Value float_to_integer(double value);
// round(value, digits); `digits` null: round to an int.
Value round_number(const Value& value, int64_t digits);
Value power(const Value& a, const Value& b);

// The shortest digits that read back as the same double, and the decimal exponent: 0.d1d2... * 10^exponent.
struct ShortestDecimal {
  std::string digits;
  int exponent;
};
ShortestDecimal shortest_decimal(double value);

// printf-style %e %f %g of a finite or non-finite double, with Python's conventions.
std::string format_float(double value, char conversion, int precision, bool alternate);

// Exact comparison of an int and a float: -1, 0, 1, or 2 if the float is NaN.
int compare_mixed(const BigInteger& a, double b);

}  // namespace kvasir::jinja
