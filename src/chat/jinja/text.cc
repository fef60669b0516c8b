#include "chat/jinja/text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "chat/jinja/budget.h"

namespace kvasir::jinja {
namespace {

struct CodePointRun {
  uint32_t first, last, step;
};
struct CodePointShift {
  uint32_t first, last, step;
  int32_t delta;
};
struct CodePointExpansion {
  uint32_t from;
  std::array<uint32_t, 3> to;
};

#include "chat/jinja/unicode_tables.inc"

template <size_t N>
bool contains(const CodePointRun (&table)[N], char32_t c) {
  const CodePointRun* run =
      std::upper_bound(std::begin(table), std::end(table), static_cast<uint32_t>(c),
                       [](uint32_t value, const CodePointRun& r) { return value < r.first; });
  if (run == std::begin(table)) return false;
  --run;
  return c <= run->last && (c - run->first) % run->step == 0;
}

template <size_t N>
char32_t shift(const CodePointShift (&table)[N], char32_t c) {
  const CodePointShift* run =
      std::upper_bound(std::begin(table), std::end(table), static_cast<uint32_t>(c),
                       [](uint32_t value, const CodePointShift& r) { return value < r.first; });
  if (run == std::begin(table)) return c;
  --run;
  if (c > run->last || (c - run->first) % run->step != 0) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + run->delta);
}

template <size_t N, size_t M>
void append_mapped(std::string& out, char32_t c, const CodePointShift (&shifts)[N],
                   const CodePointExpansion (&expansions)[M]) {
  const CodePointExpansion* e =
      std::lower_bound(std::begin(expansions), std::end(expansions), static_cast<uint32_t>(c),
                       [](const CodePointExpansion& x, uint32_t value) { return x.from < value; });
  if (e != std::end(expansions) && e->from == c) {
    for (const uint32_t code : e->to)
      if (code != 0) append_code_point(out, code);
    return;
  }
  append_code_point(out, shift(shifts, c));
}

bool is_cased(char32_t c) {
  return contains(kCased, c);
}
bool is_case_ignorable(char32_t c) {
  return contains(kCaseIgnorable, c);
}

constexpr char32_t kSigma = 0x3A3;

// The final form of a capital sigma: preceded, and not followed, by a cased letter, case-ignorable ones
// skipped (The Unicode Standard, section 3.13, Final_Sigma).
void append_lower(std::string& out, const std::vector<char32_t>& codes, size_t i) {
  const char32_t c = codes[i];
  if (c == kSigma) {
    size_t before = i;
    while (before > 0 && is_case_ignorable(codes[before - 1])) --before;
    bool final = before > 0 && is_cased(codes[before - 1]);
    if (final) {
      size_t after = i + 1;
      while (after < codes.size() && is_case_ignorable(codes[after])) ++after;
      final = after == codes.size() || !is_cased(codes[after]);
    }
    append_code_point(out, final ? 0x3C2 : 0x3C3);
    return;
  }
  append_mapped(out, c, kLowerMapShifts, kLowerMapExpansions);
}

bool is_ascii(std::string_view text) {
  unsigned char seen = 0;
  for (const char c : text) seen |= static_cast<unsigned char>(c);
  return seen < 0x80;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// The code point that ends at `end`, which is moved to its start.
char32_t previous_code_point(std::string_view text, size_t& end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  size_t position = end;
  return next_code_point(text, position);
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      // Most text is ASCII: eight bytes at a time.
      for (uint64_t word = 0; text.size() - i >= sizeof word; i += sizeof word) {
        std::memcpy(&word, text.data() + i, sizeof word);
        if ((word & 0x8080808080808080ULL) != 0) break;
      }
      continue;
    }
    int extra = 0;
    uint32_t code = 0, least = 0;
    if (lead >= 0xC2 && lead <= 0xDF)
      extra = 1, code = lead & 0x1FU, least = 0x80;
    else if ((lead & 0xF0) == 0xE0)
      extra = 2, code = lead & 0x0FU, least = 0x800;
    else if (lead >= 0xF0 && lead <= 0xF4)
      extra = 3, code = lead & 0x07U, least = 0x10000;
    else
      return false;
    if (text.size() - i <= static_cast<size_t>(extra)) return false;
    for (int k = 1; k <= extra; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      if ((byte & 0xC0) != 0x80) return false;
      code = (code << 6) | (byte & 0x3FU);
    }
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += static_cast<size_t>(extra) + 1;
  }
  return true;
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

char32_t next_code_point(std::string_view text, size_t& position) {
  const auto lead = static_cast<unsigned char>(text[position++]);
  if (lead < 0x80) return lead;
  const int extra = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  char32_t code = lead & (0x3FU >> extra);
  for (int k = 0; k < extra && position < text.size(); ++k)
    code = (code << 6) | (static_cast<unsigned char>(text[position++]) & 0x3FU);
  return code;
}

void append_code_point(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

std::vector<char32_t> decode(std::string_view text) {
  check_string_size(text.size() * 2);
  count_work(text.size() * 4);
  std::vector<char32_t> codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) codes.push_back(next_code_point(text, i));
  return codes;
}

std::string encode(const std::vector<char32_t>& codes) {
  std::string out;
  out.reserve(codes.size());
  for (const char32_t c : codes) append_code_point(out, c);
  return out;
}

size_t byte_offset(std::string_view text, int64_t index, bool ascii) {
  if (ascii) return static_cast<size_t>(index);
  count_work(text.size());
  size_t position = 0;
  for (; index > 0 && position < text.size(); --index) next_code_point(text, position);
  return position;
}

bool is_alpha(char32_t c) {
  return c < 0x80 ? (c | 0x20U) - 'a' < 26 : contains(kAlpha, c);
}
bool is_decimal(char32_t c) {
  return c < 0x80 ? c - '0' < 10 : contains(kDecimal, c);
}
bool is_digit(char32_t c) {
  return c < 0x80 ? c - '0' < 10 : contains(kDigit, c);
}
bool is_numeric(char32_t c) {
  return c < 0x80 ? c - '0' < 10 : contains(kNumeric, c);
}
bool is_space(char32_t c) {
  return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) : contains(kSpace, c);
}
bool is_printable(char32_t c) {
  return c < 0x80 ? c >= 0x20 && c < 0x7F : contains(kPrintable, c);
}
bool is_lower(char32_t c) {
  return contains(kLower, c);
}
bool is_upper(char32_t c) {
  return contains(kUpper, c);
}
bool is_titlecase(char32_t c) {
  return contains(kTitlecase, c);
}

