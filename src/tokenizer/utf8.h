// UTF-8, decoded one character at a time, and repaired where it is invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::tokenizer {

constexpr char32_t kReplacement = 0xFFFD;

struct CodePoint {
  char32_t value;
  uint32_t length;  // bytes; 0 only at the end of the text
};

// The length that a lead byte announces: 1 for ASCII and for bytes that can lead nothing, else 2, 3 or 4.
constexpr uint32_t utf8_length(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0xC0 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

// The character at `position` of a text known to be valid UTF-8.
inline CodePoint decode_valid(std::string_view text, size_t position) {
  if (position >= text.size()) return {0, 0};
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + position;
  if (p[0] < 0x80) return {p[0], 1};
  if (p[0] < 0xE0) return {(p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2};
  if (p[0] < 0xF0) return {(p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3};
  return {(p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4};
}

// The character at `position` of any bytes. An ill-formed sequence gives kReplacement with the length of its
// maximal subpart (Unicode 16, section 3.9, "U+FFFD substitution of maximal subparts"). `cut` is set when the
// text ends inside a sequence that was well-formed so far, so that more bytes could complete it.
CodePoint decode_lossy(std::string_view text, size_t position, bool* cut = nullptr);

bool is_valid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t value);

// `text` with every maximal ill-formed subpart replaced by U+FFFD.
std::string replace_invalid(std::string_view text);

// The rule of GGUF's byte-level and WordPiece vocabularies: a lead byte (C0-DF, E0-EF, F0-F7) followed by
// enough continuation bytes is a character, whatever it encodes (overlong forms and surrogates are re-encoded
// as they decode; above U+10FFFF: one U+FFFD per byte); any other byte is one U+FFFD.
std::string replace_invalid_structural(std::string_view text);

// Characters of a valid text.
size_t count_characters(std::string_view text);

}  // namespace kvasir::tokenizer
