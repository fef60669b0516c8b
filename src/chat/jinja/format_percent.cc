// `text % operand`: printf-style formatting.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/format.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/number.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 31;

// A number as sign, prefix (0x ...) and digits, so that zeros can go between.
struct NumberText {
  std::string sign, prefix, digits;
  std::string joined() const { return sign + prefix + digits; }
};

class PercentFormatter {
 public:
  PercentFormatter(const Value& text, const Value& operand)
      : text_(text.text()), operand_(operand), markup_(text.is_markup()) {
    if (operand.is(Kind::tuple)) {
      arguments_ = operand.items();
      single_ = false;
    } else {
      arguments_ = {operand};
    }
    // Python takes anything with a subscript for a mapping here, and then does not count the arguments.
    is_mapping_ = operand.is(Kind::dict) || operand.is(Kind::list) || operand.is(Kind::undefined) ||
                  operand.is(Kind::range) ||
                  (operand.is(Kind::callable) && operand.callable().type_name() == "TemplateReference");
  }

  Value run() {
    std::string out;
    size_t i = 0;
    while (i < text_.size()) {
      const size_t at = text_.find('%', i);
      if (at == std::string::npos) {
        out.append(text_, i);
        break;
      }
      out.append(text_, i, at - i);
      i = at + 1;
      out += directive(i);
      check_string_size(out.size());
    }
    if (next_ < arguments_.size() && !is_mapping_)
      type_error("not all arguments converted during string formatting");
    return Value(std::move(out), markup_);
  }

 private:
  const Value& next_argument() {
    if (keyed_) return *keyed_;
    if (next_ >= arguments_.size()) type_error("not enough arguments for format string");
    return arguments_[next_++];
  }

  char take(size_t& i) const {
    if (i >= text_.size()) value_error("incomplete format");
    return text_[i++];
  }

