// The byte alphabet of GPT-2: every byte has a printable character that stands for it in vocabularies.
// Printable Latin-1 bytes stand for themselves, the other 68 are U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::tokenizer {

// The character of each byte.
extern const std::array<char16_t, 256> kByteAlphabet;

// The byte of a character of the alphabet, -1 for any other character.
int byte_of_letter(char32_t letter);

// The text of some bytes in the alphabet.
void append_in_alphabet(std::string& out, std::string_view bytes);
std::string in_alphabet(std::string_view bytes);

// Appends the bytes that `text` stands for. False, appending nothing, where a character is none of the
// alphabet.
bool append_from_alphabet(std::string& out, std::string_view text);

}  // namespace kvasir::tokenizer
