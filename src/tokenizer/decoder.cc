#include "tokenizer/decoder.h"

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

}  // namespace

bool Decoder::append_token(const DecodeToken&, bool, std::string&) const {
  KVASIR_CHECK(false);
  return false;
}

std::string JoiningDecoder::decode(std::span<const DecodeToken> tokens) const {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) append_token(tokens[i], i == 0, out);
  return out;
}

bool JoiningDecoder::append_token(const DecodeToken& token, bool first, std::string& out) const {
  if (!first) out += ' ';
  out += token.text;
  return false;
}

std::string ByteLevelDecoder::decode(std::span<const DecodeToken> tokens) const {
  std::string bytes;
  for (const DecodeToken& token : tokens) append_token(token, false, bytes);
  return is_valid_utf8(bytes) ? bytes : replace_invalid(bytes);
}

bool ByteLevelDecoder::append_token(const DecodeToken& token, bool, std::string& out) const {
  if ((plain_added_ && token.added) || !append_from_alphabet(out, token.text)) out += token.text;
  return false;
}

int byte_of_token(std::string_view text, bool any_case) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int value = 0;
  for (char c : text.substr(3, 2)) {
    int digit;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else if (any_case && c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

size_t append_byte_run(std::string& out, std::string_view bytes, bool more) {
  size_t i = 0;
  while (i < bytes.size()) {
    bool cut = false;
    const CodePoint c = decode_lossy(bytes, i, &cut);
    if (cut && more) break;
    // A well-formed U+FFFD has three bytes, an ill-formed sequence is used up byte by byte.
    const bool valid =
        c.value != kReplacement || (c.length == 3 && !cut && bytes.substr(i, 3) == "\xEF\xBF\xBD");
    append_utf8(out, c.value);
    i += valid ? c.length : 1;
  }
  return i;
}

std::string SentencepieceDecoder::decode(std::span<const DecodeToken> tokens) const {
  std::string out, run;
  const auto end_run = [&] {
    append_byte_run(out, run, false);
    run.clear();
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string piece;
    if (append_token(tokens[i], i == 0, piece)) {
      run += piece;
    } else {
      end_run();
      out += piece;
    }
  }
  end_run();
  if (strip_ && out.starts_with(' ')) out.erase(0, 1);
  return is_valid_utf8(out) ? out : replace_invalid(out);
}

bool SentencepieceDecoder::append_token(const DecodeToken& token, bool, std::string& out) const {
  if (token.added) {
    out += token.text;
    return false;
  }
  const int byte = byte_of_token(token.text, false);
  if (byte >= 0) {
    out.push_back(static_cast<char>(byte));
    return true;
  }
  for (size_t i = 0; i < token.text.size();) {
    if (token.text.substr(i, 3) == kSpaceMark) {
      out += ' ';
      i += 3;
    } else {
      out += token.text[i++];
    }
  }
  return false;
}

}  // namespace kvasir::tokenizer
