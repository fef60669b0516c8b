// What kind of character a code point is: Unicode 16 general categories, as bits, and the sets that regexes
// name.
#pragma once

#include <array>
#include <cstdint>

namespace kvasir::tokenizer {

enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co,
  Cn
};

struct CodePointRange {
  char32_t first, last;
};

// Bits 0-29 are the categories; the binary properties follow.
using CharacterClass = uint32_t;

constexpr CharacterClass bit(Category c) {
  return CharacterClass{1} << static_cast<unsigned>(c);
}

constexpr CharacterClass kWhiteSpace = 1u << 30;  // White_Space, \s
constexpr CharacterClass kAlphabetic = 1u << 31;  // Alphabetic

constexpr CharacterClass kLetter =
    bit(Category::Lu) | bit(Category::Ll) | bit(Category::Lt) | bit(Category::Lm) | bit(Category::Lo);
constexpr CharacterClass kMark = bit(Category::Mn) | bit(Category::Mc) | bit(Category::Me);
constexpr CharacterClass kNumber = bit(Category::Nd) | bit(Category::Nl) | bit(Category::No);
constexpr CharacterClass kPunctuation = bit(Category::Pc) | bit(Category::Pd) | bit(Category::Ps) |
                                        bit(Category::Pe) | bit(Category::Pi) | bit(Category::Pf) |
                                        bit(Category::Po);
constexpr CharacterClass kSymbol =
    bit(Category::Sm) | bit(Category::Sc) | bit(Category::Sk) | bit(Category::So);

CharacterClass character_class_slow(char32_t value);

namespace internal {
extern const std::array<CharacterClass, 128> kAsciiClasses;
}

inline CharacterClass character_class(char32_t value) {
  return value < 0x80 ? internal::kAsciiClasses[value] : character_class_slow(value);
}

inline bool is_white_space(char32_t value) {
  return character_class(value) & kWhiteSpace;
}

// \w of a single_word rule: Alphabetic, M, Nd, Pc, and the two joiners.
inline bool is_word_character(char32_t value) {
  return (character_class(value) & (kAlphabetic | kMark | bit(Category::Nd) | bit(Category::Pc))) ||
         value == 0x200C || value == 0x200D;
}

}  // namespace kvasir::tokenizer
