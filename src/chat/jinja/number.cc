#include "chat/jinja/number.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// CPython refuses longer decimal conversions (sys.get_int_max_str_digits).
constexpr size_t kMaxDecimalDigits = 4300;

// White space stripped, decimal digits of every script as ASCII; other non-ASCII characters make it invalid.
std::optional<std::string> ascii_number(std::string_view text) {
  std::string out;
  text = strip_space(text);
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c < 0x80) {
      out += static_cast<char>(c);
      continue;
    }
    const int digit = decimal_value(c);
    if (digit < 0) return std::nullopt;
    out += static_cast<char>('0' + digit);
  }
  return out;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// Removes single underscores between digits; false if one stands elsewhere.
bool remove_underscores(std::string& digits) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] != '_') {
      out += digits[i];
      continue;
    }
    if (i == 0 || i + 1 == digits.size() || digits[i - 1] == '_') return false;
  }
  digits = out;
  return true;
}

}  // namespace

std::optional<Value> parse_integer(std::string_view text, int64_t base) {
  auto ascii = ascii_number(text);
  if (!ascii) return std::nullopt;
  std::string digits = *ascii;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  const auto prefix = [&](char lower) {
    return digits.size() >= 2 && digits[0] == '0' && (digits[1] | 0x20) == lower;
  };
  bool decimal_zero_only = false;
  int radix = static_cast<int>(base);
  bool stripped = false;
  if (base == 0) {
    if (prefix('x'))
      radix = 16;
    else if (prefix('o'))
      radix = 8;
    else if (prefix('b'))
      radix = 2;
    else {
      radix = 10;
      decimal_zero_only = digits.size() > 1 && digits[0] == '0';
    }
  }
  if ((radix == 16 && prefix('x')) || (radix == 8 && prefix('o')) || (radix == 2 && prefix('b'))) {
    digits.erase(0, 2);
    stripped = true;
  }
  if (stripped && !digits.empty() && digits[0] == '_') digits.erase(0, 1);
  if (digits.empty() || !remove_underscores(digits)) return std::nullopt;
  for (const char c : digits) {
    if (digit_of(c) >= radix) return std::nullopt;
    if (decimal_zero_only && c != '0') return std::nullopt;
  }
  const bool power_of_two = (radix & (radix - 1)) == 0;
  if (!power_of_two && digits.size() > kMaxDecimalDigits)
    value_error("Exceeds the limit ({} digits) for integer string conversion: value has {} digits",
                kMaxDecimalDigits, digits.size());
  BigInteger value = BigInteger::from_digits(digits, radix);
  return Value::integer(negative ? value.negated() : value);
}

std::optional<double> parse_float(std::string_view text) {
  auto ascii = ascii_number(text);
  if (!ascii) return std::nullopt;
  std::string digits = *ascii;
  double sign = 1;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    if (digits[0] == '-') sign = -1;
    digits.erase(0, 1);
  }
  std::string lower;
  for (const char c : digits) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  if (lower == "inf" || lower == "infinity") return sign * HUGE_VAL;
  if (lower == "nan") return std::nan("");
  // digits with underscores between digits, at most one point, an optional exponent
  std::string clean;
  for (size_t i = 0; i < lower.size(); ++i) {
    if (lower[i] == '_') {
      const auto is_digit_at = [&](size_t k) {
        return k < lower.size() && lower[k] >= '0' && lower[k] <= '9';
      };
      if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) return std::nullopt;
      continue;
    }
    clean += lower[i];
  }
  size_t i = 0, mantissa = 0;
  const auto digits_from = [&](size_t& at) {
    size_t count = 0;
    while (at < clean.size() && clean[at] >= '0' && clean[at] <= '9') ++at, ++count;
    return count;
  };
  mantissa = digits_from(i);
  if (i < clean.size() && clean[i] == '.') {
    ++i;
    mantissa += digits_from(i);
  }
  if (mantissa == 0) return std::nullopt;
  if (i < clean.size() && clean[i] == 'e') {
    ++i;
    if (i < clean.size() && (clean[i] == '+' || clean[i] == '-')) ++i;
    if (digits_from(i) == 0) return std::nullopt;
  }
  if (i != clean.size()) return std::nullopt;
  return sign * std::strtod(clean.c_str(), nullptr);
}

