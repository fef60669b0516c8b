#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace kvasir::tokenizer {
namespace {

struct CategoryRun {
  char32_t first;
  Category category;
};

#include "tokenizer/unicode_ranges.inc"

constexpr char32_t kEnd = 0x110000;
constexpr char32_t kBlock = 256;

// Two stages: a block of 256 characters that all have one class is stored as that class alone. Built on first
// use from the ranges (0.1 ms), so the binary carries the readable form only.
class Table {
 public:
  Table() {
    size_t run = 0, alphabetic = 0, space = 0;
    std::array<CharacterClass, kBlock> block;
    for (char32_t base = 0; base < kEnd; base += kBlock) {
      const auto advance = [](const auto& ranges, size_t& i, char32_t c) {
        while (i < std::size(ranges) && ranges[i].last < c) ++i;
        return i < std::size(ranges) && ranges[i].first <= c;
      };
      const auto next_change = [](const auto& ranges, size_t i, char32_t c) -> char32_t {
        if (i >= std::size(ranges)) return kEnd;
        return ranges[i].first > c ? ranges[i].first : ranges[i].last + 1;
      };
      char32_t c = base;
      const char32_t block_end = base + kBlock;
      bool uniform = true;
      while (c < block_end) {
        while (run + 1 < std::size(kCategoryRuns) && kCategoryRuns[run + 1].first <= c) ++run;
        CharacterClass value = bit(kCategoryRuns[run].category);
        if (advance(kAlphabeticRanges, alphabetic, c)) value |= kAlphabetic;
        if (advance(kWhiteSpaceRanges, space, c)) value |= kWhiteSpace;
        char32_t end = run + 1 < std::size(kCategoryRuns) ? kCategoryRuns[run + 1].first : kEnd;
        end = std::min({end, next_change(kAlphabeticRanges, alphabetic, c),
                        next_change(kWhiteSpaceRanges, space, c), block_end});
        if (c != base || end != block_end) uniform = false;
        std::fill(block.begin() + (c - base), block.begin() + (end - base), value);
        c = end;
      }
      if (uniform) {
        index_[base / kBlock] = {-1, block[0]};
      } else {
        index_[base / kBlock] = {static_cast<int32_t>(blocks_.size()), 0};
        blocks_.push_back(block);
      }
    }
  }

  CharacterClass operator[](char32_t value) const {
    if (value >= kEnd) return bit(Category::Cn);
    const Entry& entry = index_[value / kBlock];
    return entry.block < 0 ? entry.uniform : blocks_[static_cast<size_t>(entry.block)][value % kBlock];
  }

 private:
  struct Entry {
    int32_t block;
    CharacterClass uniform;
  };
  std::array<Entry, kEnd / kBlock> index_;
  std::vector<std::array<CharacterClass, kBlock>> blocks_;
};

const Table& table() {
  static const Table instance;
  return instance;
}

}  // namespace

namespace internal {

constexpr std::array<CharacterClass, 128> ascii_classes() {
  std::array<CharacterClass, 128> classes{};
  size_t run = 0;
  for (char32_t c = 0; c < 128; ++c) {
    while (kCategoryRuns[run + 1].first <= c) ++run;
    classes[c] = bit(kCategoryRuns[run].category);
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') classes[c] |= kAlphabetic;
    if (c == ' ' || (c >= '\t' && c <= '\r')) classes[c] |= kWhiteSpace;
  }
  return classes;
}

constinit const std::array<CharacterClass, 128> kAsciiClasses = ascii_classes();

}  // namespace internal

CharacterClass character_class_slow(char32_t value) {
  return table()[value];
}

}  // namespace kvasir::tokenizer
