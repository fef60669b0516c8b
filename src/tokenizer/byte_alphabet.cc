#include "tokenizer/byte_alphabet.h"

#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

constexpr std::array<char16_t, 256> make_alphabet() {
  std::array<char16_t, 256> letters{};
  char16_t next = 0x100;
  for (int b = 0; b < 256; ++b)
    letters[static_cast<size_t>(b)] = stands_for_itself(b) ? static_cast<char16_t>(b) : next++;
  return letters;
}

constexpr std::array<int16_t, 0x144> make_bytes() {
  constexpr auto kLetters = make_alphabet();
  std::array<int16_t, 0x144> bytes{};
  for (auto& b : bytes) b = -1;
  for (size_t b = 0; b < 256; ++b) bytes[kLetters[b]] = static_cast<int16_t>(b);
  return bytes;
}

constexpr auto kBytes = make_bytes();

}  // namespace

constinit const std::array<char16_t, 256> kByteAlphabet = make_alphabet();

int byte_of_letter(char32_t letter) {
  return letter < kBytes.size() ? kBytes[letter] : -1;
}

void append_in_alphabet(std::string& out, std::string_view bytes) {
  for (char c : bytes) append_utf8(out, kByteAlphabet[static_cast<unsigned char>(c)]);
}

std::string in_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  append_in_alphabet(out, bytes);
  return out;
}

bool append_from_alphabet(std::string& out, std::string_view text) {
  const size_t size = out.size();
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_lossy(text, i);
    const int byte = byte_of_letter(c.value);
    if (byte < 0) {
      out.resize(size);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    i += c.length;
  }
  return true;
}

}  // namespace kvasir::tokenizer
