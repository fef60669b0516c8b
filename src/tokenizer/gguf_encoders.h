// How the kinds of vocabulary in GGUF files (tokenizer.ggml.model) take a stretch of text to ids and back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/parts.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/scanner.h"
#include "tokenizer/spm.h"
#include "tokenizer/trie.h"
#include "tokenizer/unigram.h"
#include "tokenizer/word_models.h"

namespace kvasir::tokenizer {

// gpt2: byte-level BPE. Scans, then merges.
class ScannedBpe final : public TextEncoder {
 public:
  ScannedBpe(std::vector<Scan> steps, std::unique_ptr<BpeModel> model)
      : steps_(std::move(steps)), model_(std::move(model)) {}
  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::vector<Scan> steps_;
  std::unique_ptr<BpeModel> model_;
};

// llama: sentencepiece BPE; spaces become U+2581.
class SpmEncoder final : public TextEncoder {
 public:
  SpmEncoder(std::unique_ptr<SpmModel> model, bool add_space_prefix)
      : model_(std::move(model)), add_space_prefix_(add_space_prefix) {}
  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::unique_ptr<SpmModel> model_;
  bool add_space_prefix_;
};

// gemma4: BPE by merges over characters, spaces as U+2581; lines and runs of line ends apart.
class LineBpe final : public TextEncoder {
 public:
  LineBpe(const Vocabulary& vocabulary, std::unique_ptr<BpeModel> model)
      : vocabulary_(vocabulary), model_(std::move(model)) {}
  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  const Vocabulary& vocabulary_;
  std::unique_ptr<BpeModel> model_;
};

// bert: the publisher's normalizer and word splitter; words are looked up with U+2581 before them.
class BertEncoder final : public TextEncoder {
 public:
  BertEncoder(std::unique_ptr<WordPieceModel> model, bool lowercase, bool strip_accents);
  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::unique_ptr<WordPieceModel> model_;
  BertNormalizer normalizer_;
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// t5: sentencepiece Unigram.
class UnigramEncoder final : public TextEncoder {
 public:
  struct Options {
    bool add_space_prefix = false, remove_extra_spaces = false;
    std::optional<Charsmap> map;
    Trie verbatim;  // user-defined tokens, which the map leaves alone
  };
  UnigramEncoder(std::unique_ptr<UnigramModel> model, Options options)
      : model_(std::move(model)), options_(std::move(options)) {}
  void encode(std::string_view text, const Place& place, Workspace& workspace,
              std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return model_->memory_bytes(); }

 private:
  std::string normalize(std::string_view text) const;

  std::unique_ptr<UnigramModel> model_;
  Options options_;
};

// bert: a word that is marked with U+2581, and any added token, has a space before it; English punctuation is
// drawn to the word before it, as the publisher's decoder does.
class MarkedWordDecoder final : public Decoder {
 public:
  std::string decode(std::span<const DecodeToken> tokens) const override;
  StreamRule stream_rule() const override { return {StreamRule::Kind::pieces, 0, false}; }
  bool append_token(const DecodeToken& token, bool first, std::string& out) const override;
};

}  // namespace kvasir::tokenizer
