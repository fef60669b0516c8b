// str.format.
#include <algorithm>
#include <cmath>
#include <cstdlib>

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

struct Specification {
  std::string fill = " ";
  char align = 0, sign = 0, grouping = 0, type = 0;
  bool alternate = false, zero = false, negative_zero = false;
  int64_t width = -1, precision = -1;
};

Specification parse_specification(std::string_view spec, std::string_view type) {
  Specification out;
  size_t i = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  size_t after = 0;
  if (!spec.empty()) next_code_point(spec, after);
  bool explicit_fill = false;
  if (after > 0 && after < spec.size() && is_align(spec[after])) {
    out.fill = std::string(spec.substr(0, after));
    out.align = spec[after];
    i = after + 1;
    explicit_fill = true;
  } else if (!spec.empty() && is_align(spec[0])) {
    out.align = spec[0];
    i = 1;
  }
  const auto next_is = [&](char c) { return i < spec.size() && spec[i] == c; };
  if (next_is('+') || next_is('-') || next_is(' ')) out.sign = spec[i++];
  if (next_is('z')) out.negative_zero = true, ++i;
  if (next_is('#')) out.alternate = true, ++i;
  if (!explicit_fill && next_is('0')) {
    out.fill = "0";
    out.zero = true;
    if (out.align == 0) out.align = '0';  // '=' for numbers, '<' for strings
    ++i;
  }
  const auto number = [&](int64_t& target) {
    bool any = false;
    target = 0;
    while (i < spec.size() && spec[i] >= '0' && spec[i] <= '9') {
      target = target * 10 + (spec[i++] - '0');
      if (target > kMaxWidth) value_error("Too many decimal digits in format string");
      any = true;
    }
    if (!any) target = -1;
    return any;
  };
  number(out.width);
  if (next_is(',') || next_is('_')) {
    out.grouping = spec[i++];
    if (next_is(',') || next_is('_')) value_error("Cannot specify both ',' and '_'.");
  }
  if (next_is('.')) {
    ++i;
    if (!number(out.precision)) value_error("Format specifier missing precision");
  }
  if (i < spec.size()) {
    out.type = spec[i++];
    if (i < spec.size()) value_error("Invalid format specifier '{}' for object of type '{}'", spec, type);
  }
  return out;
}

