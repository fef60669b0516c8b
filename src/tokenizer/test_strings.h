// Test strings made from a seed: the same as tools/oracles/tokenizer_strings.py makes, so that a golden file
// needs only the hashes of what they encode to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

struct Fragments {
  std::vector<std::string> words, lines, emoji, punctuation;
  // tests/data/tokenizer/fragments.json
  static Fragments load(const std::string& path);
};

std::string test_string(uint64_t index, const Fragments& fragments, std::span<const std::string> specials);
std::string test_bytes(uint64_t index);
std::vector<int32_t> test_ids(uint64_t index, uint64_t size);

// FNV-1a, closed by the length.
constexpr uint64_t kHashStart = 0xCBF29CE484222325;
uint64_t hash_ids(uint64_t state, std::span<const int32_t> ids);
uint64_t hash_bytes(uint64_t state, std::string_view bytes);

}  // namespace kvasir::tokenizer
