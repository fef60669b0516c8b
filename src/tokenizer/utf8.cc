#include "tokenizer/utf8.h"

#include <simdjson.h>

namespace kvasir::tokenizer {

CodePoint decode_lossy(std::string_view text, size_t position, bool* cut) {
  if (cut) *cut = false;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(position);
  if (lead < 0x80) return {lead, 1};
  // The range of the second byte keeps out overlong forms, surrogates and values above U+10FFFF (Unicode 16,
  // table 3-7).
  unsigned low = 0x80, high = 0xBF;
  uint32_t length;
  char32_t value;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, value = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, value = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, value = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacement, 1};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (position + i >= text.size()) {
      if (cut) *cut = true;
      return {kReplacement, i};
    }
    const unsigned char b = byte(position + i);
    if (b < low || b > high) return {kReplacement, i};
    low = 0x80, high = 0xBF;
    value = value << 6 | (b & 0x3Fu);
  }
  return {value, length};
}

bool is_valid_utf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

void append_utf8(std::string& out, char32_t value) {
  const auto push = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (value < 0x80) {
    push(value);
  } else if (value < 0x800) {
    push(0xC0 | value >> 6), push(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    push(0xE0 | value >> 12), push(0x80 | (value >> 6 & 0x3F)), push(0x80 | (value & 0x3F));
  } else {
    push(0xF0 | value >> 18), push(0x80 | (value >> 12 & 0x3F)), push(0x80 | (value >> 6 & 0x3F));
    push(0x80 | (value & 0x3F));
  }
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_lossy(text, i);
    append_utf8(out, c.value);
    i += c.length;
  }
  return out;
}

std::string replace_invalid_structural(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const uint32_t length = lead >= 0xC0 && lead < 0xF8 ? utf8_length(text[i]) : 1;
    bool whole = lead < 0x80 || (length > 1 && text.size() - i >= length);
    for (uint32_t k = 1; whole && k < length; ++k)
      whole = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    char32_t value = kReplacement;
    if (whole) {
      value = decode_valid(text, i).value;
      whole = value <= 0x10FFFF;
    }
    if (whole && (value < 0xD800 || value > 0xDFFF)) {
      append_utf8(out, value);
      i += length;
    } else if (whole) {
      // A surrogate keeps its three bytes: the vocabularies are byte-level, so nothing downstream needs it to
      // be text.
      out.append(text.substr(i, length));
      i += length;
    } else {
      append_utf8(out, kReplacement);
      i += 1;
    }
  }
  return out;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace kvasir::tokenizer
