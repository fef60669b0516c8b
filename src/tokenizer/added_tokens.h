// Tokens that are looked for in the text itself, before anything else happens to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/trie.h"

namespace kvasir::tokenizer {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = true;    // looked for in the normalized text
  bool special = false;      // hidden by decode(skip_special)
};

// A stretch of text: an added token, or (id < 0) text between them.
struct Fragment {
  size_t begin, end;
  int32_t id;
};

class AddedTokenMatcher {
 public:
  enum class Rule {
    leftmost_longest,  // tokenizer.json: scanning left to right, the longest token at each place
    longest_first,     // GGUF: longer tokens (in bytes; of equal ones the smaller id) take their places first
  };

  AddedTokenMatcher() = default;
  AddedTokenMatcher(std::vector<AddedToken> tokens, Rule rule);

  bool empty() const { return trie_.empty(); }

  // Appends the fragments of `text`, in order. With parse_special false, special tokens are text.
  void split(std::string_view text, bool parse_special, std::vector<Fragment>& out) const;

 private:
  struct Match {
    size_t begin, end;
    int32_t token;
  };
  void split_leftmost(std::string_view text, bool parse_special, std::vector<Fragment>& out) const;
  void split_longest(std::string_view text, bool parse_special, std::vector<Fragment>& out) const;

  std::vector<AddedToken> tokens_;
  Rule rule_ = Rule::leftmost_longest;
  Trie trie_;
};

}  // namespace kvasir::tokenizer