Value float_to_integer(double value) {
  if (std::isnan(value)) value_error("cannot convert float NaN to integer");
  if (std::isinf(value)) fail(FailureKind::overflow_error, "cannot convert float infinity to integer");
  if (std::fabs(value) < 9.0e18) return Value(static_cast<int64_t>(value));
  return Value::integer(BigInteger::from_double(value));
}

ShortestDecimal shortest_decimal(double value) {
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t e = text.find('e');
  ShortestDecimal out;
  for (const char c : text.substr(0, e))
    if (c != '.') out.digits += c;
  out.exponent = std::atoi(std::string(text.substr(e + 1)).c_str()) + 1;
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string out = std::signbit(value) ? "-" : "";
  const ShortestDecimal d = shortest_decimal(value);
  const int point = d.exponent;  // digits before the point
  const auto count = static_cast<int>(d.digits.size());
  if (value != 0 && (point < -3 || point > 16)) {
    out += d.digits[0];
    if (count > 1) out += "." + d.digits.substr(1);
    out += fmt::format("e{}{:02}", point - 1 < 0 ? '-' : '+', std::abs(point - 1));
  } else if (value == 0) {
    out += "0.0";
  } else if (point <= 0) {
    out += "0." + std::string(static_cast<size_t>(-point), '0') + d.digits;
  } else if (point >= count) {
    out += d.digits + std::string(static_cast<size_t>(point - count), '0') + ".0";
  } else {
    out += d.digits.substr(0, static_cast<size_t>(point)) + "." + d.digits.substr(static_cast<size_t>(point));
  }
  return out;
}

std::string integer_text(const Value& value) {
  if (value.is(Kind::big_integer)) {
    // bits * log10(2) > 4300, decided without printing
    if (value.big().bits() > 14290) {
      value_error("Exceeds the limit ({} digits) for integer string conversion", kMaxDecimalDigits);
    }
    std::string text = value.big().to_string();
    if (text.size() - (text[0] == '-' ? 1 : 0) > kMaxDecimalDigits)
      value_error("Exceeds the limit ({} digits) for integer string conversion", kMaxDecimalDigits);
    return text;
  }
  return std::to_string(value.small_integer());
}

