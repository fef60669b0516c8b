// Models that look whole words up: WordPiece and WordLevel.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model.h"
#include "tokenizer/vocabulary.h"

namespace kvasir::tokenizer {

// Greedy: the longest token that begins the word, then the longest that continues it, ...; a word that cannot
// be cut up so is one unknown token.
class WordPieceModel final : public Model {
 public:
  struct Options {
    std::string unknown_token = "[UNK]";
    std::string prefix = "##";     // of tokens that continue a word
    std::string start;             // of tokens that begin one
    size_t most_characters = 100;  // a longer word is unknown
  };

  WordPieceModel(const Vocabulary& vocabulary, Options options)
      : vocabulary_(vocabulary),
        options_(std::move(options)),
        unknown_(vocabulary.find(options_.unknown_token)) {}

  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return 0; }

 private:
  const Vocabulary& vocabulary_;
  Options options_;
  int32_t unknown_;
};

class WordLevelModel final : public Model {
 public:
  WordLevelModel(const Vocabulary& vocabulary, std::string unknown_token)
      : vocabulary_(vocabulary),
        unknown_token_(std::move(unknown_token)),
        unknown_(vocabulary.find(unknown_token_)) {}

  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return 0; }

 private:
  const Vocabulary& vocabulary_;
  std::string unknown_token_;
  int32_t unknown_;
};

}  // namespace kvasir::tokenizer
