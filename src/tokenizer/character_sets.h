// The characters that single components of tokenizer.json treat specially, as the `tokenizers` package sees
// them: its components carry tables of different Unicode versions, so each has a set of its own.
#pragma once

#include <cstdint>

namespace kvasir::tokenizer {

bool is_bert_removed(char32_t c);      // BertNormalizer, clean_text
bool is_bert_accent(char32_t c);       // BertNormalizer, strip_accents (after NFD)
bool is_accent(char32_t c);            // StripAccents
bool is_punctuation_mark(char32_t c);  // Punctuation, BertPreTokenizer
bool is_numeric(char32_t c);           // Digits
bool is_inert(char32_t c);             // has no normal form but itself
bool is_bert_ideograph(char32_t c);    // BertNormalizer, handle_chinese_chars

// Lower case, one character for one; U+0130 gives 'i' (and U+0307 after it: see append_lowercase).
char32_t lowercase(char32_t c);

// A number for the script of a character, 0 for those that go with any script (UnicodeScripts).
uint8_t script_class(char32_t c);

}  // namespace kvasir::tokenizer