std::string format_float(double value, char conversion, int precision, bool alternate) {
  const bool upper = conversion >= 'A' && conversion <= 'Z';
  std::string out;
  if (std::isnan(value)) {
    out = "nan";
  } else if (std::isinf(value)) {
    out = value < 0 ? "-inf" : "inf";
  } else {
    check_string_size(static_cast<size_t>(precision) + 400);
    const char lower = static_cast<char>(conversion | 0x20);
    const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + lower;
    const int size = std::snprintf(nullptr, 0, format.c_str(), precision, value);
    out.resize(static_cast<size_t>(size) + 1);
    std::snprintf(out.data(), out.size(), format.c_str(), precision, value);
    out.resize(static_cast<size_t>(size));
  }
  if (upper)
    for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

Value round_number(const Value& value, int64_t digits) {
  if (value.is_integer()) {
    if (digits >= 0) return value.is(Kind::boolean) ? Value(value.small_integer()) : value;
    // To the nearest multiple of 10^-digits, ties to even.
    if (digits < -20000) return Value(0);
    const BigInteger number = as_big(value);
    if (-digits > static_cast<int64_t>(number.bits() / 3 + 2)) return Value(0);
    BigInteger unit(1);
    for (int64_t i = 0; i < -digits; ++i) unit = unit * BigInteger(10);
    BigInteger quotient, remainder;
    BigInteger::divide_floor(number, unit, quotient, remainder);
    const int half = BigInteger::compare(remainder + remainder, unit);
    BigInteger two, parity;
    BigInteger::divide_floor(quotient, BigInteger(2), two, parity);
    if (half > 0 || (half == 0 && !parity.is_zero())) quotient = quotient + BigInteger(1);
    return Value::integer(quotient * unit);
  }
  const double x = value.floating();
  if (!std::isfinite(x) || x == 0) return value;
  if (digits > 323) return value;
  if (digits < -308) return Value(std::copysign(0.0, x));
  if (digits >= 0) {
    // Exact decimal rounding of the binary value (glibc prints exactly, ties to even), read back.
    const std::string text = format_float(x, 'f', static_cast<int>(digits), false);
    const double rounded = std::strtod(text.c_str(), nullptr);
    if (!std::isfinite(rounded)) fail(FailureKind::overflow_error, "rounded value too large to represent");
    return Value(rounded);
  }
  // Left of the point: round the exact decimal expansion by hand.
  std::string text = format_float(std::fabs(x), 'f', 60, false);
  const size_t point = text.find('.');
  const auto keep = static_cast<int64_t>(point) + digits;
  if (keep < 0) return Value(std::copysign(0.0, x));
  std::string head = text.substr(0, static_cast<size_t>(keep));
  std::string tail = text.substr(static_cast<size_t>(keep));
  std::erase(tail, '.');
  const bool above = tail[0] > '5' || (tail[0] == '5' && tail.find_first_not_of('0', 1) != std::string::npos);
  const bool tie = tail[0] == '5' && !above;
  const bool odd = !head.empty() && ((head.back() - '0') & 1) != 0;
  head.insert(head.begin(), '0');
  if (above || (tie && odd)) {
    size_t i = head.size() - 1;
    while (head[i] == '9') head[i--] = '0';
    ++head[i];
  }
  head += std::string(static_cast<size_t>(-digits), '0');
  const double rounded = std::strtod(head.c_str(), nullptr);
  if (!std::isfinite(rounded)) fail(FailureKind::overflow_error, "rounded value too large to represent");
  return Value(std::copysign(rounded, x));
}

int compare_mixed(const BigInteger& a, double b) {
  if (std::isnan(b)) return 2;
  if (std::isinf(b)) return b > 0 ? -1 : 1;
  const int whole = BigInteger::compare(a, BigInteger::from_double(b));
  if (whole != 0) return whole;
  const double fraction = b - std::trunc(b);
  return fraction > 0 ? -1 : fraction < 0 ? 1 : 0;
}

namespace {

Value integer_power(const Value& a, const Value& b) {
  BigInteger base = as_big(a);
  const BigInteger exponent = as_big(b);
  if (base.is_zero() || (base.bits() == 1)) {
    // 0, 1 and -1 to any power, whatever its size.
    if (exponent.is_zero()) return Value(1);
    if (base.is_zero()) return Value(0);
    BigInteger half, parity;
    BigInteger::divide_floor(exponent, BigInteger(2), half, parity);
    return base.negative() && !parity.is_zero() ? Value(-1) : Value(1);
  }
  const auto small = exponent.to_int64();
  if (!small || *small > 1'000'000) check_integer_bits(static_cast<size_t>(1) << 40);
  int64_t n = *small;
  check_integer_bits((base.bits() - 1) * static_cast<size_t>(n));
  BigInteger result(1);
  while (n > 0) {
    if (n & 1) result = result * base;
    n >>= 1;
    if (n > 0) base = base * base;
  }
  return Value::integer(result);
}

}  // namespace

Value power(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    const bool negative = b.is(Kind::big_integer) ? b.big().negative() : b.small_integer() < 0;
    if (!negative) return integer_power(a, b);
    if (as_big(a).is_zero()) fail(FailureKind::zero_division, "0.0 cannot be raised to a negative power");
  }
  const double x = as_double(a), y = as_double(b);
  if (x == 0 && y < 0) fail(FailureKind::zero_division, "0.0 cannot be raised to a negative power");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y))
    fail(FailureKind::unsupported,
         "a negative number to a fractional power is complex, which templates cannot hold");
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y))
    fail(FailureKind::overflow_error, "Numerical result out of range");
  return Value(result);
}

}  // namespace kvasir::jinja
