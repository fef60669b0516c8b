#include "tokenizer/scanner.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

// Letters that DeepSeek-LLM's pattern lists one by one: those with case, as of its author's Unicode tables.
struct Range {
  char32_t first, last;
};
constexpr Range kListedLetters[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
    {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
    {0x376, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
    {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},
    {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}};

constexpr CharacterClass kUpper =
    bit(Category::Lu) | bit(Category::Lt) | bit(Category::Lm) | bit(Category::Lo) | kMark;
constexpr CharacterClass kLower = bit(Category::Ll) | bit(Category::Lm) | bit(Category::Lo) | kMark;

// A character and what it is. Past the end: length 0 and no class at all.
struct Character {
  char32_t value = 0;
  uint32_t length = 0;
  CharacterClass kind = 0;

  bool is(CharacterClass kinds) const { return kind & kinds; }
  // In a class written as [^...]: some character, of none of these kinds.
  bool is_none_of(CharacterClass kinds) const { return length > 0 && !(kind & kinds); }
  bool newline() const { return value == '\n' || value == '\r'; }
  bool space() const { return value == ' ' && length > 0; }
};

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t size() const { return text_.size(); }

  Character at(size_t i) const {
    if (i >= text_.size()) return {};
    const auto first = static_cast<unsigned char>(text_[i]);
    if (first < 0x80) return {first, 1, internal::kAsciiClasses[first]};
    const CodePoint c = decode_valid(text_, i);
    return {c.value, c.length, character_class_slow(c.value)};
  }

  // End of the longest run of characters of `kinds` from i.
  size_t run(size_t i, CharacterClass kinds) const {
    while (true) {
      const Character c = at(i);
      if (!c.is(kinds)) return i;
      i += c.length;
    }
  }
  size_t run_of_none(size_t i, CharacterClass kinds) const {
    while (true) {
      const Character c = at(i);
      if (!c.is_none_of(kinds)) return i;
      i += c.length;
    }
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d), or without (?i:). 0 where it does not match, else the end. Under (?i:)
  // U+017F is an s.
  size_t contraction(size_t i, bool any_case) const {
    if (at(i).value != '\'') return 0;
    const Character c = at(i + 1);
    const char32_t fold = any_case ? 0x20 : 0;
    if (any_case && c.value == 0x17F) return i + 1 + c.length;
    const char32_t a = c.value | fold;
    if (c.length != 1) return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    const Character d = at(i + 2);
    const char32_t b = d.value | fold;
    if (d.length != 1) return 0;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return 0;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ , or with `newlines` false \s+(?!\S)|\s+ , at a white space character.
  size_t white_space(size_t i, bool newlines) const {
    size_t end = i, last = i, after_newline = 0;
    while (true) {
      const Character c = at(end);
      if (!c.is(kWhiteSpace)) break;
      last = end;
      end += c.length;
      if (c.newline()) after_newline = end;
    }
    if (newlines && after_newline) return after_newline;
    // A run before other text leaves its last character to that text, unless the run is nothing else.
    return end < size() && last > i ? last : end;
  }

  // "[^\s...]+" with an optional space before it and any of `tail` after it; 0 where it does not match.
  size_t others(size_t i, CharacterClass not_in, bool newlines_after, bool slashes_after) const {
    const size_t begin = at(i).space() ? i + 1 : i;
    size_t end = run_of_none(begin, not_in);
    if (end == begin) return 0;
    while (true) {
      const Character c = at(end);
      if (c.length == 0 || !((newlines_after && c.newline()) || (slashes_after && c.value == '/')))
        return end;
      ++end;
    }
  }

  size_t at_most_three(size_t i, CharacterClass kinds) const {
    for (int k = 0; k < 3; ++k) {
      const Character c = at(i);
      if (!c.is(kinds)) break;
      i += c.length;
    }
    return i;
  }

 private:
  std::string_view text_;
};

size_t next_gpt2(const Scanner& s, size_t i) {
  if (const size_t end = s.contraction(i, false)) return end;
  Character c = s.at(i);
  size_t begin = i;
  if (c.space()) {
    begin = i + 1;
    c = s.at(begin);
  }
  if (c.is(kLetter)) return s.run(begin + c.length, kLetter);
  if (c.is(kNumber)) return s.run(begin + c.length, kNumber);
  if (c.is_none_of(kWhiteSpace | kLetter | kNumber)) {
    return s.run_of_none(begin + c.length, kWhiteSpace | kLetter | kNumber);
  }
  return s.white_space(i, false);
}

// Llama-3 and its relatives: `letters` is what words are made of, `digits` how many numbers make a piece (0:
// any).
size_t next_llama3(const Scanner& s, size_t i, CharacterClass letters, int digits) {
  if (const size_t end = s.contraction(i, true)) return end;
  const Character c = s.at(i);
  if (c.is(letters)) return s.run(i + c.length, letters);
  if (c.is(kNumber)) {
    return digits == 1 ? i + c.length : digits == 3 ? s.at_most_three(i, kNumber) : s.run(i, kNumber);
  }
  if (!c.newline()) {
    const size_t end = s.run(i + c.length, letters);
    if (end > i + c.length) return end;
  }
  if (const size_t end = s.others(i, kWhiteSpace | letters | kNumber, true, false)) return end;
  return s.white_space(i, true);
}

// [Up]*[Lw]+ from i: 0 where it does not match. Many characters are in both sets; the upper-case run takes
// them first and gives back from its end as little as it must.
size_t cased_word(const Scanner& s, size_t i) {
  size_t end = i, after_shared = 0;
  while (true) {
    const Character c = s.at(end);
    if (!c.is(kUpper)) break;
    end += c.length;
    if (c.is(kLower)) after_shared = end;
  }
  const size_t lower = s.run(end, kLower);
  return lower > end ? lower : after_shared;
}

size_t next_gpt4o(const Scanner& s, size_t i, bool contractions, bool three_digits) {
  const Character c = s.at(i);
  const bool prefix = c.is_none_of(kLetter | kNumber) && !c.newline();
  const size_t after_prefix = prefix ? i + c.length : i;
  size_t end = cased_word(s, after_prefix);
  if (!end && prefix) end = cased_word(s, i);
  if (!end) {
    const size_t upper = s.run(after_prefix, kUpper);
    if (upper > after_prefix) end = upper;
  }
  if (end) {
    const size_t contracted = contractions ? s.contraction(end, true) : 0;
    return contracted ? contracted : end;
  }
  if (c.is(kNumber)) return three_digits ? s.at_most_three(i, kNumber) : i + c.length;
  if (const size_t others = s.others(i, kWhiteSpace | kLetter | kNumber, true, true)) return others;
  return s.white_space(i, true);
}

bool is_ascii_letter(const Character& c) {
  return c.length == 1 && (c.value | 0x20) >= 'a' && (c.value | 0x20) <= 'z';
}

// 0: no match here.
size_t match_deepseek_v3_words(const Scanner& s, size_t i) {
  const Character c = s.at(i);
  if (c.length == 1 && c.is(kPunctuation | kSymbol) && is_ascii_letter(s.at(i + 1))) {
    size_t end = i + 2;
    while (is_ascii_letter(s.at(end))) ++end;
    return end;
  }
  if (c.is(kLetter | kMark)) return s.run(i, kLetter | kMark);
  if (c.is_none_of(kPunctuation | kSymbol) && !c.newline()) {
    const size_t end = s.run(i + c.length, kLetter | kMark);
    if (end > i + c.length) return end;
  }
  const size_t begin = c.space() ? i + 1 : i;
  size_t end = s.run(begin, kPunctuation | kSymbol);
  if (end > begin) {
    while (s.at(end).length && s.at(end).newline()) ++end;
    return end;
  }
  return c.is(kWhiteSpace) ? s.white_space(i, true) : 0;
}

template <typename In>
size_t match_run(const Scanner& s, size_t i, In&& in) {
  const size_t begin = i;
  for (Character c = s.at(i); c.length && in(c); c = s.at(i)) i += c.length;
  return i > begin ? i : 0;
}

// \s?[in]+
template <typename In>
size_t match_after_space(const Scanner& s, size_t i, In&& in) {
  const Character c = s.at(i);
  if (c.is(kWhiteSpace)) {
    if (const size_t end = match_run(s, i + c.length, in)) return end;
  }
  return match_run(s, i, in);
}

bool is_listed_letter(const Character& c) {
  const auto* end = std::end(kListedLetters);
  const auto* r = std::upper_bound(std::begin(kListedLetters), end, c.value,
                                   [](char32_t value, const Range& range) { return value < range.first; });
  return r != std::begin(kListedLetters) && c.value <= (r - 1)->last;
}

bool is_listed_punctuation(const Character& c) {
  const auto in = [&](char32_t first, char32_t last) { return c.value >= first && c.value <= last; };
  return in('!', '/') || in(':', '~') || in(0xFF01, 0xFF0F) || in(0xFF1A, 0xFF5E) || in(0x2018, 0x201F) ||
         in(0x3000, 0x3002);
}

// Patterns that match everywhere.
template <typename Next>
void cut_all(const Scanner& s, uint32_t offset, std::vector<uint32_t>& ends, Next&& next) {
  for (size_t i = 0; i < s.size();) {
    i = next(s, i);
    ends.push_back(offset + static_cast<uint32_t>(i));
  }
}

// Patterns with gaps: `match` gives the end of a match at i, or 0.
template <typename Match>
void cut_matches(const Scanner& s, uint32_t offset, std::vector<uint32_t>& ends, Match&& match) {
  size_t done = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t end = match(s, i);
    if (!end) {
      i += s.at(i).length;
      continue;
    }
    if (i > done) ends.push_back(offset + static_cast<uint32_t>(i));
    ends.push_back(offset + static_cast<uint32_t>(end));
    i = done = end;
  }
  if (done < s.size()) ends.push_back(offset + static_cast<uint32_t>(s.size()));
}

// \s+$ : in each run of white space, up to the last place that ends a line. Where a run has none, none of its
// later starts has one either.
void cut_trailing_space(const Scanner& s, uint32_t offset, std::vector<uint32_t>& ends) {
  const auto cut = [&](size_t i) { ends.push_back(offset + static_cast<uint32_t>(i)); };
  size_t done = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    size_t last_newline = 0;
    for (Character c = s.at(i); c.is(kWhiteSpace); c = s.at(i)) {
      if (c.value == '\n' && i > begin) last_newline = i;
      i += c.length;
    }
    const size_t match_end = i > begin && i == s.size() ? i : last_newline;
    if (match_end) {
      if (begin > done) cut(begin);
      cut(match_end);
      done = match_end;
    }
    if (i == begin) i += s.at(i).length;
  }
  if (done < s.size()) cut(s.size());
}

