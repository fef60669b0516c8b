#include "formats/json_scanner.h"

#include <locale.h>
#include <simdjson.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace kvasir::formats {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_utf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code >> 6));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code >> 12));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | code >> 18));
    out->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

// The nearest double of a JSON number, whatever the process's locale; infinity when it is too large.
double nearest_double(std::string_view digits) {
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec == std::errc()) return value;
  // from_chars leaves the value alone both when it underflows and when it overflows; strtod tells them apart.
  static const locale_t kLocale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  return ::strtod_l(std::string(digits).c_str(), nullptr, kLocale);
}

}  // namespace

JsonScanner::JsonScanner(std::string_view text, std::string file, JsonRules rules)
    : text_(text), file_(std::move(file)), rules_(rules) {
  if (!simdjson::validate_utf8(text_.data(), text_.size())) fail("the text is not UTF-8", 0);
  if (rules_.byte_order_mark && text_.starts_with("\xEF\xBB\xBF")) position_ = 3;
}

void JsonScanner::fail(std::string_view reason, size_t at) const {
  const std::string_view before = text_.substr(0, std::min(at, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  throw_error(ErrorCode::corrupt_file, "{}: {}: {} at byte {} (line {})", printable(file_),
              rules_.error_prefix, reason, at, line);
}

void JsonScanner::space() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++position_;
  }
}

JsonScanner::Kind JsonScanner::peek() {
  space();
  if (position_ >= text_.size()) fail("unexpected end");
  switch (text_[position_]) {
    case '{':
      return Kind::object;
    case '[':
      return Kind::array;
    case '"':
      return Kind::string;
    case 't':
    case 'f':
      return Kind::boolean;
    case 'n':
      return Kind::null;
    case 'N':
    case 'I':
      if (rules_.non_finite) return Kind::number;
      fail("NaN and Infinity are no JSON values");
    default:
      break;
  }
  if (text_[position_] == '-' || is_digit(text_[position_])) return Kind::number;
  fail("expected a value");
}

void JsonScanner::expect_kind(Kind kind, std::string_view expected) {
  if (peek() != kind) fail(expected);
}

void JsonScanner::enter() {
  if (started_.size() >= static_cast<size_t>(rules_.depth))
    fail(fmt::format("nesting deeper than the limit of {}", rules_.depth));
  started_.push_back(false);
  ++position_;
}

void JsonScanner::begin_object() {
  expect_kind(Kind::object, "expected an object");
  enter();
}

void JsonScanner::begin_array() {
  expect_kind(Kind::array, "expected an array");
  enter();
}

bool JsonScanner::next_item(char close, std::string_view close_error) {
  space();
  if (current() == close && position_ < text_.size()) {
    ++position_;
    started_.pop_back();
    return false;
  }
  if (started_.back()) {
    if (current() != ',') fail(position_ < text_.size() ? close_error : "unexpected end");
    ++position_;
    space();
  }
  started_.back() = true;
  return true;
}

bool JsonScanner::next_key(std::string_view* key, bool* stable) {
  if (!next_item('}', "expected ',' or '}'")) return false;
  if (current() != '"') fail(position_ < text_.size() ? "expected a key in quotes" : "unexpected end");
  *key = quoted(stable);
  space();
  if (current() != ':') fail(position_ < text_.size() ? "expected ':'" : "unexpected end");
  ++position_;
  return true;
}

bool JsonScanner::next_element() {
  return next_item(']', "expected ',' or ']'");
}

uint32_t JsonScanner::hex4() {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++position_) {
    const char c = current();
    uint32_t digit = 0;
    if (is_digit(c))
      digit = static_cast<uint32_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      digit = static_cast<uint32_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      digit = static_cast<uint32_t>(c - 'A' + 10);
    else
      fail("invalid \\u escape");
    code = code << 4 | digit;
  }
  return code;
}

