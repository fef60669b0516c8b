// The "decoder" of a tokenizer.json: steps over the list of token texts, joined at the end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/decoder.h"
#include "tokenizer/regex.h"

namespace kvasir::tokenizer {

// English punctuation and contractions drawn to the word before them ("do not" becomes "don't"), as WordPiece
// decoders do.
void clean_up(std::string& text);

class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Steps that look at one token at a time: rewrites it (`first`: it is the first of all). False for other
  // steps.
  virtual bool rewrite(std::string& token, bool first) const;
};

class FuseStep final : public DecodeStep {
 public:
  void apply(std::vector<std::string>& tokens) const override;
};

class ByteLevelStep final : public DecodeStep {
 public:
  void apply(std::vector<std::string>& tokens) const override;
};

// Runs of <0xXX>: text where they are valid UTF-8 as a whole, else one U+FFFD a byte.
class ByteFallbackStep final : public DecodeStep {
 public:
  void apply(std::vector<std::string>& tokens) const override;
};

class ReplaceStep final : public DecodeStep {
 public:
  ReplaceStep(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  ReplaceStep(Regex regex, std::string content) : regex_(std::move(regex)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override;
  bool rewrite(std::string& token, bool first) const override;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
  std::string content_;
};

// At most `start` leading and `stop` trailing times `content`, of each token.
class StripStep final : public DecodeStep {
 public:
  StripStep(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override;
  bool rewrite(std::string& token, bool first) const override;
  // Leading spaces only: a stream can do it.
  std::optional<size_t> leading_spaces() const {
    return content_ == " " && stop_ == 0 ? std::optional(start_) : std::nullopt;
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

class MetaspaceStep final : public DecodeStep {
 public:
  MetaspaceStep(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void apply(std::vector<std::string>& tokens) const override;
  bool rewrite(std::string& token, bool first) const override;

 private:
  std::string replacement_;
  bool prepended_;
};

class WordPieceStep final : public DecodeStep {
 public:
  WordPieceStep(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override;
  bool rewrite(std::string& token, bool first) const override;

 private:
  std::string prefix_;
  bool cleanup_;
};

class BpeStep final : public DecodeStep {
 public:
  explicit BpeStep(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override;

 private:
  std::string suffix_;
};

class CtcStep final : public DecodeStep {
 public:
  CtcStep(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override;

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class ChainDecoder final : public Decoder {
 public:
  explicit ChainDecoder(std::vector<std::unique_ptr<DecodeStep>> steps);
  std::string decode(std::span<const DecodeToken> tokens) const override;
  StreamRule stream_rule() const override { return rule_; }
  bool append_token(const DecodeToken& token, bool first, std::string& out) const override;

 private:
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  StreamRule rule_;
  size_t rewriting_steps_ = 0;  // the first steps, which look at one token at a time
  bool raw_bytes_ = false;
};

}  // namespace kvasir::tokenizer