bool is_identifier(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const bool first = i == 0;
    const char32_t c = next_code_point(text, i);
    if (first ? !contains(kIdentifierStart, c) : !contains(kIdentifierContinue, c)) return false;
  }
  return !text.empty();
}

int decimal_value(char32_t c) {
  if (c < 0x80) return c - '0' < 10 ? static_cast<int>(c - '0') : -1;
  if (!contains(kDecimal, c)) return -1;
  // Decimal digits come in blocks of ten in order; blocks may follow each other directly.
  for (const CodePointRun& run : kDecimal)
    if (c >= run.first && c <= run.last) return static_cast<int>((c - run.first) % 10);
  return -1;
}

std::string to_upper(std::string_view text) {
  count_work(text.size() * 4);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c < 0x80)
      out += static_cast<char>(c - 'a' < 26 ? c - 32 : c);
    else
      append_mapped(out, c, kUpperShifts, kUpperExpansions);
  }
  return out;
}

std::string to_lower(std::string_view text) {
  count_work(text.size() * 4);
  std::string out;
  out.reserve(text.size());
  if (is_ascii(text)) {
    for (const char c : text) out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return out;
  }
  const std::vector<char32_t> codes = decode(text);
  for (size_t i = 0; i < codes.size(); ++i) append_lower(out, codes, i);
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = decode(text);
  bool after_cased = false;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (after_cased)
      append_lower(out, codes, i);
    else
      append_mapped(out, codes[i], kTitleShifts, kTitleExpansions);
    after_cased = is_cased(codes[i]);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = decode(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (i == 0)
      append_mapped(out, codes[i], kTitleShifts, kTitleExpansions);
    else
      append_lower(out, codes, i);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  const std::vector<char32_t> codes = decode(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (is_upper(codes[i]))
      append_lower(out, codes, i);
    else if (is_lower(codes[i]))
      append_mapped(out, codes[i], kUpperShifts, kUpperExpansions);
    else
      append_code_point(out, codes[i]);
  }
  return out;
}

std::string case_fold(std::string_view text) {
  count_work(text.size() * 4);
  std::string out;
  for (size_t i = 0; i < text.size();)
    append_mapped(out, next_code_point(text, i), kFoldShifts, kFoldExpansions);
  return out;
}

bool text_is_lower(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (is_upper(c) || is_titlecase(c)) return false;
    cased = cased || is_lower(c);
  }
  return cased;
}

bool text_is_upper(std::string_view text) {
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (is_lower(c) || is_titlecase(c)) return false;
    cased = cased || is_upper(c);
  }
  return cased;
}

