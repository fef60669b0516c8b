// From token texts back to text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

struct DecodeToken {
  std::string_view text;  // as the vocabulary spells it
  bool added = false;     // an added token (GGUF: control, user-defined, unknown), spelled in plain text
};

// How a decoder can be run one token at a time.
struct StreamRule {
  enum class Kind {
    bytes,    // each token is some bytes; ill-formed ones become U+FFFD, one per maximal subpart
    pieces,   // each token is text or one raw byte; in runs of raw bytes every byte that completes nothing is
              // one U+FFFD
    generic,  // text depends on neighbouring tokens: decoded anew over a short window
  };
  Kind kind = Kind::generic;
  size_t strip_spaces = 0;  // that many spaces vanish at the start of the text
  bool poisoned_runs =
      false;  // pieces: after an ill-formed byte the rest of its run is U+FFFD, byte for byte
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual std::string decode(std::span<const DecodeToken> tokens) const = 0;

  virtual StreamRule stream_rule() const { return {}; }
  // For the kinds `bytes` and `pieces`: appends what a token stands for. True for one raw byte of a run
  // (pieces).
  virtual bool append_token(const DecodeToken& token, bool first, std::string& out) const;
};

// The texts joined with one space (tokenizer.json without a decoder).
class JoiningDecoder final : public Decoder {
 public:
  std::string decode(std::span<const DecodeToken> tokens) const override;
  StreamRule stream_rule() const override { return {StreamRule::Kind::pieces}; }
  bool append_token(const DecodeToken& token, bool first, std::string& out) const override;
};

// Byte alphabet to bytes. A text with any other character is taken as it is; `plain_added`: so are added
// tokens (GGUF).
class ByteLevelDecoder final : public Decoder {
 public:
  explicit ByteLevelDecoder(bool plain_added) : plain_added_(plain_added) {}
  std::string decode(std::span<const DecodeToken> tokens) const override;
  StreamRule stream_rule() const override { return {StreamRule::Kind::bytes}; }
  bool append_token(const DecodeToken& token, bool first, std::string& out) const override;

 private:
  bool plain_added_;
};

// Sentencepiece vocabularies of GGUF files: U+2581 to space, <0xXX> to its byte.
class SentencepieceDecoder final : public Decoder {
 public:
  explicit SentencepieceDecoder(bool strip_first_space) : strip_(strip_first_space) {}
  std::string decode(std::span<const DecodeToken> tokens) const override;
  StreamRule stream_rule() const override {
    return {StreamRule::Kind::pieces, strip_ ? size_t{1} : 0, false};
  }
  bool append_token(const DecodeToken& token, bool first, std::string& out) const override;

 private:
  bool strip_;
};

// The byte of "<0xXX>", -1 for any other text. `any_case`: lower-case hex too.
int byte_of_token(std::string_view text, bool any_case);

// Appends raw bytes: characters where they are well-formed, one U+FFFD for each byte that is part of none.
// Returns how many bytes were used; with `more` a sequence that could still be completed is left.
size_t append_byte_run(std::string& out, std::string_view bytes, bool more);

}  // namespace kvasir::tokenizer
