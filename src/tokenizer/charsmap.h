// Sentencepiece's precompiled map of character sequences to replacements: a double-array trie (Darts) and the
// NUL-terminated texts that its leaves point at.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

class Charsmap {
 public:
  // `data`: u32 trie size in bytes, the trie, the texts. Throws Error{corrupt_file} naming `where`.
  Charsmap(std::span<const uint8_t> data, std::string_view where);

  struct Hit {
    size_t length;  // bytes of the key
    std::string_view replacement;
  };
  // The shortest or longest key that is a prefix of `text`. Every step is checked against the trie's bounds.
  std::optional<Hit> shortest_prefix(std::string_view text) const { return find(text, false); }
  std::optional<Hit> longest_prefix(std::string_view text) const { return find(text, true); }

 private:
  std::optional<Hit> find(std::string_view text, bool longest) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace kvasir::tokenizer