  std::string directive(size_t& i) {
    keyed_.reset();
    char c = take(i);
    if (c == '%') return "%";  // with anything between, it is an unknown conversion
    if (c == '(') {
      if (!is_mapping_) type_error("format requires a mapping");
      int depth = 1;
      const size_t start = i;
      while (depth > 0) {
        if (i >= text_.size()) value_error("incomplete format key");
        if (text_[i] == '(') ++depth;
        if (text_[i] == ')') --depth;
        ++i;
      }
      const Value key(text_.substr(start, i - start - 1));
      if (operand_.is_undefined()) raise_undefined(operand_);
      if (!operand_.is(Kind::dict))
        type_error("{} indices must be integers or slices, not str", type_name(operand_));
      const Value* found = operand_.dictionary().find(key);
      if (found == nullptr) fail(FailureKind::key_error, "{}", repr(key));
      keyed_ = *found;
      c = take(i);
    }
    bool minus = false, plus = false, space = false, alternate = false, zero = false;
    while (true) {
      if (c == '-')
        minus = true;
      else if (c == '+')
        plus = true;
      else if (c == ' ')
        space = true;
      else if (c == '#')
        alternate = true;
      else if (c == '0')
        zero = true;
      else
        break;
      c = take(i);
    }
    int64_t width = 0, precision = -1;
    const auto number = [&](int64_t& target) {
      if (c == '*') {
        const Value& value = next_argument();
        if (!value.is_integer()) type_error("* wants int");
        target = as_index(value, "* in a format");
        c = take(i);
        return;
      }
      target = 0;
      while (c >= '0' && c <= '9') {
        target = target * 10 + (c - '0');
        if (target > kMaxWidth) value_error("width or precision too big");
        c = take(i);
      }
    };
    if (c == '*' || (c >= '0' && c <= '9')) number(width);
    if (width < 0) {
      minus = true;
      width = -width;
    }
    if (c == '.') {
      c = take(i);
      number(precision);
      precision = std::max<int64_t>(precision, 0);
    }
    if (c == 'h' || c == 'l' || c == 'L') c = take(i);
    std::string plain;
    NumberText digits;
    bool numeric = true;
    // Looked at before the argument is taken, as Python does.
    const Value value = next_argument();
    switch (c) {
      case 's':
      case 'r':
      case 'a':
        plain = c == 's' ? to_text(value) : repr(value);
        if (c == 'a') plain = ascii_repr(plain);
        if (markup_ && !(c == 's' && value.is_markup())) plain = escape_text(plain);
        if (precision >= 0 && precision < count_code_points(plain))
          plain.resize(byte_offset(plain, precision, false));
        numeric = false;
        break;
      case 'c':
        plain = character(value);
        numeric = false;
        break;
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        digits = integer(value, c, precision, alternate);
        break;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const double d = number_of(value);
        std::string body = format_float(std::fabs(d), c, float_precision(precision), alternate);
        if (std::isnan(d)) body = c >= 'A' && c <= 'Z' ? "NAN" : "nan";
        digits.sign = std::signbit(d) && !std::isnan(d) ? "-" : "";
        digits.digits = body;
        break;
      }
      default: {
        size_t start = i - 1, after = start;
        const char32_t bad = next_code_point(text_, after);
        value_error("unsupported format character '{}' (0x{:x}) at index {}",
                    is_printable(bad) ? text_.substr(start, after - start) : "?", static_cast<uint32_t>(bad),
                    count_code_points(std::string_view(text_).substr(0, start)));
      }
    }
    if (!numeric) return pad(plain, width, " ", minus ? '<' : '>');
    if (digits.sign.empty()) digits.sign = plus ? "+" : space ? " " : "";
    const auto size = static_cast<int64_t>(digits.joined().size());
    if (zero && !minus && width > size) {
      check_string_size(checked_repeat(1, width, true));
      digits.digits.insert(0, static_cast<size_t>(width - size), '0');
    }
    return pad(digits.joined(), width, " ", minus ? '<' : '>');
  }

  static double number_of(const Value& value) {
    if (value.is_string()) type_error("must be real number, not {}", type_name(value));
    return as_double(value);
  }

  static std::string character(const Value& value) {
    if (value.is_string()) {
      if (value.string().length != 1) type_error("%c requires int or char");
      return value.text();
    }
    if (!value.is_integer()) type_error("%c requires int or char");
    const int64_t code = as_index(value, "%c", true);
    if (code < 0 || code > 0x10FFFF) fail(FailureKind::overflow_error, "%c arg not in range(0x110000)");
    if (code >= 0xD800 && code <= 0xDFFF)
      fail(FailureKind::unsupported, "%c of a surrogate cannot be written as UTF-8");
    std::string out;
    append_code_point(out, static_cast<char32_t>(code));
    return out;
  }

  static NumberText integer(const Value& value, char c, int64_t precision, bool alternate) {
    const bool decimal = c == 'd' || c == 'i' || c == 'u';
    Value number = value;
    if (value.is_undefined()) raise_undefined(value);
    if (value.is(Kind::floating) && decimal) number = float_to_integer(value.floating());
    if (!number.is_integer())
      type_error("%{} format: {} is required, not {}", c, decimal ? "a real number" : "an integer",
                 type_name(value));
    NumberText out;
    std::string text = decimal ? integer_text(positive(number)) : as_big(number).to_string(c == 'o' ? 8 : 16);
    if (text[0] == '-') {
      out.sign = "-";
      text.erase(0, 1);
    }
    if (alternate && !decimal) out.prefix = c == 'o' ? "0o" : "0x";
    if (c == 'X') {
      for (char& d : text) d = static_cast<char>(d >= 'a' ? d - 32 : d);
      if (alternate) out.prefix = "0X";
    }
    if (precision > static_cast<int64_t>(text.size())) {
      check_string_size(checked_repeat(1, precision, true));
      text.insert(0, static_cast<size_t>(precision) - text.size(), '0');
    }
    out.digits = std::move(text);
    return out;
  }

  const std::string& text_;
  const Value& operand_;
  bool markup_;
  bool single_ = true;
  bool is_mapping_ = false;
  std::vector<Value> arguments_;
  size_t next_ = 0;
  std::optional<Value> keyed_;
};

}  // namespace

std::string pad(const std::string& text, int64_t width, std::string_view fill, char align) {
  const int64_t size = count_code_points(text);
  if (width <= size) return text;
  const int64_t blank = width - size;
  check_string_size(text.size() + checked_repeat(std::max<size_t>(fill.size(), 1), blank, true));
  const int64_t left = align == '<' ? 0 : align == '^' ? blank / 2 : blank;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < blank; ++i) out += fill;
  return out;
}

// Digits after the point as printf takes them; a width that cannot be printed within the limits is refused.
int float_precision(int64_t given) {
  if (given < 0) return 6;
  check_string_size(static_cast<size_t>(given));
  return static_cast<int>(given);
}

// ascii(): the repr with everything beyond ASCII escaped.
std::string ascii_repr(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<uint32_t>(next_code_point(text, i));
    if (c < 0x80)
      out += static_cast<char>(c);
    else if (c <= 0xFF)
      out += fmt::format("\\x{:02x}", c);
    else if (c <= 0xFFFF)
      out += fmt::format("\\u{:04x}", c);
    else
      out += fmt::format("\\U{:08x}", c);
  }
  return out;
}

Value format_percent(const Value& text, const Value& operand) {
  return PercentFormatter(text, operand).run();
}

}  // namespace kvasir::jinja
