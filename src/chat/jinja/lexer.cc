// The grammar of tokens is jinja2's (its documentation, "Template Designer Documentation", and its observable
// behaviour where that is silent): a template is data with three kinds of tags, and inside tags there are
// Python-like tokens.
#include "chat/jinja/lexer.h"

#include <fmt/format.h>

#include <cstdlib>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/number.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

// \r\n and \r become \n; one newline at the very end goes.
std::string normalise_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  return out;
}

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex_digit(char c) {
  return is_ascii_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise_newlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    text_ = source_;
  }

  std::vector<Token> run() {
    while (position_ < text_.size()) lex_data();
    push(TokenKind::end, {});
    return std::move(tokens_);
  }

 private:
  enum class Tag { variable, block, comment, raw, none };

  void push(TokenKind kind, std::string text) {
    tokens_.push_back(Token{kind, line_, std::move(text), Value()});
  }
  [[noreturn]] void error(std::string message) const { throw SyntaxFailure{line_, std::move(message)}; }

  void count_lines(std::string_view part) {
    for (const char c : part) line_ += c == '\n' ? 1 : 0;
  }

  // The end of the white space (Python's) that starts at `from`.
  size_t skip_space(size_t from) const {
    while (from < text_.size()) {
      size_t after = from;
      if (!is_space(next_code_point(text_, after))) break;
      from = after;
    }
    return from;
  }

  // If a `raw` (or `endraw`) tag opens at `at`, the offset behind it, and the sign after its {%.
  size_t raw_tag_end(size_t at, std::string_view word, char& sign, bool ends_raw) const {
    size_t i = at + 2;
    sign = 0;
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) sign = text_[i++];
    i = skip_space(i);
    if (text_.substr(i, word.size()) != word) return 0;
    i = skip_space(i + word.size());
    if (text_.substr(i, 3) == "-%}") return skip_space(i + 3);
    if (ends_raw && text_.substr(i, 3) == "+%}") return i + 3;
    if (text_.substr(i, 2) != "%}") return 0;
    i += 2;
    if (ends_raw && i < text_.size() && text_[i] == '\n') ++i;
    return i;
  }

  // Emits the text before a tag, after the white-space control of the tag's opening sign.
  void emit_data(std::string_view data, char sign, bool is_variable) {
    std::string_view kept = data;
    if (sign == '-') {
      kept = strip(data, nullptr, false, true);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = data.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) && line_start < data.size() &&
          strip_space(data.substr(line_start)).empty())
        kept = data.substr(0, line_start);
    }
    if (!kept.empty()) push(TokenKind::data, std::string(kept));
    count_lines(data);
  }

  void lex_data() {
    const size_t start = position_;
    size_t at = start;
    Tag tag = Tag::none;
    size_t raw_end = 0;
    char sign = 0;
    for (;; ++at) {
      at = text_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= text_.size()) break;
      const char second = text_[at + 1];
      if (second == '{') tag = Tag::variable;
      if (second == '#') tag = Tag::comment;
      if (second == '%') {
        raw_end = raw_tag_end(at, "raw", sign, false);
        tag = raw_end != 0 ? Tag::raw : Tag::block;
      }
      if (tag != Tag::none) break;
    }
    if (tag == Tag::none) {
      const std::string_view rest = text_.substr(start);
      push(TokenKind::data, std::string(rest));
      count_lines(rest);
      position_ = text_.size();
      return;
    }
    if (tag != Tag::raw) {
      sign = at + 2 < text_.size() && (text_[at + 2] == '-' || text_[at + 2] == '+') ? text_[at + 2] : '\0';
    }
    emit_data(text_.substr(start, at - start), sign, tag == Tag::variable);
    if (tag == Tag::raw) {
      lex_raw(at, raw_end);
      return;
    }
    position_ = at + 2 + (sign != 0 ? 1 : 0);
    line_starting_ = false;
    if (tag == Tag::comment) {
      lex_comment();
    } else {
      push(tag == Tag::variable ? TokenKind::variable_begin : TokenKind::block_begin, {});
      lex_tag(tag == Tag::variable);
    }
  }

  void lex_raw(size_t tag_start, size_t body) {
    count_lines(text_.substr(tag_start, body - tag_start));
    line_starting_ = text_[body - 1] == '\n';
    if (body == text_.size()) {  // nothing follows: jinja2 takes that for the end
      position_ = body;
      return;
    }
    for (size_t at = body;; ++at) {
      at = text_.find("{%", at);
      if (at == std::string_view::npos) error("Missing end of raw directive");
      char sign = 0;
      const size_t end = raw_tag_end(at, "endraw", sign, true);
      if (end == 0) continue;
      emit_data(text_.substr(body, at - body), sign, false);
      count_lines(text_.substr(at, end - at));
      line_starting_ = text_[end - 1] == '\n';
      position_ = end;
      return;
    }
  }

  void lex_comment() {
    if (position_ == text_.size()) return;
    const size_t close = text_.find("#}", position_);
    if (close == std::string_view::npos) error("Missing end of comment tag");
    size_t end = close + 2;
    if (close > position_ && text_[close - 1] == '-')
      end = skip_space(end);
    else if (!(close > position_ && text_[close - 1] == '+') && end < text_.size() && text_[end] == '\n')
      ++end;
    count_lines(text_.substr(position_, end - position_));
    line_starting_ = text_[end - 1] == '\n';
    position_ = end;
  }

  // True, and past the tag, if it ends here.
  bool tag_end(bool variable) {
    const std::string_view rest = text_.substr(position_);
    const std::string_view close = variable ? "}}" : "%}";
    size_t end = 0;
    if (rest.size() >= 3 && rest[0] == '-' && rest.substr(1, 2) == close) {
      end = skip_space(position_ + 3);
    } else if (!variable && rest.size() >= 3 && rest[0] == '+' && rest.substr(1, 2) == close) {
      end = position_ + 3;
    } else if (rest.substr(0, 2) == close) {
      end = position_ + 2;
      if (!variable && end < text_.size() && text_[end] == '\n') ++end;
    } else {
      return false;
    }
    push(variable ? TokenKind::variable_end : TokenKind::block_end, {});
    count_lines(text_.substr(position_, end - position_));
    line_starting_ = text_[end - 1] == '\n';
    position_ = end;
    return true;
  }

  void lex_tag(bool variable) {
    std::string open;  // the closing brackets that are awaited
    while (position_ < text_.size()) {
      if (open.empty() && tag_end(variable)) return;
      const size_t after = skip_space(position_);
      if (after != position_) {
        count_lines(text_.substr(position_, after - position_));
        position_ = after;
        continue;
      }
      if (lex_number() || lex_name()) continue;
      const char c = text_[position_];
      if ((c == '\'' || c == '"') && lex_string()) continue;
      lex_operator(open);
    }
  }

  // Digits with single underscores between them; 0 if there are none.
  size_t digits_end(size_t at) const {
    if (at >= text_.size() || !is_ascii_digit(text_[at])) return 0;
    while (at < text_.size()) {
      if (is_ascii_digit(text_[at]))
        ++at;
      else if (text_[at] == '_' && at + 1 < text_.size() && is_ascii_digit(text_[at + 1]))
        ++at;
      else
        break;
    }
    return at;
  }

  size_t float_end() const {
    if (position_ > 0 && text_[position_ - 1] == '.') return 0;
    size_t end = digits_end(position_);
    if (end == 0) return 0;
    bool is_float = false;
    if (end < text_.size() && text_[end] == '.') {
      if (const size_t fraction = digits_end(end + 1); fraction != 0) {
        end = fraction;
        is_float = true;
      }
    }
    if (end < text_.size() && (text_[end] | 0x20) == 'e') {
      size_t at = end + 1;
      if (at < text_.size() && (text_[at] == '+' || text_[at] == '-')) ++at;
      if (const size_t exponent = digits_end(at); exponent != 0) return exponent;
    }
    return is_float ? end : 0;
  }

  size_t integer_end() const {
    const char c = text_[position_];
    if (!is_ascii_digit(c)) return 0;
    const auto prefixed = [&](char letter, auto&& accepts) -> size_t {
      size_t at = position_ + 1;
      if (at >= text_.size() || (text_[at] | 0x20) != letter) return 0;
      ++at;
      const size_t first = at;
      while (at < text_.size()) {
        const size_t digit = text_[at] == '_' ? at + 1 : at;
        if (digit >= text_.size() || !accepts(text_[digit])) break;
        at = digit + 1;
      }
      return at == first ? 0 : at;
    };
    if (c == '0') {
      if (const size_t e = prefixed('b', [](char d) { return d == '0' || d == '1'; }); e != 0) return e;
      if (const size_t e = prefixed('o', [](char d) { return d >= '0' && d <= '7'; }); e != 0) return e;
      if (const size_t e = prefixed('x', [](char d) { return is_hex_digit(d); }); e != 0) return e;
      size_t at = position_ + 1;
      while (at < text_.size() &&
             (text_[at] == '0' || (text_[at] == '_' && at + 1 < text_.size() && text_[at + 1] == '0')))
        ++at;
      return at;
    }
    return digits_end(position_);
  }

  bool lex_number() {
    if (!is_ascii_digit(text_[position_])) return false;
    if (const size_t end = float_end(); end != 0) {
      const auto value = parse_float(text_.substr(position_, end - position_));
      push(TokenKind::floating, {});
      tokens_.back().number = Value(value.value_or(0));
      position_ = end;
      return true;
    }
    const size_t end = integer_end();
    std::string digits;
    for (const char c : text_.substr(position_, end - position_))
      if (c != '_') digits += c;
    try {
      const auto value = parse_integer(digits, 0);
      push(TokenKind::integer, {});
      tokens_.back().number = value.value_or(Value(0));
    } catch (const Failure& failure) {
      error(failure.message);
    }
    position_ = end;
    return true;
  }

  bool lex_name() {
    const auto is_ascii_word = [](char c) {
      return c == '_' || is_ascii_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    };
    size_t end = position_;
    while (end < text_.size() && is_ascii_word(text_[end])) ++end;
    if (end > position_ && (end == text_.size() || static_cast<unsigned char>(text_[end]) < 0x80)) {
      // The usual name (numbers were tried before, so it does not begin with a digit).
      push(TokenKind::name, std::string(text_.substr(position_, end - position_)));
      position_ = end;
      return true;
    }
    while (end < text_.size()) {
      size_t after = end;
      const char32_t c = next_code_point(text_, after);
      if (!is_word(c) && c != 0xB7 &&
          !(c >= 0x80 && is_identifier("a" + std::string(text_.substr(end, after - end)))))
        break;
      end = after;
    }
    if (end == position_) return false;
    const std::string_view name = text_.substr(position_, end - position_);
    if (!is_identifier(name)) error("Invalid character in identifier");
    push(TokenKind::name, std::string(name));
    position_ = end;
    return true;
  }

  bool lex_string() {
    const char mark = text_[position_];
    size_t end = position_ + 1;
    while (end < text_.size() && text_[end] != mark) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return false;
    const std::string_view body = text_.substr(position_ + 1, end - position_ - 1);
    push(TokenKind::string, unescape(body));
    count_lines(body);
    position_ = end + 1;
    return true;
  }

  // Python's "unicode-escape" decoding of the text after every non-ASCII character was replaced by its
  // escape: so a backslash before a non-ASCII character escapes the backslash of that replacement, as in the
  // reference.
  std::string unescape(std::string_view body) const {
    std::string ascii;
    for (size_t i = 0; i < body.size();) {
      const char32_t c = next_code_point(body, i);
      if (c < 0x80) {
        ascii += static_cast<char>(c);
      } else if (c <= 0xFF) {
        ascii += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
      } else if (c <= 0xFFFF) {
        ascii += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
      } else {
        ascii += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
      }
    }
    std::string out;
    for (size_t i = 0; i < ascii.size();) {
      if (ascii[i] != '\\') {
        out += ascii[i++];
        continue;
      }
      ++i;
      if (i >= ascii.size()) error("\\ at end of string");
      const char c = ascii[i++];
      const auto hex = [&](int digits) {
        uint32_t code = 0;
        for (int k = 0; k < digits; ++k) {
          if (i >= ascii.size() || !is_hex_digit(ascii[i]))
            error(fmt::format("truncated \\{}{} escape", c, std::string(static_cast<size_t>(digits), 'X')));
          const char d = ascii[i++];
          code = code * 16 + static_cast<uint32_t>(is_ascii_digit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
        }
        if (code > 0x10FFFF) error("illegal Unicode character");
        if (code >= 0xD800 && code <= 0xDFFF) error("a surrogate escape cannot be written as UTF-8");
        append_code_point(out, code);
      };
      switch (c) {
        case '\n':
          break;
        case '\\':
          out += '\\';
          break;
        case '\'':
          out += '\'';
          break;
        case '"':
          out += '"';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
          hex(2);
          break;
        case 'u':
          hex(4);
          break;
        case 'U':
          hex(8);
          break;
        case 'N':
          error("\\N{...} escapes are not supported in chat templates");
        default:
          if (c >= '0' && c <= '7') {
            uint32_t code = static_cast<uint32_t>(c - '0');
            for (int k = 0; k < 2 && i < ascii.size() && ascii[i] >= '0' && ascii[i] <= '7'; ++k)
              code = code * 8 + static_cast<uint32_t>(ascii[i++] - '0');
            append_code_point(out, code);
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  void lex_operator(std::string& open) {
    static constexpr struct {
      std::string_view text;
      TokenKind kind;
    } kOperators[] = {
        {"**", TokenKind::power},      {"//", TokenKind::floor_divide}, {"==", TokenKind::equal},
        {"!=", TokenKind::not_equal},  {"<=", TokenKind::less_equal},   {">=", TokenKind::greater_equal},
        {"+", TokenKind::add},         {"-", TokenKind::subtract},      {"*", TokenKind::multiply},
        {"/", TokenKind::divide},      {"%", TokenKind::modulo},        {"~", TokenKind::tilde},
        {".", TokenKind::dot},         {",", TokenKind::comma},         {":", TokenKind::colon},
        {";", TokenKind::semicolon},   {"|", TokenKind::pipe},          {"=", TokenKind::assign},
        {"<", TokenKind::less},        {">", TokenKind::greater},       {"(", TokenKind::left_paren},
        {")", TokenKind::right_paren}, {"[", TokenKind::left_bracket},  {"]", TokenKind::right_bracket},
        {"{", TokenKind::left_brace},  {"}", TokenKind::right_brace},
    };
    const std::string_view rest = text_.substr(position_);
    for (const auto& [text, kind] : kOperators) {
      if (rest[0] != text[0] || (text.size() == 2 && (rest.size() < 2 || rest[1] != text[1]))) continue;
      const char c = text[0];
      if (kind == TokenKind::left_paren) open += ')';
      if (kind == TokenKind::left_bracket) open += ']';
      if (kind == TokenKind::left_brace) open += '}';
      if (kind == TokenKind::right_paren || kind == TokenKind::right_bracket ||
          kind == TokenKind::right_brace) {
        if (open.empty()) error(fmt::format("unexpected '{}'", c));
        if (open.back() != c) error(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
        open.pop_back();
      }
      push(kind, {});
      position_ += text.size();
      return;
    }
    size_t after = position_;
    next_code_point(text_, after);
    error(fmt::format("unexpected char {} at {}", quote(text_.substr(position_, after - position_)),
                      count_code_points(text_.substr(0, position_))));
  }

  std::string source_;
  std::string_view text_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string_view describe(TokenKind kind) {
  switch (kind) {
    case TokenKind::data:
      return "template data / text";
    case TokenKind::variable_begin:
      return "begin of print statement";
    case TokenKind::variable_end:
      return "end of print statement";
    case TokenKind::block_begin:
      return "begin of statement block";
    case TokenKind::block_end:
      return "end of statement block";
    case TokenKind::name:
      return "name";
    case TokenKind::string:
      return "string";
    case TokenKind::integer:
      return "integer";
    case TokenKind::floating:
      return "float";
    case TokenKind::add:
      return "+";
    case TokenKind::subtract:
      return "-";
    case TokenKind::multiply:
      return "*";
    case TokenKind::power:
      return "**";
    case TokenKind::divide:
      return "/";
    case TokenKind::floor_divide:
      return "//";
    case TokenKind::modulo:
      return "%";
    case TokenKind::tilde:
      return "~";
    case TokenKind::dot:
      return ".";
    case TokenKind::comma:
      return ",";
    case TokenKind::colon:
      return ":";
    case TokenKind::semicolon:
      return ";";
    case TokenKind::pipe:
      return "|";
    case TokenKind::assign:
      return "=";
    case TokenKind::left_paren:
      return "(";
    case TokenKind::right_paren:
      return ")";
    case TokenKind::left_bracket:
      return "[";
    case TokenKind::right_bracket:
      return "]";
    case TokenKind::left_brace:
      return "{";
    case TokenKind::right_brace:
      return "}";
    case TokenKind::equal:
      return "==";
    case TokenKind::not_equal:
      return "!=";
    case TokenKind::less:
      return "<";
    case TokenKind::less_equal:
      return "<=";
    case TokenKind::greater:
      return ">";
    case TokenKind::greater_equal:
      return ">=";
    case TokenKind::end:
      return "end of template";
  }
  return "";
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace kvasir::jinja