void JsonScanner::escape(std::string* out) {
  const size_t begin = position_++;  // at the backslash
  const char c = current();
  ++position_;
  switch (c) {
    case '"':
      return out->push_back('"');
    case '\\':
      return out->push_back('\\');
    case '/':
      return out->push_back('/');
    case 'b':
      return out->push_back('\b');
    case 'f':
      return out->push_back('\f');
    case 'n':
      return out->push_back('\n');
    case 'r':
      return out->push_back('\r');
    case 't':
      return out->push_back('\t');
    case 'u':
      break;
    default:
      fail("invalid escape", begin);
  }
  uint32_t code = hex4();
  if (code >= 0xDC00 && code < 0xE000) fail("invalid \\u escape (lone surrogate)", begin);
  if (code >= 0xD800 && code < 0xDC00) {
    if (!text_.substr(position_).starts_with("\\u")) fail("invalid \\u escape (lone surrogate)", begin);
    position_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("invalid \\u escape (lone surrogate)", begin);
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(code, out);
}

std::string_view JsonScanner::quoted(bool* stable) {
  const size_t begin = position_++;
  bool escaped = false;
  size_t run = position_;
  for (;; ++position_) {
    if (position_ >= text_.size()) fail("unterminated string", begin);
    const auto c = static_cast<unsigned char>(text_[position_]);
    if (c == '"') break;
    if (c < 0x20) fail("control character in a string");
    if (c != '\\') continue;
    if (!escaped) unescaped_.clear();
    escaped = true;
    unescaped_.append(text_, run, position_ - run);
    escape(&unescaped_);
    run = position_--;
  }
  const size_t end = position_++;
  if (stable != nullptr) *stable = !escaped;
  if (!escaped) return text_.substr(run, end - run);
  unescaped_.append(text_, run, end - run);
  return unescaped_;
}

std::string_view JsonScanner::string(bool* stable) {
  expect_kind(Kind::string, "expected a string");
  return quoted(stable);
}

void JsonScanner::literal(std::string_view word) {
  if (!text_.substr(position_).starts_with(word)) fail("expected a value");
  position_ += word.size();
}

JsonScanner::Number JsonScanner::number() {
  expect_kind(Kind::number, "expected a number");
  const size_t begin = position_;
  Number number;
  const bool negative = current() == '-';
  if (negative) ++position_;
  if (rules_.non_finite && (current() == 'N' || current() == 'I')) {
    number.form = Number::Form::real;
    const bool nan = current() == 'N';
    if (nan && negative) fail("expected a value", begin);
    literal(nan ? "NaN" : "Infinity");
    number.real = nan ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    if (negative) number.real = -number.real;
    return number;
  }
  bool integer = true;
  const size_t first = position_;
  while (is_digit(current())) ++position_;
  if (position_ == first) fail("invalid number", begin);
  if (text_[first] == '0' && position_ > first + 1) fail("invalid number (leading zero)", begin);
  if (current() == '.') {
    integer = false;
    const size_t fraction = ++position_;
    while (is_digit(current())) ++position_;
    if (position_ == fraction) fail("invalid number", begin);
  }
  if (current() == 'e' || current() == 'E') {
    integer = false;
    ++position_;
    if (current() == '+' || current() == '-') ++position_;
    const size_t exponent = position_;
    while (is_digit(current())) ++position_;
    if (position_ == exponent) fail("invalid number", begin);
  }
  const std::string_view digits = text_.substr(begin, position_ - begin);
  const char* const last = digits.data() + digits.size();
  if (integer) {
    if (std::from_chars(digits.data(), last, number.i64).ec == std::errc()) return number;
    number.form = Number::Form::u64;
    if (!negative && std::from_chars(digits.data(), last, number.u64).ec == std::errc()) return number;
  }
  number.form = Number::Form::real;
  number.real = nearest_double(digits);
  if (std::isinf(number.real)) fail("number out of range", begin);
  return number;
}

bool JsonScanner::boolean() {
  expect_kind(Kind::boolean, "expected true or false");
  const bool value = current() == 't';
  literal(value ? "true" : "false");
  return value;
}

void JsonScanner::null() {
  expect_kind(Kind::null, "expected null");
  literal("null");
}

void JsonScanner::skip() {
  // Without recursion: `closers` holds the kinds of the containers entered here.
  std::vector<Kind> open;
  do {
    if (!open.empty()) {
      std::string_view key;
      if (!(open.back() == Kind::object ? next_key(&key) : next_element())) {
        open.pop_back();
        continue;
      }
    }
    const Kind kind = peek();
    switch (kind) {
      case Kind::object:
        begin_object();
        open.push_back(kind);
        break;
      case Kind::array:
        begin_array();
        open.push_back(kind);
        break;
      case Kind::string:
        string();
        break;
      case Kind::number:
        number();
        break;
      case Kind::boolean:
        boolean();
        break;
      case Kind::null:
        null();
        break;
    }
  } while (!open.empty());
}

void JsonScanner::finish() {
  space();
  if (position_ != text_.size()) fail("unexpected text after the value");
}

}  // namespace kvasir::formats
