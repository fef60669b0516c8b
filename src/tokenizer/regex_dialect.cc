#include "tokenizer/regex_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "tokenizer/named_sets.h"
#include "tokenizer/unicode.h"

namespace kvasir::tokenizer {
namespace {

constexpr size_t kLongest = size_t{4} << 20;

// Of the inside of [...].
void append_range(std::string& text, char32_t first, char32_t last) {
  text += fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(first));
  if (last > first) text += fmt::format("-\\x{{{:X}}}", static_cast<uint32_t>(last));
}

// Ranges of all characters of some classes, written for the inside of [...].
const std::string& ranges_of(CharacterClass classes) {
  static std::mutex mutex;
  static std::map<CharacterClass, std::string> cache;
  const std::lock_guard lock(mutex);
  std::string& text = cache[classes];
  if (!text.empty()) return text;
  const auto inside = [&](char32_t c) {
    return c < 0x110000 && (character_class(c) & classes) && !(c >= 0xD800 && c < 0xE000);
  };
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (!inside(c)) continue;
    char32_t last = c;
    while (inside(last + 1)) ++last;
    append_range(text, c, last);
    c = last;
  }
  return text;
}

constexpr std::array<std::pair<std::string_view, Category>, 30> kCategories = {
    {{"lu", Category::Lu}, {"ll", Category::Ll}, {"lt", Category::Lt}, {"lm", Category::Lm},
     {"lo", Category::Lo}, {"mn", Category::Mn}, {"mc", Category::Mc}, {"me", Category::Me},
     {"nd", Category::Nd}, {"nl", Category::Nl}, {"no", Category::No}, {"pc", Category::Pc},
     {"pd", Category::Pd}, {"ps", Category::Ps}, {"pe", Category::Pe}, {"pi", Category::Pi},
     {"pf", Category::Pf}, {"po", Category::Po}, {"sm", Category::Sm}, {"sc", Category::Sc},
     {"sk", Category::Sk}, {"so", Category::So}, {"zs", Category::Zs}, {"zl", Category::Zl},
     {"zp", Category::Zp}, {"cc", Category::Cc}, {"cf", Category::Cf}, {"co", Category::Co},
     {"cn", Category::Cn}, {"cs", Category::Cs}}};

constexpr CharacterClass kWord = kAlphabetic | kMark | bit(Category::Nd) | bit(Category::Pc);
// Oniguruma's \w, \b and \p{Word} have these six numbers too; within [...] they have not.
constexpr std::string_view kWordNumbers = "\\x{B2}-\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

// The inside of a class for a script or a binary property.
std::optional<std::string> named(std::string_view name) {
  const std::span<const CodePointRange> ranges = named_set(name);
  if (ranges.empty()) return std::nullopt;
  std::string text;
  for (const CodePointRange& range : ranges) append_range(text, range.first, range.last);
  return text;
}

// The inside of a class for a name that \p{} may give, spaces, hyphens and underscores aside.
std::optional<std::string> property(std::string_view name) {
  std::string plain;
  for (char c : name) {
    if (c != ' ' && c != '-' && c != '_')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  static constexpr std::array<std::pair<std::string_view, CharacterClass>, 16> kGroups = {
      {{"l", kLetter},
       {"letter", kLetter},
       {"m", kMark},
       {"mark", kMark},
       {"n", kNumber},
       {"number", kNumber},
       {"p", kPunctuation},
       {"punctuation", kPunctuation},
       {"punct", kPunctuation},
       {"s", kSymbol},
       {"symbol", kSymbol},
       {"z", bit(Category::Zs) | bit(Category::Zl) | bit(Category::Zp)},
       {"alphabetic", kAlphabetic},
       {"alpha", kAlphabetic},
       {"space", kWhiteSpace},
       {"whitespace", kWhiteSpace}}};
  for (const auto& [key, classes] : kGroups) {
    if (plain == key) return ranges_of(classes);
  }
  for (const auto& [key, category] : kCategories) {
    if (plain == key && category != Category::Cs) return ranges_of(bit(category));
  }
  if (plain == "alnum") return ranges_of(kAlphabetic | bit(Category::Nd));
  if (plain == "digit") return ranges_of(bit(Category::Nd));
  if (plain == "word") return ranges_of(kWord);
  return named(plain);
}

std::optional<std::string> posix(std::string_view name) {
  if (name == "punct") return ranges_of(kPunctuation | kSymbol);
  if (name == "alpha") return ranges_of(kAlphabetic);
  if (name == "alnum") return ranges_of(kAlphabetic | bit(Category::Nd));
  if (name == "digit") return ranges_of(bit(Category::Nd));
  if (name == "space") return ranges_of(kWhiteSpace);
  if (name == "word") return ranges_of(kWord);
  if (name == "upper" || name == "lower" || name == "graph" || name == "print") return named(name);
  return std::nullopt;
}

}  // namespace

