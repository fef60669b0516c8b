// Byte-pair encoding with a list of merges (tokenizer.json "BPE", GGUF "gpt2" and "gemma4").
//
// A piece becomes symbols (characters, or bytes), and the neighbouring pair whose merge ranks first (of equal
// ranks the leftmost) is merged until no pair has a merge. Short pieces are scanned for that pair, long ones
// use a priority queue: O(n log n) however the text looks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tokenizer/model.h"
#include "tokenizer/vocabulary.h"

namespace kvasir::tokenizer {

// (left id, right id) -> (rank, merged id), open addressing, two entries a cache line or more.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };

  void reserve(size_t merges);
  // Of equal pairs the later counts (`replace`) or the earlier.
  void add(int32_t left, int32_t right, Merge merge, bool replace);
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t s = slot_of(key);; s = (s + 1) & mask_) {
      if (slots_[s].key == key) return &slots_[s].merge;
      if (slots_[s].key == kEmpty) return nullptr;
    }
  }
  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> shift_) & mask_; }

  std::vector<Slot> slots_{4};
  uint64_t mask_ = 3;
  unsigned shift_ = 62;
  size_t count_ = 0;
};

struct BpeOptions {
  // Symbols are bytes; vocabulary texts are written in the byte alphabet. Otherwise symbols are characters.
  bool byte_level = false;
  bool ignore_merges = false;  // a piece that is a token is that token
  std::string continuing_subword_prefix, end_of_word_suffix;
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool first_merge_counts = false;  // of two equal merges (GGUF; in tokenizer.json the last one counts)
  bool lenient_merges =
      false;  // a merge may name or make what is no token (GGUF); otherwise that is an error
};

class BpeModel final : public Model {
 public:
  struct MergeText {
    std::string_view left, right;
  };

  // `vocabulary` must outlive the model. Throws Error{corrupt_file} naming the merge that does not fit the
  // vocabulary.
  BpeModel(const Vocabulary& vocabulary, const std::vector<MergeText>& merges, BpeOptions options);

  void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const override;

  // Merges that make no token of the vocabulary (only with lenient_merges).
  size_t odd_merges() const { return odd_.entries(); }
  size_t memory_bytes() const override { return merges_.memory_bytes(); }

 private:
  void encode_part(std::string_view part, Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_uncached(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const;
  void make_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  void merge_few(std::vector<Symbol>& symbols) const;
  void merge_many(std::vector<Symbol>& symbols, std::vector<Workspace::Candidate>& heap) const;

  const Vocabulary& vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;  // byte_level: symbol of each byte; else <0xXX> of each byte
  std::array<int32_t, 128>
      ascii_ids_;  // symbol of each ASCII character where there is neither prefix nor suffix
  bool bytes_complete_ = false;
  int32_t unknown_ = -1;
  // Where pieces are whole texts (sentencepiece vocabularies), they are cut before each of these characters
  // wherever no merge joins it to the character on its left: what is on either side cannot then touch. Empty:
  // no cuts.
  std::string_view cut_before_;
  std::unordered_set<std::string> joined_;  // characters that some merge joins to cut_before_ on their right
  // Symbols that merges make but that are no tokens; their ids follow the vocabulary's.
  Vocabulary odd_;
};

}  // namespace kvasir::tokenizer