bool text_is_title(std::string_view text) {
  bool cased = false, after_cased = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (is_upper(c) || is_titlecase(c)) {
      if (after_cased) return false;
      after_cased = cased = true;
    } else if (is_lower(c)) {
      if (!after_cased) return false;
      after_cased = cased = true;
    } else {
      after_cased = false;
    }
  }
  return cased;
}

std::string_view strip(std::string_view text, const std::string_view* characters, bool left, bool right) {
  std::vector<char32_t> set;
  if (characters != nullptr) set = decode(*characters);
  const auto strips = [&](char32_t c) {
    return characters == nullptr ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t after = begin;
    if (!strips(next_code_point(text, after))) break;
    begin = after;
  }
  while (right && begin < end) {
    size_t before = end;
    if (!strips(previous_code_point(text, before))) break;
    end = before;
  }
  return text.substr(begin, end - begin);
}

std::string_view strip_space(std::string_view text) {
  return strip(text, nullptr, true, true);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  count_work(text.size());
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const char32_t c = next_code_point(text, i);
    if (!is_line_end(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, (keep_ends ? i : at) - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::vector<std::string_view> split_space(std::string_view text, int64_t limit) {
  count_work(text.size());
  std::vector<std::string_view> parts;
  size_t i = 0;
  while (true) {
    size_t start = i;
    while (i < text.size()) {
      size_t after = i;
      if (!is_space(next_code_point(text, after))) break;
      i = after;
    }
    if (i >= text.size()) break;
    start = i;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.push_back(strip(text.substr(start), nullptr, false, true));
      break;
    }
    while (i < text.size()) {
      size_t after = i;
      if (is_space(next_code_point(text, after))) break;
      i = after;
    }
    parts.push_back(text.substr(start, i - start));
  }
  return parts;
}

std::vector<std::string_view> right_split_space(std::string_view text, int64_t limit) {
  count_work(text.size());
  std::vector<std::string_view> parts;
  size_t end = text.size();
  while (true) {
    while (end > 0) {
      size_t before = end;
      if (!is_space(previous_code_point(text, before))) break;
      end = before;
    }
    if (end == 0) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit) {
      parts.push_back(strip(text.substr(0, end), nullptr, true, false));
      break;
    }
    size_t start = end;
    while (start > 0) {
      size_t before = start;
      if (is_space(previous_code_point(text, before))) break;
      start = before;
    }
    parts.push_back(text.substr(start, end - start));
    end = start;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_text(std::string_view text, std::string_view separator, int64_t limit,
                                         bool from_right) {
  count_work(text.size());
  std::vector<std::string_view> parts;
  if (from_right) {
    size_t end = text.size();
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      if (end < separator.size()) break;
      const size_t at = text.substr(0, end).rfind(separator);
      if (at == std::string_view::npos) break;
      parts.push_back(text.substr(at + separator.size(), end - at - separator.size()));
      end = at;
    }
    parts.push_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t start = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.find(separator, start);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(start, at - start));
    start = at + separator.size();
  }
  parts.push_back(text.substr(start));
  return parts;
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  count_work(text.size());
  std::string out;
  if (from.empty()) {
    // Python inserts before every code point and at the end.
    size_t i = 0;
    int64_t done = 0;
    while (count < 0 || done < count) {
      out += to;
      ++done;
      if (i >= text.size()) return out;
      const size_t start = i;
      next_code_point(text, i);
      out += text.substr(start, i - start);
      check_string_size(out.size());
    }
    out += text.substr(i);
    return out;
  }
  size_t start = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t at = text.find(from, start);
    if (at == std::string_view::npos) break;
    out += text.substr(start, at - start);
    out += to;
    start = at + from.size();
    check_string_size(out.size());
  }
  out += text.substr(start);
  return out;
}

std::string quote(std::string_view text) {
  count_work(text.size());
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char mark = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out;
  out.reserve(text.size() + 2);
  out += mark;
  constexpr char kHex[] = "0123456789abcdef";
  const auto hex = [&](char32_t c, int digits) {
    for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kHex[(c >> shift) & 15];
  };
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c == static_cast<char32_t>(mark) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_code_point(out, c);
    } else if (c <= 0xFF) {
      out += "\\x";
      hex(c, 2);
    } else if (c <= 0xFFFF) {
      out += "\\u";
      hex(c, 4);
    } else {
      out += "\\U";
      hex(c, 8);
    }
  }
  out += mark;
  return out;
}

}  // namespace kvasir::jinja
