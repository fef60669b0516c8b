#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace kvasir {
namespace {

struct Unit {
  uint32_t value = 0;  // of the character
  size_t length = 1;   // in bytes
  bool valid = false;
};

// The character at the beginning of `text`, or its first byte when that begins none: Unicode 16, table 3-7.
Unit first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {lead, 1, false};
  uint32_t value = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kFirst[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kFirst[length] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
    return {lead, 1, false};
  return {value, length, true};
}

// UnicodeData.txt: Cc, Zl, Zp, and of Cf what has no shape of its own.
bool is_escaped(uint32_t c) {
  struct Range {
    uint32_t first, last;
  };
  constexpr Range kRanges[] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},
                               {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F}, {0x2028, 0x202E},
                               {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

std::string shown(std::string_view text, const Unit& unit) {
  if (!unit.valid || (unit.length == 1 && is_escaped(unit.value)))
    return fmt::format("\\x{:02x}", unit.value);
  if (is_escaped(unit.value))
    return unit.value > 0xFFFF ? fmt::format("\\U{:08x}", unit.value) : fmt::format("\\u{:04x}", unit.value);
  return std::string(text.substr(0, unit.length));
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kLimit = 200;
  std::string out;
  while (!text.empty()) {
    const Unit unit = first_of(text);
    const std::string piece = shown(text, unit);
    if (out.size() + piece.size() > kLimit) return out + "...";
    out += piece;
    text.remove_prefix(unit.length);
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Unit unit = first_of(text);
    out += unit.value == '\n' || unit.value == '\t' ? std::string(1, text[0]) : shown(text, unit);
    text.remove_prefix(unit.length);
  }
  return out;
}

}  // namespace kvasir
