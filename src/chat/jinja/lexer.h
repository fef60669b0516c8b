// Template source to tokens, with the white-space rules of trim_blocks and lstrip_blocks applied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace kvasir::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  // operators
  add,
  subtract,
  multiply,
  power,
  divide,
  floor_divide,
  modulo,
  tilde,
  dot,
  comma,
  colon,
  semicolon,
  pipe,
  assign,
  left_paren,
  right_paren,
  left_bracket,
  right_bracket,
  left_brace,
  right_brace,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  end,
};

// How an error message names a token of this kind.
std::string_view describe(TokenKind kind);

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, the decoded string
  Value number;
};

// Thrown by the lexer and the parser.
struct SyntaxFailure {
  int line;
  std::string message;
};

// Throws SyntaxFailure. The source must be valid UTF-8.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvasir::jinja