std::string with_unicode_16_classes(std::string_view pattern, std::string_view where) {
  std::string out;
  size_t depth = 0;  // of [...]
  const auto append = [&](const std::string& text) {
    out += text;
    if (out.size() > kLongest) {
      throw_error(ErrorCode::unsupported, "{}: pattern {} names too many character classes", where,
                  printable(pattern));
    }
  };
  const auto put = [&](const std::string& ranges, bool negative) {
    append((negative ? "[^" : "[") + ranges + "]");
  };
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char kind = pattern[i + 1];
      const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(kind)));
      if (lower == 's' || lower == 'd' || lower == 'w') {
        std::string ranges = ranges_of(lower == 's' ? kWhiteSpace : lower == 'd' ? bit(Category::Nd) : kWord);
        if (lower == 'w' && depth == 0) ranges += kWordNumbers;
        put(ranges, kind != lower);
        i += 2;
        continue;
      }
      if (lower == 'b' && depth == 0) {
        // Where a character of \w begins or ends; \B where none does.
        const std::string word = "[" + ranges_of(kWord) + std::string(kWordNumbers) + "]";
        const std::string_view after = kind == 'b' ? "?!" : "?=", before = kind == 'b' ? "?=" : "?!";
        append(fmt::format("(?:(?<={0})({1}{0})|(?<!{0})({2}{0}))", word, after, before));
        i += 2;
        continue;
      }
      const size_t close = lower == 'p' && i + 2 < pattern.size() && pattern[i + 2] == '{'
                               ? pattern.find('}', i)
                               : pattern.npos;
      if (close != pattern.npos) {
        std::string_view name = pattern.substr(i + 3, close - i - 3);
        bool negative = kind == 'P';
        if (name.starts_with('^')) {
          negative = !negative;
          name.remove_prefix(1);
        }
        if (auto ranges = property(name)) {
          if (*ranges == ranges_of(kWord) && depth == 0) *ranges += kWordNumbers;
          put(*ranges, negative);
        } else {
          out += pattern.substr(i, close + 1 - i);
        }
        i = close + 1;
        continue;
      }
      out += pattern.substr(i, 2);
      i += 2;
      continue;
    }
    if (c == '[' && depth > 0 && pattern.substr(i, 2) == "[:") {
      const size_t close = pattern.find(":]", i + 2);
      if (close != pattern.npos) {
        std::string_view name = pattern.substr(i + 2, close - i - 2);
        const bool negative = name.starts_with('^');
        if (negative) name.remove_prefix(1);
        if (const auto ranges = posix(name)) {
          put(*ranges, negative);
        } else {
          out += pattern.substr(i, close + 2 - i);
        }
        i = close + 2;
        continue;
      }
    }
    if (c == '[') {
      ++depth;
      out += c;
      ++i;
      if (i < pattern.size() && pattern[i] == '^') out += pattern[i++];
      // A bracket that opens with its own end has it as a member.
      if (i < pattern.size() && pattern[i] == ']') out += pattern[i++];
      continue;
    }
    if (c == ']' && depth > 0) --depth;
    out += c;
    ++i;
  }
  return out;
}

}  // namespace kvasir::tokenizer
