// SentencePiece's BPE, as GGUF stores it (model "llama"): tokens with scores and no merge list. Of all
// neighbouring pairs whose concatenation is a token, the one with the highest score (of equal scores the
// leftmost) is merged first.
//
// A text is one long word here. It is cut first at the places that no token of the vocabulary crosses (judged
// by the two characters around the place), because no merge can cross them either; the parts are short and
// mostly known.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/model.h"
#include "tokenizer/vocabulary.h"

namespace kvasir::tokenizer {

enum class TokenKind : uint8_t { undefined, normal, unknown, control, user_defined, unused, byte };

class SpmModel final : public Model {
 public:
  // All four by token id; `vocabulary`, `scores` and `kinds` must outlive the model. `unknown` < 0: none.
  SpmModel(const Vocabulary& vocabulary, std::span<const float> scores, std::span<const TokenKind> kinds,
           int32_t unknown);

  // `piece`: any bytes, with U+2581 in place of spaces.
  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const override;
  size_t memory_bytes() const override { return sizeof(*this) + PairSet::kBytes; }

 private:
  // `first`: where the ids of the whole text begin in `ids`.
  void encode_part(std::string_view part, size_t first, Workspace& workspace,
                   std::vector<int32_t>& ids) const;
  void merge(std::string_view part, size_t first, Workspace& workspace, std::vector<int32_t>& ids) const;
  void emit(std::string_view symbol, size_t first, std::vector<int32_t>& ids) const;
  // Sentencepiece builds symbols from normal, user-defined and unused tokens only.
  int32_t find_mergeable(std::string_view text) const;

  // A set of character pairs that stand side by side inside some token; it may hold more than that, never
  // less.
  class PairSet {
   public:
    void insert(char32_t a, char32_t b) { bits_[slot(a, b) / 64] |= uint64_t{1} << slot(a, b) % 64; }
    bool contains(char32_t a, char32_t b) const { return bits_[slot(a, b) / 64] >> slot(a, b) % 64 & 1; }

    static constexpr size_t kBytes = (1 << 21) / 8;

   private:
    static size_t slot(char32_t a, char32_t b) {
      return ((uint64_t{a} << 32 | b) * 0x9E3779B97F4A7C15u) >> (64 - 21);
    }
    std::vector<uint64_t> bits_ = std::vector<uint64_t>(kBytes / 8);
  };

  const Vocabulary& vocabulary_;
  std::span<const float> scores_;
  std::span<const TokenKind> kinds_;
  int32_t unknown_;
  std::array<int32_t, 256> byte_ids_;
  bool has_unused_ = false;
  PairSet inside_;
};

}  // namespace kvasir::tokenizer
