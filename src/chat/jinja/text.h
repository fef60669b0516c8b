// UTF-8 text with Python's view of it: code points, and the properties and mappings behind str's methods.
// All strings here are valid UTF-8 (checked where text enters the engine), without surrogates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::jinja {

bool is_valid_utf8(std::string_view text);
// Number of code points.
int64_t count_code_points(std::string_view text);
// The code point at `position`, which is advanced beyond it.
char32_t next_code_point(std::string_view text, size_t& position);
void append_code_point(std::string& out, char32_t code);
std::vector<char32_t> decode(std::string_view text);
std::string encode(const std::vector<char32_t>& codes);
// Byte offset of code point number `index` (0..length).
size_t byte_offset(std::string_view text, int64_t index, bool ascii);

bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_space(char32_t c);
bool is_printable(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_titlecase(char32_t c);
inline bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c);
}
// \w of Python's re
inline bool is_word(char32_t c) {
  return c == '_' || is_alnum(c);
}
bool is_identifier(std::string_view text);
// 0..9, or -1 if not a decimal digit of any script.
int decimal_value(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
std::string case_fold(std::string_view text);

bool text_is_lower(std::string_view text);
bool text_is_upper(std::string_view text);
bool text_is_title(std::string_view text);

// str.strip and friends: white space when `characters` is null.
std::string_view strip(std::string_view text, const std::string_view* characters, bool left, bool right);
std::string_view strip_space(std::string_view text);
// str.splitlines
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// str.split() without a separator; limit < 0: no limit.
std::vector<std::string_view> split_space(std::string_view text, int64_t limit);
std::vector<std::string_view> split_text(std::string_view text, std::string_view separator, int64_t limit,
                                         bool from_right);
std::vector<std::string_view> right_split_space(std::string_view text, int64_t limit);
// str.replace; count < 0: all.
std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count);
// repr() of a str.
std::string quote(std::string_view text);

}  // namespace kvasir::jinja
