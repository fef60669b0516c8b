#include "engine/vocabulary_breakers.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace kvasir::engine {
namespace {

// Words, and byte-level pieces of "ab:c": tokens that hold a breaker, and tokens that end in its beginning.
tokenizer::Tokenizer words() {
  tokenizer::TokenizerFiles files;
  files.name = "t";
  files.tokenizer_json =
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
    "decoder":{"type":"Fuse"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"xa":4,"abc":5,"x":6,":":7,"x:":8},
    "merges":[],"unk_token":null}})";
  return tokenizer::Tokenizer::from_files(files);
}

TEST(VocabularyBreakers, TokensThatHoldOneAndTokensThatBeginOne) {
  const tokenizer::Tokenizer t = words();
  // ":" is in tokens 7 and 8. "abc" is token 5; "ab" begins it (then "c"), as do "a" and "xa" (then "b",
  // "c").
  const std::array<std::string, 2> texts = {":", "abc"};
  const auto made = make_dry_breakers(t, texts);
  const DryBreakers expected = {{7, {{}}}, {8, {{}}}, {5, {{}}}, {3, {{2}}}, {0, {{1, 2}}}, {4, {{1, 2}}}};
  EXPECT_EQ(*made, expected);
  EXPECT_TRUE(make_dry_breakers(t, {})->empty());
  const std::array<std::string, 1> empty = {""};
  EXPECT_THROW(make_dry_breakers(t, empty), Error);
}

}  // namespace
}  // namespace kvasir::engine
