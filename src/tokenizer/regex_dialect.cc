#include "tokenizer/regex_dialect.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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

// What the options around a place in a pattern say of classes: (?i), (?x), and (?W), (?D), (?S), (?P), which
// make \w and \b, \d, \s, and all of these and the POSIX classes ASCII's.
struct Options {
  bool ignore_case = false, extended = false;
  bool ascii_words = false, ascii_digits = false, ascii_spaces = false, ascii_posix = false;
};

// The options that a group which begins at `i` sets, "(?ix-W:" or "(?i)", if it is such a group.
std::optional<Options> options_at(std::string_view pattern, size_t i, Options options, size_t& end) {
  if (pattern.substr(i, 2) != "(?") return std::nullopt;
  bool on = true;
  for (end = i + 2; end < pattern.size(); ++end) {
    switch (pattern[end]) {
      case '-':
        on = false;
        break;
      case 'i':
        options.ignore_case = on;
        break;
      case 'x':
        options.extended = on;
        break;
      case 'W':
        options.ascii_words = on;
        break;
      case 'D':
        options.ascii_digits = on;
        break;
      case 'S':
        options.ascii_spaces = on;
        break;
      case 'P':
        options.ascii_posix = options.ascii_words = options.ascii_digits = options.ascii_spaces = on;
        break;
      case ':':
      case ')':
        return options;
      case 'y':  // y{g}
        end = pattern.find('}', end);
        if (end == pattern.npos) return std::nullopt;
        break;
      default:
        if (!std::isalpha(static_cast<unsigned char>(pattern[end]))) return std::nullopt;
    }
  }
  return std::nullopt;
}

bool is_posix_name(std::string_view name) {
  static constexpr std::array<std::string_view, 13> kNames = {"alnum", "alpha", "blank", "cntrl", "digit",
                                                              "graph", "lower", "print", "punct", "space",
                                                              "upper", "word",  "xdigit"};
  std::string plain;
  for (char c : name) plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kNames.begin(), kNames.end(), plain) != kNames.end();
}

// Rewrites one pattern, left to right.
class Rewriter {
 public:
  Rewriter(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (i_ < pattern_.size()) {
      const char c = pattern_[i_];
      if (c == '\\' && i_ + 1 < pattern_.size()) {
        escape();
      } else if (brackets_.empty()) {
        outside(c);
      } else {
        inside(c);
      }
    }
    return std::move(out_);
  }

 private:
  // What stands before a place within [...]: a "-" there is an operator, a member, or refused.
  enum class Before { nothing, value, range, all_of_a_range, named_class };

  const Options& options() const { return scopes_.back(); }

  void append(const std::string& text) {
    out_ += text;
    if (out_.size() > kLongest) {
      throw_error(ErrorCode::unsupported, "{}: pattern {} names too many character classes", where_,
                  printable(pattern_));
    }
  }

  void copy(size_t end) {
    end = std::min(end, pattern_.size());
    out_ += pattern_.substr(i_, end - i_);
    i_ = end;
  }

  // Classes that stand alone are not folded by (?i); those within [...] are.
  void put(const std::string& ranges, bool negative) {
    const std::string set = (negative ? "[^" : "[") + ranges + "]";
    append(brackets_.empty() && options().ignore_case ? "(?-i:" + set + ")" : set);
  }

  // The package's Oniguruma refuses classes as ends of ranges; written out as sets they would be members.
  void enter_class() {
    if (brackets_.empty()) return;
    if (brackets_.back() == Before::range) refuse_range("ends in a class");
    brackets_.back() = Before::named_class;
  }

  [[noreturn]] void refuse_range(std::string_view what) const {
    throw_error(ErrorCode::corrupt_file,
                "{}: pattern {} is invalid: the range at byte {} {}; write \\- for the character", where_,
                printable(pattern_), i_, what);
  }

