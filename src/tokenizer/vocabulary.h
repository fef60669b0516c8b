// The texts of a vocabulary and their ids, both ways. Ids may have gaps, and two texts may share an id (the
// later one is then what the id decodes to). A lookup is one hash and, as a rule, three cache lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

class Vocabulary {
 public:
  static constexpr int32_t kNone = -1;

  // Room for `entries` texts of `bytes` bytes in all; more may be added.
  void reserve(size_t entries, size_t bytes);

  // Enters a text. Where it is known already, nothing changes and its old id is returned; else kNone.
  int32_t add(std::string_view text, int32_t id);

  // The same, with the text's hash(): see prefetch().
  int32_t add(std::string_view text, int32_t id, uint64_t hash);

  // Enters a text, or gives a known text this id. Returns the old id or kNone.
  int32_t add_or_replace(std::string_view text, int32_t id);

  int32_t find(std::string_view text) const;
  bool has(int32_t id) const { return id >= 0 && id < size() && entry_of_id_[id] >= 0; }
  // Empty for an id in a gap.
  std::string_view text(int32_t id) const;

  int32_t size() const { return static_cast<int32_t>(entry_of_id_.size()); }  // largest id + 1
  size_t entries() const { return entries_.size(); }                          // texts
  size_t longest() const { return longest_; }                                 // bytes of the longest text
  size_t memory_bytes() const;

  // Lookups of many texts overlap their cache misses when the hashes are known a few texts ahead.
  static uint64_t hash(std::string_view text);
  void prefetch(uint64_t hash) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[hash & mask_]);
  }
  int32_t find(std::string_view text, uint64_t hash) const;

 private:
  struct Entry {
    uint32_t begin, length;
    int32_t id;
  };
  struct Slot {
    uint32_t tag;   // upper half of the hash
    int32_t entry;  // -1: empty
  };

  size_t slot_of(std::string_view text, uint64_t hash) const;
  std::string_view text_of(const Entry& e) const { return {bytes_.data() + e.begin, e.length}; }
  void grow(size_t slots);

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<int32_t> entry_of_id_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  size_t longest_ = 0;
};

}  // namespace kvasir::tokenizer