std::string grouped(const std::string& digits, char separator, size_t every, int64_t min_width) {
  if (separator == 0) {
    if (min_width > static_cast<int64_t>(digits.size()))
      return std::string(static_cast<size_t>(min_width) - digits.size(), '0') + digits;
    return digits;
  }
  std::string reversed;
  size_t count = 0;
  const auto add = [&](char c) {
    if (count != 0 && count % every == 0) reversed += separator;
    reversed += c;
    ++count;
  };
  for (size_t i = digits.size(); i-- > 0;) add(digits[i]);
  while (static_cast<int64_t>(reversed.size()) < min_width) add('0');
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

std::string finish_number(const Specification& spec, bool negative, const std::string& prefix,
                          const std::string& integer_part, const std::string& rest, size_t group) {
  std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  const char align = spec.align == '0' ? '=' : spec.align == 0 ? '>' : spec.align;
  int64_t min_digits = 0;
  const auto fixed = static_cast<int64_t>(sign.size() + prefix.size() + rest.size());
  if (spec.width > 0) check_string_size(checked_repeat(1, spec.width, true) * 2);
  if (align == '=' && spec.fill == "0") min_digits = spec.width - fixed;
  std::string body = grouped(integer_part, spec.grouping, group, min_digits) + rest;
  if (align == '=') {
    const int64_t blank =
        spec.width - static_cast<int64_t>(sign.size() + prefix.size()) - count_code_points(body);
    std::string filler;
    for (int64_t i = 0; i < blank; ++i) filler += spec.fill;
    return sign + prefix + filler + body;
  }
  return pad(sign + prefix + body, spec.width, spec.fill, align);
}

std::string format_double(double value, const Specification& spec) {
  const char type = spec.type;
  if (type != 0 && std::string_view("eEfFgGn%").find(type) == std::string_view::npos)
    value_error("Unknown format code '{}' for object of type 'float'", type);
  if (type == 'n' && spec.grouping != 0) value_error("Cannot specify '{}' with 'n'.", spec.grouping);
  double magnitude = std::fabs(value);
  bool negative = std::signbit(value) && !std::isnan(value);
  std::string body;
  const int precision = spec.precision < 0 ? -1 : float_precision(spec.precision);
  if (!std::isfinite(value)) {
    body = std::isnan(value) ? "nan" : "inf";
    if (type == 'E' || type == 'F' || type == 'G')
      for (char& c : body) c = static_cast<char>(c - 32);
    if (type == '%') body += '%';
    Specification plain = spec;
    plain.grouping = 0;
    return finish_number(plain, negative, {}, {}, body, 3);
  }
  if (type == 0 && spec.precision < 0) {
    body = float_repr(magnitude);
  } else if (type == 0) {
    const int digits = std::max(precision, 1);
    const std::string e = format_float(magnitude, 'e', digits - 1, false);
    const int point = std::atoi(e.substr(e.find('e') + 1).c_str()) + 1;
    if (magnitude != 0 && (point <= -4 || point > digits - 1)) {
      std::string mantissa = e.substr(0, e.find('e'));
      if (mantissa.find('.') != std::string::npos) {
        while (mantissa.back() == '0') mantissa.pop_back();
        if (mantissa.back() == '.') mantissa.pop_back();
      }
      body = mantissa + e.substr(e.find('e'));
    } else {
      body = format_float(magnitude, 'g', digits, false);
      if (body.find('.') == std::string::npos && body.find('e') == std::string::npos) body += ".0";
    }
  } else if (type == '%') {
    body = format_float(magnitude * 100, 'f', spec.precision < 0 ? 6 : precision, spec.alternate) + "%";
  } else {
    body =
        format_float(magnitude, type == 'n' ? 'g' : type, spec.precision < 0 ? 6 : precision, spec.alternate);
  }
  if (spec.negative_zero && body.find_first_of("123456789") == std::string::npos) negative = false;
  size_t end = 0;
  while (end < body.size() && body[end] >= '0' && body[end] <= '9') ++end;
  return finish_number(spec, negative, {}, body.substr(0, end), body.substr(end), 3);
}

std::string format_integer(const Value& value, const Specification& spec) {
  const char type = spec.type == 0 ? 'd' : spec.type;
  if (std::string_view("eEfFgG%").find(type) != std::string_view::npos)
    return format_double(as_double(value), spec);
  if (std::string_view("bcdoxXn").find(type) == std::string_view::npos)
    value_error("Unknown format code '{}' for object of type 'int'", type);
  if (spec.precision >= 0) value_error("Precision not allowed in integer format specifier");
  if (spec.negative_zero)
    value_error("Negative zero coercion (z) not allowed in format specifier with integer");
  if (type == 'c') {
    if (spec.sign != 0) value_error("Sign not allowed with integer format specifier 'c'");
    if (spec.alternate) value_error("Alternate form (#) not allowed with integer format specifier 'c'");
    if (spec.grouping != 0) value_error("Cannot specify '{}' with 'c'.", spec.grouping);
    const int64_t code = as_index(value, "%c", true);
    if (code < 0 || code > 0x10FFFF) fail(FailureKind::overflow_error, "%c arg not in range(0x110000)");
    if (code >= 0xD800 && code <= 0xDFFF)
      fail(FailureKind::unsupported, "a surrogate cannot be written as UTF-8");
    std::string text;
    append_code_point(text, static_cast<char32_t>(code));
    const char align = spec.align == 0 || spec.align == '0' || spec.align == '=' ? '>' : spec.align;
    return pad(text, spec.width, spec.fill, align == '>' && spec.align == 0 ? '<' : align);
  }
  const bool decimal = type == 'd' || type == 'n';
  if (type == 'n' && spec.grouping != 0) value_error("Cannot specify '{}' with 'n'.", spec.grouping);
  if (!decimal && spec.grouping == ',') value_error("Cannot specify ',' with '{}'.", type);
  std::string text = decimal ? integer_text(positive(value))
                             : as_big(value).to_string(type == 'b'   ? 2
                                                       : type == 'o' ? 8
                                                                     : 16);
  const bool negative = text[0] == '-';
  if (negative) text.erase(0, 1);
  if (type == 'X')
    for (char& c : text) c = static_cast<char>(c >= 'a' ? c - 32 : c);
  const std::string prefix = spec.alternate && !decimal ? std::string("0") + type : "";
  return finish_number(spec, negative, prefix, text, {}, decimal ? 3 : 4);
}

std::string format_text(const std::string& text, const Specification& spec) {
  if (spec.type != 0 && spec.type != 's')
    value_error("Unknown format code '{}' for object of type 'str'", spec.type);
  if (spec.sign == ' ') value_error("Space not allowed in string format specifier");
  if (spec.sign != 0) value_error("Sign not allowed in string format specifier");
  if (spec.negative_zero) value_error("Negative zero coercion (z) not allowed in string format specifier");
  if (spec.alternate) value_error("Alternate form (#) not allowed in string format specifier");
  if (spec.align == '=') value_error("'=' alignment not allowed in string format specifier");
  if (spec.grouping != 0) value_error("Cannot specify '{}' with 's'.", spec.grouping);
  std::string out = text;
  if (spec.precision >= 0 && spec.precision < count_code_points(out))
    out.resize(byte_offset(out, spec.precision, false));
  return pad(out, spec.width, spec.fill, spec.align == 0 || spec.align == '0' ? '<' : spec.align);
}

std::string format_value(const Value& value, const std::string& spec) {
  if (spec.empty()) return to_text(value);
  if (value.is_number() || value.is_string()) {
    const Specification parsed = parse_specification(spec, type_name(value));
    if (value.is_string()) return format_text(value.text(), parsed);
    return value.is(Kind::floating) ? format_double(value.floating(), parsed) : format_integer(value, parsed);
  }
  type_error("unsupported format string passed to {}.__format__", type_name(value));
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, bool markup, const std::vector<Value>& positional,
                 const std::vector<std::pair<std::string, Value>>& keywords, const Value* mapping)
      : interpreter_(interpreter),
        markup_(markup),
        positional_(positional),
        keywords_(keywords),
        mapping_(mapping) {}

  std::string format(std::string_view text, int depth) {
    if (depth < 0) value_error("Max string recursion exceeded");
    std::string out;
    size_t i = 0;
    while (i < text.size()) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        const size_t end = std::min(text.find_first_of("{}", i), text.size());
        out += text.substr(i, end - i);
        i = end;
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        i += 2;
        continue;
      }
      if (c == '}') value_error("Single '}}' encountered in format string");
      if (i + 1 >= text.size()) value_error("Single '{{' encountered in format string");
      out += field(text, i, depth);
      check_string_size(out.size());
    }
    return out;
  }

 private:
  std::string field(std::string_view text, size_t& i, int depth) {
    // The field ends at its matching brace; brackets hide braces inside them.
    const size_t start = ++i;
    size_t name_end = start;
    bool bracket = false;
    while (name_end < text.size()) {
      const char c = text[name_end];
      if (c == '{') value_error("unexpected '{{' in field name");
      if (c == '[') bracket = true;
      if (c == ']') bracket = false;
      if (!bracket && (c == '}' || c == ':' || c == '!')) break;
      ++name_end;
    }
    if (name_end >= text.size()) value_error("expected '}}' before end of string");
    const std::string_view name = text.substr(start, name_end - start);
    size_t at = name_end;
    std::string conversion;
    if (text[at] == '!') {
      if (at + 1 >= text.size()) value_error("end of string while looking for conversion specifier");
      size_t after = at + 1;
      next_code_point(text, after);
      conversion = text.substr(at + 1, after - at - 1);
      at = after;
      if (at >= text.size()) value_error("unmatched '{{' in format spec");
      if (text[at] != ':' && text[at] != '}') value_error("expected ':' after conversion specifier");
    }
    std::string_view spec;
    if (text[at] == ':') {
      const size_t spec_start = ++at;
      int nested = 1;
      while (at < text.size()) {
        if (text[at] == '{') ++nested;
        if (text[at] == '}' && --nested == 0) break;
        ++at;
      }
      if (at >= text.size()) value_error("unmatched '{{' in format spec");
      spec = text.substr(spec_start, at - spec_start);
    }
    i = at + 1;
    Value value = look_up(name);
    if (conversion == "r")
      value = Value(repr(value));
    else if (conversion == "s")
      value = Value(to_text(value));
    else if (conversion == "a")
      value = Value(ascii_repr(repr(value)));
    else if (!conversion.empty())
      value_error("Unknown conversion specifier {}", conversion);
    const std::string specification = format(spec, depth - 1);
    if (!markup_) return format_value(value, specification);
    if (value.is_markup()) {
      if (!specification.empty()) value_error("Unsupported format specification for Markup.");
      return value.text();
    }
    return escape_text(format_value(value, specification));
  }

  Value look_up(std::string_view name) {
    size_t end = name.find_first_of(".[");
    if (end == std::string_view::npos) end = name.size();
    std::string first(name.substr(0, end));
    const auto mixed = [] {
      value_error("cannot switch from manual field specification to automatic field numbering");
    };
    if (name.empty()) {
      if (manual_) mixed();
      first = std::to_string(automatic_++);
    } else if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      if (automatic_ > 0) mixed();
      manual_ = true;
    }
    Value value = argument(first);
    while (end < name.size()) {
      if (name[end] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", end + 1), name.size());
        if (stop == end + 1) value_error("Empty attribute in format string");
        value = interpreter_.get_attribute(value, Value(name.substr(end + 1, stop - end - 1)));
        end = stop;
      } else if (name[end] == '[') {
        const size_t stop = name.find(']', end + 1);
        if (stop == std::string_view::npos) value_error("Missing ']' in format string");
        const std::string_view key = name.substr(end + 1, stop - end - 1);
        if (key.empty()) value_error("Empty attribute in format string");
        const bool number = key.find_first_not_of("0123456789") == std::string_view::npos;
        value =
            interpreter_.get_item(value, number ? parse_integer(key, 10).value_or(Value(key)) : Value(key));
        end = stop + 1;
        if (end < name.size() && name[end] != '.' && name[end] != '[')
          value_error("Only '.' or '[' may follow ']' in format field specifier");
      } else {
        value_error("unexpected text in a format field");
      }
    }
    return value;
  }

  Value argument(const std::string& key) {
    if (!key.empty() && key.find_first_not_of("0123456789") == std::string::npos) {
      if (key.size() > 9) value_error("Too many decimal digits in format string");
      const auto index = static_cast<size_t>(std::stoul(key));
      if (index >= positional_.size())
        fail(FailureKind::index_error, "Replacement index {} out of range for positional args tuple", index);
      return positional_[index];
    }
    if (mapping_ != nullptr) {
      Value out;
      if (!subscript(&interpreter_, *mapping_, Value(key), out))
        fail(FailureKind::key_error, "{}", quote(key));
      return out;
    }
    for (const auto& [name, value] : keywords_)
      if (name == key) return value;
    fail(FailureKind::key_error, "{}", quote(key));
  }

  Interpreter& interpreter_;
  bool markup_;
  const std::vector<Value>& positional_;
  const std::vector<std::pair<std::string, Value>>& keywords_;
  const Value* mapping_;
  bool manual_ = false;
  int automatic_ = 0;
};

}  // namespace

Value format_braces(Interpreter& interpreter, const Value& text, const std::vector<Value>& positional,
                    const std::vector<std::pair<std::string, Value>>& keywords, const Value* mapping) {
  BraceFormatter formatter(interpreter, text.is_markup(), positional, keywords, mapping);
  return Value(formatter.format(text.text(), 2), text.is_markup());
}

}  // namespace kvasir::jinja