  void escape() {
    const char kind = pattern_[i_ + 1];
    const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(kind)));
    if (lower == 's' || lower == 'd' || lower == 'w') {
      enter_class();
      const bool ascii = lower == 's'   ? options().ascii_spaces
                         : lower == 'd' ? options().ascii_digits
                                        : options().ascii_words;
      if (ascii) return copy(i_ + 2);
      std::string ranges = ranges_of(lower == 's' ? kWhiteSpace : lower == 'd' ? bit(Category::Nd) : kWord);
      if (lower == 'w' && brackets_.empty()) ranges += kWordNumbers;
      put(ranges, kind != lower);
      i_ += 2;
    } else if (lower == 'b' && brackets_.empty() && !options().ascii_words) {
      // Where a character of \w begins or ends; \B where none does.
      const std::string word = "[" + ranges_of(kWord) + std::string(kWordNumbers) + "]";
      const std::string_view after = kind == 'b' ? "?!" : "?=", before = kind == 'b' ? "?=" : "?!";
      append(fmt::format("(?{3}:(?<={0})({1}{0})|(?<!{0})({2}{0}))", word, after, before,
                         options().ignore_case ? "-i" : ""));
      i_ += 2;
    } else if (lower == 'p' && pattern_.substr(i_ + 2, 1) == "{" && pattern_.find('}', i_) != pattern_.npos) {
      enter_class();
      const size_t close = pattern_.find('}', i_);
      std::string_view name = pattern_.substr(i_ + 3, close - i_ - 3);
      bool negative = kind == 'P';
      if (name.starts_with('^')) {
        negative = !negative;
        name.remove_prefix(1);
      }
      auto ranges =
          options().ascii_posix && is_posix_name(name) ? std::optional<std::string>() : property(name);
      if (!ranges) return copy(close + 1);
      if (*ranges == ranges_of(kWord) && brackets_.empty()) *ranges += kWordNumbers;
      put(*ranges, negative);
      i_ = close + 1;
    } else {
      if (lower == 'h')
        enter_class();
      else if (!brackets_.empty())
        enter_value();
      const bool braces = kind == 'x' && pattern_.substr(i_ + 2, 1) == "{";
      copy(braces ? std::min(pattern_.find('}', i_), pattern_.size() - 1) + 1 : i_ + 2);
    }
  }

  void outside(char c) {
    size_t end = 0;
    if (c == '[') {
      open_bracket();
    } else if (c == '(' && pattern_.substr(i_, 3) == "(?#") {
      copy(std::min(pattern_.find(')', i_), pattern_.size() - 1) + 1);
    } else if (c == '(') {
      const auto set = options_at(pattern_, i_, options(), end);
      if (!set) {
        scopes_.push_back(options());
        return copy(i_ + 1);
      }
      if (pattern_[end] == ':')
        scopes_.push_back(*set);
      else
        scopes_.back() = *set;  // up to the end of the group around it
      copy(end + 1);
    } else if (c == ')') {
      if (scopes_.size() > 1) scopes_.pop_back();
      copy(i_ + 1);
    } else if (c == '#' && options().extended) {
      copy(std::min(pattern_.find('\n', i_), pattern_.size() - 1) + 1);
    } else {
      copy(i_ + 1);
    }
  }

  void open_bracket() {
    brackets_.push_back(Before::nothing);
    copy(i_ + 1);
    if (pattern_.substr(i_, 1) == "^") copy(i_ + 1);
    // A bracket that opens with its own end has it as a member.
    if (pattern_.substr(i_, 1) == "]") {
      enter_value();
      copy(i_ + 1);
    }
  }

  void inside(char c) {
    if (c == '[' && pattern_.substr(i_, 2) == "[:" && pattern_.find(":]", i_ + 2) != pattern_.npos) {
      const size_t close = pattern_.find(":]", i_ + 2);
      std::string_view name = pattern_.substr(i_ + 2, close - i_ - 2);
      const bool negative = name.starts_with('^');
      if (negative) name.remove_prefix(1);
      if (is_posix_name(name)) enter_class();
      const auto ranges = options().ascii_posix ? std::nullopt : posix(name);
      if (!ranges) return copy(close + 2);
      put(*ranges, negative);
      i_ = close + 2;
    } else if (c == '[') {
      brackets_.back() = Before::nothing;
      open_bracket();
    } else if (c == ']') {
      brackets_.pop_back();
      if (!brackets_.empty()) brackets_.back() = Before::nothing;
      copy(i_ + 1);
    } else if (pattern_.substr(i_, 2) == "&&") {
      brackets_.back() = Before::nothing;
      copy(i_ + 2);
    } else if (c == '-') {
      const bool last = pattern_.substr(i_ + 1, 1) == "]" || pattern_.substr(i_ + 1, 2) == "&&";
      if (brackets_.back() == Before::named_class && !last) refuse_range("begins with a class");
      if (brackets_.back() == Before::value && !last)
        brackets_.back() = Before::range;
      else
        enter_value();
      copy(i_ + 1);
    } else {
      enter_value();
      copy(i_ + 1);
    }
  }

  void enter_value() {
    brackets_.back() = brackets_.back() == Before::range ? Before::all_of_a_range : Before::value;
  }

  std::string_view pattern_, where_;
  size_t i_ = 0;
  std::string out_;
  std::vector<Options> scopes_{1};  // of the groups around the place
  std::vector<Before> brackets_;    // of the [...] around it
};

}  // namespace

std::string with_unicode_16_classes(std::string_view pattern, std::string_view where) {
  return Rewriter(pattern, where).run();
}

}  // namespace kvasir::tokenizer
