// Unigram: of all ways to cut a piece into tokens, the one whose scores sum highest (tokenizer.json
// "Unigram", GGUF "t5").
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/model.h"
#include "tokenizer/trie.h"
#include "tokenizer/vocabulary.h"

namespace kvasir::tokenizer {

class UnigramModel final : public Model {
 public:
  struct Token {
    std::string_view text;
    int32_t id;
    double score;
  };
  struct Options {
    int32_t unknown = -1;  // -1: text that no token covers is an error
    double unknown_score = 0;
    bool byte_fallback = false;
    // Sums of scores are rounded to binary32 as they grow, as sentencepiece keeps them; ties depend on it.
    bool single_precision = false;
    // Unknown text that spells a token anyway (the Rust library looks fused text up once more).
    bool look_up_unknown = true;
  };

  // `vocabulary` must outlive the model. Of two tokens with one text the later counts.
  UnigramModel(const Vocabulary& vocabulary, const std::vector<Token>& tokens, const Options& options);

  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override {
    return trie_.memory_bytes() + scores_.capacity() * sizeof(scores_[0]);
  }

 private:
  struct Scored {
    int32_t id;
    double score;
  };
  void emit_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  Options options_;
  Trie trie_;  // to an index of scores_
  std::vector<Scored> scores_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace kvasir::tokenizer
