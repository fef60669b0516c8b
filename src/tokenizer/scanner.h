// Hand-written scanners for the pre-tokenizer patterns that real vocabularies use. Each cuts a text exactly
// where the regex of the same name does (the patterns are in scanner.cc), without a regex engine and in
// linear time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

enum class Scan : uint8_t {
  gpt2,
  llama3,
  llama3_any_digits,  // \p{N}+ in place of \p{N}{1,3}
  qwen2,
  qwen35,
  gpt4o,
  tekken,
  deepseek_v3_words,         // third step of DeepSeek-V3
  digits,                    // each \p{N}
  numeric,                   // each character that the Digits pre-tokenizer takes for one
  digit_runs,                // \p{N}+
  digit_triples,             // \p{N}{1,3}
  ascii_digit_triples,       // [0-9][0-9][0-9]
  cjk_runs,                  // [一-龥぀-ゟ゠-ヿ]+
  wide_cjk_runs,             // [一-龥ࠀ-一가-퟿]+
  newlines,                  // [\r\n]
  letters_after_space,       // \s?\p{L}+
  punctuation_after_space,   // \s?\p{P}+
  deepseek_llm_letters,      // \s?[listed letters]+
  deepseek_llm_punctuation,  // \s?[listed punctuation]+
  trailing_space,            // \s+$ ($ is the end of any line)
  falcon_punctuation,        // [\p{P}\$\+<=>\^~\|`]+
  default_punctuation,       // [\p{P}\$\+<=>\^~\|]+
};

// Cuts `text` (valid UTF-8, at most 2^32 - 1 bytes) into matches and the gaps between them ("isolated"), and
// appends the end of each piece, plus `offset`, to `ends`. Empty pieces never appear.
void scan(Scan pattern, std::string_view text, uint32_t offset, std::vector<uint32_t>& ends);

// Whether every text is all matches, without gaps.
bool covers_all(Scan pattern);

// The regex that a scanner stands for, in Oniguruma's syntax.
std::string_view pattern_of(Scan pattern);

// The scanner for a regex, if there is one: patterns are compared by their exact text.
std::optional<Scan> scanner_for(std::string_view regex);

// All of them, for tests.
std::span<const Scan> all_scanners();

}  // namespace kvasir::tokenizer