// \s?[...]+ with the listed letters, as the pattern's author writes them: two neighbours without a hyphen.
const std::string& listed_letters_pattern() {
  static const std::string pattern = [] {
    std::string text = "\\s?[";
    for (const Range& r : kListedLetters) {
      append_utf8(text, r.first);
      if (r.last > r.first + 1) text += '-';
      if (r.last > r.first) append_utf8(text, r.last);
    }
    return text + "]+";
  }();
  return pattern;
}

struct Named {
  Scan scan;
  std::string_view pattern;
};

#define KVASIR_TAIL R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define KVASIR_UPPER R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"
#define KVASIR_LOWER R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"
#define KVASIR_PREFIX R"([^\r\n\p{L}\p{N}]?)"
#define KVASIR_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"

constexpr Named kNamed[] = {
    {Scan::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Scan::llama3,
     KVASIR_CONTRACTION "|" KVASIR_PREFIX R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" KVASIR_TAIL},
    {Scan::llama3_any_digits,
     KVASIR_CONTRACTION "|" KVASIR_PREFIX R"(\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)" KVASIR_TAIL},
    {Scan::qwen2,
     KVASIR_CONTRACTION "|" KVASIR_PREFIX R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" KVASIR_TAIL},
    {Scan::qwen35, KVASIR_CONTRACTION "|" KVASIR_PREFIX
                                      R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" KVASIR_TAIL},
    {Scan::gpt4o, KVASIR_PREFIX "[" KVASIR_UPPER "]*[" KVASIR_LOWER "]+" KVASIR_CONTRACTION "?|" KVASIR_PREFIX
                                "[" KVASIR_UPPER "]+[" KVASIR_LOWER "]*" KVASIR_CONTRACTION
                                R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" KVASIR_TAIL},
    {Scan::tekken, KVASIR_PREFIX "[" KVASIR_UPPER "]*[" KVASIR_LOWER "]+|" KVASIR_PREFIX "[" KVASIR_UPPER
                                 "]+[" KVASIR_LOWER R"(]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" KVASIR_TAIL},
    // This pattern's published form has literal line ends in its classes.
    {Scan::deepseek_v3_words,
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
    {Scan::digits, R"(\p{N})"},
    {Scan::digit_runs, R"(\p{N}+)"},
    {Scan::digit_triples, R"(\p{N}{1,3})"},
    {Scan::ascii_digit_triples, "[0-9][0-9][0-9]"},
    {Scan::cjk_runs, "[一-龥\u3040-ゟ゠-ヿ]+"},
    {Scan::wide_cjk_runs, "[一-龥ࠀ-一가-\uD7FF]+"},
    {Scan::newlines, "[\r\n]"},
    {Scan::letters_after_space, R"(\s?\p{L}+)"},
    {Scan::punctuation_after_space, R"(\s?\p{P}+)"},
    {Scan::deepseek_llm_letters, {}},  // listed_letters_pattern()
    {Scan::deepseek_llm_punctuation, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"},
    {Scan::trailing_space, R"(\s+$)"},
    {Scan::falcon_punctuation, R"([\p{P}\$\+<=>\^~\|`]+)"},
    {Scan::default_punctuation, R"([\p{P}\$\+<=>\^~\|]+)"},
};

// Other spellings of the same patterns.
constexpr Named kSpellings[] = {
    {Scan::newlines, R"([\r\n])"},
    {Scan::deepseek_v3_words,
     R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" KVASIR_TAIL},
};

}  // namespace

void scan(Scan pattern, std::string_view text, uint32_t offset, std::vector<uint32_t>& ends) {
  const Scanner s(text);
  const auto in = [](char32_t first, char32_t last) {
    return [=](const Character& c) { return c.value >= first && c.value <= last; };
  };
  switch (pattern) {
    case Scan::gpt2:
      return cut_all(s, offset, ends, next_gpt2);
    case Scan::llama3:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_llama3(t, i, kLetter, 3); });
    case Scan::llama3_any_digits:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_llama3(t, i, kLetter, 0); });
    case Scan::qwen2:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_llama3(t, i, kLetter, 1); });
    case Scan::qwen35:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_llama3(t, i, kLetter | kMark, 1); });
    case Scan::gpt4o:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_gpt4o(t, i, true, true); });
    case Scan::tekken:
      return cut_all(s, offset, ends,
                     [](const Scanner& t, size_t i) { return next_gpt4o(t, i, false, false); });
    case Scan::deepseek_v3_words:
      return cut_matches(s, offset, ends, match_deepseek_v3_words);
    case Scan::digits:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) -> size_t {
        const Character c = t.at(i);
        return c.is(kNumber) ? i + c.length : 0;
      });
    case Scan::numeric:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) -> size_t {
        const Character c = t.at(i);
        return c.length && is_numeric(c.value) ? i + c.length : 0;
      });
    case Scan::digit_runs:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) {
        return match_run(t, i, [](const Character& c) { return c.is(kNumber); });
      });
    case Scan::digit_triples:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) -> size_t {
        const size_t end = t.at_most_three(i, kNumber);
        return end > i ? end : 0;
      });
    case Scan::ascii_digit_triples:
      return cut_matches(s, offset, ends, [&](const Scanner& t, size_t i) -> size_t {
        for (size_t k = 0; k < 3; ++k) {
          if (!in('0', '9')(t.at(i + k))) return 0;
        }
        return i + 3;
      });
    case Scan::cjk_runs:
      return cut_matches(s, offset, ends, [&](const Scanner& t, size_t i) {
        return match_run(t, i,
                         [&](const Character& c) { return in(0x4E00, 0x9FA5)(c) || in(0x3040, 0x30FF)(c); });
      });
    case Scan::wide_cjk_runs:
      return cut_matches(s, offset, ends, [&](const Scanner& t, size_t i) {
        return match_run(t, i,
                         [&](const Character& c) { return in(0x800, 0x9FA5)(c) || in(0xAC00, 0xD7FF)(c); });
      });
    case Scan::newlines:
      return cut_matches(s, offset, ends,
                         [](const Scanner& t, size_t i) -> size_t { return t.at(i).newline() ? i + 1 : 0; });
    case Scan::letters_after_space:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) {
        return match_after_space(t, i, [](const Character& c) { return c.is(kLetter); });
      });
    case Scan::punctuation_after_space:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) {
        return match_after_space(t, i, [](const Character& c) { return c.is(kPunctuation); });
      });
    case Scan::deepseek_llm_letters:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) {
        return match_after_space(t, i, is_listed_letter);
      });
    case Scan::deepseek_llm_punctuation:
      return cut_matches(s, offset, ends, [](const Scanner& t, size_t i) {
        return match_after_space(t, i, is_listed_punctuation);
      });
    case Scan::trailing_space:
      return cut_trailing_space(s, offset, ends);
    case Scan::falcon_punctuation:
    case Scan::default_punctuation: {
      const bool backtick = pattern == Scan::falcon_punctuation;
      return cut_matches(s, offset, ends, [&](const Scanner& t, size_t i) {
        return match_run(t, i, [&](const Character& c) {
          return c.is(kPunctuation) ||
                 (c.length == 1 &&
                  std::string_view("$+<=>^~|").find(static_cast<char>(c.value)) != std::string_view::npos) ||
                 (backtick && c.value == '`');
        });
      });
    }
  }
  KVASIR_CHECK(false);
}

bool covers_all(Scan pattern) {
  return pattern <= Scan::tekken;
}

std::string_view pattern_of(Scan pattern) {
  if (pattern == Scan::deepseek_llm_letters) return listed_letters_pattern();
  for (const Named& n : kNamed) {
    if (n.scan == pattern) return n.pattern;
  }
  KVASIR_CHECK(false);
  return {};
}

std::optional<Scan> scanner_for(std::string_view regex) {
  if (regex.empty()) return std::nullopt;
  if (regex == listed_letters_pattern()) return Scan::deepseek_llm_letters;
  for (const Named& n : kNamed) {
    if (n.pattern == regex) return n.scan;
  }
  for (const Named& n : kSpellings) {
    if (n.pattern == regex) return n.scan;
  }
  return std::nullopt;
}

std::span<const Scan> all_scanners() {
  static constexpr auto kAll = [] {
    std::array<Scan, std::size(kNamed)> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = kNamed[i].scan;
    return all;
  }();
  return kAll;
}

}  // namespace kvasir::tokenizer
