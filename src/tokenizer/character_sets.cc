#include "tokenizer/character_sets.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "tokenizer/unicode.h"

namespace kvasir::tokenizer {
namespace {

struct CodePointPair {
  char32_t from, to;
};
struct ScriptRun {
  char32_t first, last;
  uint8_t script;
};

#include "tokenizer/component_ranges.inc"

constexpr CodePointRange kIdeographRanges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                               {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                               {0x2F800, 0x2FA1F}};

template <typename Ranges>
auto find(const Ranges& ranges, char32_t c) {
  const auto* end = std::end(ranges);
  const auto* r = std::upper_bound(std::begin(ranges), end, c,
                                   [](char32_t value, const auto& range) { return value < range.first; });
  return r != std::begin(ranges) && c <= (r - 1)->last ? r - 1 : nullptr;
}

}  // namespace

bool is_bert_removed(char32_t c) {
  return find(kBertRemovedRanges, c);
}
bool is_bert_accent(char32_t c) {
  return c >= 0x300 && find(kBertAccentRanges, c);
}
bool is_accent(char32_t c) {
  return c >= 0x300 && find(kAccentRanges, c);
}
bool is_punctuation_mark(char32_t c) {
  return find(kPunctuationRanges, c);
}
bool is_numeric(char32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9' : find(kNumericRanges, c) != nullptr;
}
bool is_inert(char32_t c) {
  return c >= 0x300 && find(kInertRanges, c);
}
bool is_bert_ideograph(char32_t c) {
  return c >= 0x3400 && find(kIdeographRanges, c);
}

char32_t lowercase(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 0x20 : c;
  if (c == 0x130) return 'i';
  const auto* p =
      std::lower_bound(std::begin(kLowercase), std::end(kLowercase), c,
                       [](const CodePointPair& pair, char32_t value) { return pair.from < value; });
  if (p != std::end(kLowercase) && p->from == c) return p->to;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

uint8_t script_class(char32_t c) {
  const auto* run = find(kScriptRuns, c);
  return run ? run->script : 0;
}

}  // namespace kvasir::tokenizer
