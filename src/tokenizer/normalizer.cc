#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

// Rewrites a text character by character: rewrite(value, original text, out).
template <typename Rewrite>
void rewrite_characters(std::string& text, Rewrite&& rewrite) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid(text, i);
    rewrite(c.value, std::string_view(text).substr(i, c.length), out);
    i += c.length;
  }
  text.swap(out);
}

void append_lowercase(std::string& out, char32_t c) {
  append_utf8(out, lowercase(c));
  if (c == 0x130) append_utf8(out, 0x307);
}

bool any_above_ascii(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

}  // namespace

void LowercaseNormalizer::apply(std::string& text) const {
  rewrite_characters(text, [](char32_t c, std::string_view, std::string& out) { append_lowercase(out, c); });
}

// Whether it vanishes is for most the character's own matter.
bool Normalizer::apply_keeping_start(std::string& text) const {
  if (text.empty()) return true;
  std::string first = text.substr(0, decode_valid(text, 0).length);
  apply(first);
  apply(text);
  return !first.empty();
}

bool StripNormalizer::apply_keeping_start(std::string& text) const {
  const bool kept = !left_ || text.empty() || !is_white_space(decode_valid(text, 0).value);
  apply(text);
  return kept;
}

void StripNormalizer::apply(std::string& text) const {
  size_t begin = 0, end = text.size();
  while (left_ && begin < end) {
    const CodePoint c = decode_valid(text, begin);
    if (!is_white_space(c.value)) break;
    begin += c.length;
  }
  while (right_ && begin < end) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_white_space(decode_valid(text, last).value)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
}

void StripAccentsNormalizer::apply(std::string& text) const {
  if (!any_above_ascii(text)) return;
  rewrite_characters(text, [](char32_t c, std::string_view original, std::string& out) {
    if (!is_accent(c)) out += original;
  });
}

void NmtNormalizer::apply(std::string& text) const {
  rewrite_characters(text, [](char32_t c, std::string_view original, std::string& out) {
    const bool vanishes =
        (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    if (space) {
      out += ' ';
    } else if (!vanishes) {
      out += original;
    }
  });
}

bool ReplaceNormalizer::apply_keeping_start(std::string& text) const {
  std::string out;
  size_t done = 0;
  bool kept = true;
  if (regex_) {
    std::vector<Regex::Match> matches;
    regex_->find_all(text, matches);
    if (matches.empty()) return true;
    kept = !content_.empty() || matches[0].begin > 0 || matches[0].end == 0;
    for (const Regex::Match& m : matches) {
      out.append(text, done, m.begin - done).append(content_);
      done = m.end;
    }
  } else {
    size_t at = text.find(literal_);
    if (at == std::string::npos) return true;
    kept = !content_.empty() || at > 0;
    out.reserve(text.size() + text.size() / 2);
    for (; at != std::string::npos; at = text.find(literal_, done)) {
      out.append(text, done, at - done).append(content_);
      done = at + literal_.size();
    }
  }
  out.append(text, done);
  text.swap(out);
  return kept;
}

void BertNormalizer::apply(std::string& text) const {
  if (clean_text_) {
    rewrite_characters(text, [](char32_t c, std::string_view original, std::string& out) {
      if (is_bert_removed(c)) return;
      if (is_white_space(c)) {
        out += ' ';
      } else {
        out += original;
      }
    });
  }
  if (chinese_ && any_above_ascii(text)) {
    rewrite_characters(text, [](char32_t c, std::string_view original, std::string& out) {
      if (is_bert_ideograph(c)) {
        out.append(" ").append(original).append(" ");
      } else {
        out += original;
      }
    });
  }
  if (strip_accents_ && any_above_ascii(text)) {
    text = normal_form(text, NormalForm::nfd);
    rewrite_characters(text, [](char32_t c, std::string_view original, std::string& out) {
      if (!is_bert_accent(c)) out += original;
    });
  }
  if (lowercase_) {
    rewrite_characters(text,
                       [](char32_t c, std::string_view, std::string& out) { append_lowercase(out, c); });
  }
}

void ByteLevelNormalizer::apply(std::string& text) const {
  text = in_alphabet(text);
}

// The package's rule: a grapheme of less than 6 bytes is looked up whole, then each of its characters; a hit,
// of whatever length, replaces all that was looked up.
void PrecompiledNormalizer::apply(std::string& text) const {
  constexpr size_t kLongestGrapheme = 6;
  std::string out;
  out.reserve(text.size());
  const std::string_view view = text;
  for (size_t begin = 0; begin < text.size();) {
    CodePoint c = decode_valid(text, begin);
    size_t end = begin + c.length;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      const CodePoint next = decode_valid(text, end);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.value),
                                           static_cast<utf8proc_int32_t>(next.value), &state)) {
        break;
      }
      c = next;
      end += next.length;
    }
    const auto whole =
        end - begin < kLongestGrapheme ? map_.shortest_prefix(view.substr(begin, end - begin)) : std::nullopt;
    if (whole) {
      out += whole->replacement;
    } else {
      for (size_t i = begin; i < end;) {
        const std::string_view part = view.substr(i, decode_valid(text, i).length);
        const auto hit = map_.shortest_prefix(part);
        out += hit ? hit->replacement : part;
        i += part.size();
      }
    }
    begin = end;
  }
  text = is_valid_utf8(out) ? std::move(out) : replace_invalid(out);
}

}  // namespace kvasir::tokenizer
