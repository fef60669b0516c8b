// What turns one pre-tokenized piece of text into ids, and the scratch memory that doing so needs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pre_tokenizer.h"

namespace kvasir::tokenizer {

// Remembers the ids of short pieces. One cache line an entry, one place a piece can be: a newer piece
// replaces an older one. It only ever saves time; results do not depend on it.
class WordCache {
 public:
  static constexpr size_t kLongestKey = 23;
  static constexpr size_t kMostIds = 9;

  // nullptr where the piece is unknown; `slot` is then where it may be stored.
  struct Entry {
    uint8_t key_length;
    char key[kLongestKey];
    uint32_t count;
    int32_t ids[kMostIds];
  };
  static_assert(sizeof(Entry) == 64);

  // The ids of `piece`, or an empty span when unknown (a piece may also be known to give no ids: `known`).
  bool find(std::string_view piece, std::span<const int32_t>& ids);
  // Right after a find() of the same piece that failed.
  void store(std::string_view piece, std::span<const int32_t> ids);

 private:
  static constexpr size_t kEntries = 1 << 14;  // 1 MiB, touched as it fills
  std::unique_ptr<Entry[]> entries_;
  Entry* last_ = nullptr;
};

// A unit of text while pairs are being merged.
struct Symbol {
  uint32_t begin, length;  // bytes of the piece; length 0: merged into its left neighbour
  int32_t id;              // -1: not in the vocabulary
  int32_t previous, next;  // -1: none
};

// Scratch memory of one encode() at a time; reused, so that encoding allocates nothing once it is warm.
struct Workspace {
  WordCache cache;
  std::vector<Symbol> symbols;
  struct Candidate {
    uint64_t key;  // merges come in the order of their keys
    int32_t left, right, merged;
  };
  std::vector<Candidate> heap;
  struct BestPath {
    double score;
    int32_t begin, id;  // begin -1: not reached
  };
  std::vector<BestPath> best;  // by byte position
  std::string text;
  std::vector<uint32_t> ends, more_ends;
  Pieces pieces;
};

class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of `piece` (not empty).
  virtual void encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const = 0;
  virtual size_t memory_bytes() const = 0;
};

}  // namespace kvasir::tokenizer
