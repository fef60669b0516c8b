#include "tokenizer/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/gguf_adapter.h"
#include "tokenizer/test_strings.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kData = std::string(KVASIR_TEST_DATA) + "/tokenizer/";

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// A sentencepiece vocabulary by hand.
GgufTokenizerData small_llama() {
  GgufTokenizerData d;
  d.model = "llama";
  d.tokens = {"<unk>", "<s>", "</s>", "▁",   "a",      "b",      "c",  "ab",
              "bc",    "abc", "▁a",   "<x>", "<0xC3>", "<0xA9>", "  ", "▁▁b"};
  d.scores = {0, 0, 0, -1, -2, -3, -4, -6, -5, -7, -8, 0, 0, 0, 0, -20};
  d.token_types = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4, 6, 6, 4, 1};
  return d;
}

GgufTokenizerData small_gpt2() {
  GgufTokenizerData d;
  d.model = "gpt2";
  d.pre = "gpt-2";
  d.tokens = {"h", "e", "l", "o", "Ġ", "he", "ll", "hell", "Ġhe", "<|im_end|>", "1", "Ċ", "w"};
  d.token_types = {1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1};
  d.merges = {"h e", "l l", "he ll", "Ġ he"};
  d.bos = 0;
  d.eos = 9;
  return d;
}

TEST(GgufLlama, MergesByScoreThenPosition) {
  const Tokenizer t = Tokenizer::from_gguf(small_llama());
  EXPECT_EQ(t.vocab_size(), 16);
  // BOS, then U+2581 in front; "bc" (-5) before "ab" (-6), then "abc" (-7), and "▁" stays alone: "▁abc" is no
  // token.
  EXPECT_THAT(t.encode("abc"), ElementsAre(1, 3, 9));
  EXPECT_THAT(t.encode("abc", {.add_special = false}), ElementsAre(3, 9));
  EXPECT_THAT(t.encode("ab", {.add_special = false}), ElementsAre(3, 7));
  EXPECT_THAT(t.encode("a", {.add_special = false}), ElementsAre(10));
  EXPECT_THAT(t.encode("", {}), ElementsAre(1));
}

TEST(GgufLlama, BytesAndUnknown) {
  const Tokenizer t = Tokenizer::from_gguf(small_llama());
  EXPECT_THAT(t.encode("é", {.add_special = false}), ElementsAre(3, 12, 13));
  EXPECT_THAT(t.encode("zz", {.add_special = false}),
              ElementsAre(3, 0));  // a run of unknown text is one token
  EXPECT_THAT(t.encode("\xC3", {.add_special = false}), ElementsAre(3, 12));
}

TEST(GgufLlama, SpecialTokensInText) {
  const Tokenizer t = Tokenizer::from_gguf(small_llama());
  // A prefix space after each special token; two spaces are a user-defined token, found before anything else.
  EXPECT_THAT(t.encode("a</s>b", {.add_special = false}), ElementsAre(10, 2, 3, 5));
  EXPECT_THAT(t.encode("a<x>b", {.add_special = false, .parse_special = false}), ElementsAre(10, 11, 5));
  EXPECT_THAT(t.encode("<x>b", {.add_special = false}), ElementsAre(3, 11, 5));
  EXPECT_THAT(t.encode("</s> b", {.add_special = false}), ElementsAre(2, 3, 5));
  // The space in front counts as text: with another one it is the user-defined token.
  EXPECT_THAT(t.encode(" b", {.add_special = false}), ElementsAre(14, 5));
  EXPECT_THAT(t.encode("<s>a"), ElementsAre(1, 10));  // never two BOS
  EXPECT_THAT(t.encode("<s>", {.add_special = false, .parse_special = false}), ElementsAre(3, 0));
}

TEST(GgufLlama, Decodes) {
  const Tokenizer t = Tokenizer::from_gguf(small_llama());
  EXPECT_EQ(t.decode(std::vector<int32_t>{1, 10, 3, 7, 2}), "a ab");
  EXPECT_EQ(t.decode(std::vector<int32_t>{1, 10, 2}, {.skip_special = false}), "<s> a</s>");
  EXPECT_EQ(t.decode(std::vector<int32_t>{12, 13, 12, 4, 13}), "é\uFFFDa\uFFFD");
  EXPECT_EQ(t.decode(std::vector<int32_t>{-1, 16, 1 << 30, 4}), "a");
  EXPECT_THAT(t.eog_ids(), ElementsAre(2));
}

TEST(GgufGpt2, MergesAndSpecials) {
  const Tokenizer t = Tokenizer::from_gguf(small_gpt2());
  // "he ll" ranks before "Ġ he".
  EXPECT_THAT(t.encode("hello hello"), ElementsAre(7, 3, 4, 7, 3));
  EXPECT_THAT(t.encode("he<|im_end|>l"), ElementsAre(5, 9, 2));
  EXPECT_THAT(t.encode("he<|im_end|>l", {.parse_special = false}),
              ElementsAre(5, 1, 2));  // missing letters vanish
  EXPECT_EQ(t.decode(std::vector<int32_t>{8, 9, 11, 10}), " he\n1");
  EXPECT_EQ(t.decode(std::vector<int32_t>{8, 9}, {.skip_special = false}), " he<|im_end|>");
  EXPECT_THAT(t.eog_ids(), ElementsAre(9));
  EXPECT_TRUE(t.is_eog(9));
  EXPECT_FALSE(t.is_eog(8));
  EXPECT_EQ(t.piece(8), "Ġhe");
  EXPECT_EQ(t.piece_bytes(8), " he");
  EXPECT_EQ(t.id_of("Ġhe"), 8);
  EXPECT_EQ(t.id_of("nothing"), std::nullopt);
}

TEST(GgufGpt2, OfTwoEqualMergesTheFirstCounts) {
  GgufTokenizerData d = small_gpt2();
  d.tokens = {"a", "b", "c", "ab", "bc"};
  d.token_types.clear();
  d.merges = {"a b", "b c", "a b"};
  EXPECT_THAT(Tokenizer::from_gguf(d).encode("abc"), ElementsAre(3, 2));
}

TEST(GgufGpt2, MergesThatMakeNoTokenStillApply) {
  GgufTokenizerData d = small_gpt2();
  d.tokens = {"a", "b", "c", "abc"};
  d.token_types.clear();
  d.merges = {"a b", "ab c"};
  const Tokenizer t = Tokenizer::from_gguf(d);
  EXPECT_THAT(t.encode("abc"), ElementsAre(3));
  EXPECT_THAT(t.encode("ab"), ElementsAre(0, 1));  // "ab" is no token: its bytes are
}

TEST(Gguf, LongestSpecialTokensTakeTheirPlacesFirst) {
  GgufTokenizerData d = small_gpt2();
  d.tokens = {"a", "b", "c", "d", "ab", "bcd"};
  d.token_types = {1, 1, 1, 1, 3, 3};
  d.merges = {"a b"};
  d.bos = d.eos = 0;
  EXPECT_THAT(Tokenizer::from_gguf(d).encode("abcd"), ElementsAre(0, 5));
}

TEST(Gguf, Refuses) {
  GgufTokenizerData d = small_llama();
  d.model = "rwkv";
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("rwkv"));
  d = small_llama();
  d.scores.pop_back();
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("15 entries for 16 tokens"));
  d = small_llama();
  d.tokens[5] = "a";
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("tokens 4 and 5 are the same"));
  d = small_gpt2();
  d.pre = "made-up";
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("unknown pre-tokenizer type: made-up"));
  d = small_gpt2();
  d.merges[1] = "nospace";
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("merge 1"));
  d = small_llama();
  d.token_types.pop_back();
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("15 entries for 16 tokens"));
  d = small_llama();
  const std::string longest(65'537, 'x');
  d.tokens[9] = longest;
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }),
              HasSubstr("token 9 has 65537 bytes, the limit is 65536"));
  d.tokens[9].remove_suffix(1);
  EXPECT_EQ(error_of([&] { Tokenizer::from_gguf(d); }), "no error");
  d = small_gpt2();
  d.merges.clear();
  EXPECT_THAT(error_of([&] { Tokenizer::from_gguf(d); }), HasSubstr("merges"));
  d = small_gpt2();
  d.bos = 99;
  const Tokenizer t = Tokenizer::from_gguf(d);
  EXPECT_THAT(t.warnings(), ElementsAre(HasSubstr("bos_token_id = 99")));
}

TEST(Gguf, EmptyTokensGetTextsOfTheirOwn) {
  GgufTokenizerData d = small_gpt2();
  d.tokens[10] = d.tokens[12] = "";
  const Tokenizer t = Tokenizer::from_gguf(d);
  EXPECT_EQ(t.piece(10), "[EMPTY_10]");
  EXPECT_EQ(t.piece(12), "[EMPTY_12]");
  EXPECT_THAT(t.encode("he"), ElementsAre(5));
}

TEST(Gguf, EndOfGenerationByText) {
  GgufTokenizerData d = small_gpt2();
  d.tokens = {"a", "<|end|>", "<|call|>", "<|return|>", "</s>", "<|tool_response>", "<eos>"};
  d.token_types = {1, 3, 3, 3, 3, 3, 3};
  d.merges = {"a a"};
  d.bos = 0;
  d.eos = 6;
  EXPECT_THAT(Tokenizer::from_gguf(d).eog_ids(), ElementsAre(2, 3, 5, 6));
  d.eot = 1;  // what the file names always stays
  EXPECT_THAT(Tokenizer::from_gguf(d).eog_ids(), ElementsAre(1, 2, 3, 5, 6));
}

class RealModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = nlohmann::json::parse(read_file(kData + GetParam() + "_gguf.golden.json", 1 << 22));
    path_ = std::string(KVASIR_MODELS_DIR) + "/" + golden_.at("model").get<std::string>();
    ASSERT_TRUE(std::filesystem::exists(path_)) << path_ << ": `make models` fetches it";
  }
  nlohmann::json golden_;
  std::string path_;
};

// 10,000 strings (and as many of arbitrary bytes), against hashes of the publishers' ids.
TEST_P(RealModel, SameIdsAsThePublisher) {
  const Tokenizer t = tokenizer_from_gguf(formats::GgufFile::open(path_));
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const auto specials = golden_.at("specials").get<std::vector<std::string>>();
  const EncodeOptions options{.add_special = false, .parse_special = golden_.at("parse_special")};
  const size_t block = golden_.at("block");
  for (const char* kind : {"text", "bytes"}) {
    if (!golden_.contains(kind)) continue;
    const auto hashes = golden_.at(kind).get<std::vector<std::string>>();
    for (size_t b = 0; b < hashes.size(); ++b) {
      uint64_t state = kHashStart;
      for (size_t i = b * block; i < (b + 1) * block; ++i) {
        const bool bytes = std::string_view(kind) == "bytes";
        const std::string text = bytes ? test_bytes(i) : test_string(i, fragments, specials);
        if (bytes && !is_valid_utf8(replace_invalid_structural(text)))
          continue;  // the oracle cannot hold surrogates
        state = hash_ids(state, t.encode(text, options));
      }
      ASSERT_EQ(fmt::format("{:016x}", state), hashes[b])
          << kind << " strings " << b * block << " to " << (b + 1) * block;
    }
  }
}

// Every stream of ids decodes to the same text at once and token by token, in whole characters.
TEST_P(RealModel, StreamsWhatItDecodes) {
  const Tokenizer t = tokenizer_from_gguf(formats::GgufFile::open(path_));
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const auto specials = golden_.at("specials").get<std::vector<std::string>>();
  for (size_t i = 0; i < 2000; ++i) {
    const std::string text = test_string(i, fragments, specials);
    std::vector<int32_t> ids = t.encode(text, {.add_special = false});
    // Also streams that no text gives: every third id replaced.
    if (i % 2) {
      for (size_t k = 0; k < ids.size(); k += 3)
        ids[k] = static_cast<int32_t>((i * 7919 + k * 104729) % static_cast<size_t>(t.vocab_size()));
    }
    for (bool skip : {false, true}) {
      const std::string whole = t.decode(ids, {.skip_special = skip});
      StreamDecoder stream(t, {.skip_special = skip});
      std::string out;
      for (int32_t id : ids) {
        const std::string_view delta = stream.push(id);
        ASSERT_TRUE(is_valid_utf8(delta));
        out += delta;
      }
      out += stream.finish();
      ASSERT_EQ(out, whole) << text;
      if (!skip && i % 2 == 0 && GetParam() == std::string("gemma3")) {
        ASSERT_EQ(whole, text);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Starters, RealModel, testing::Values("smollm2", "gemma3"),
                         [](const auto& p) { return std::string(p.param); });

TEST(RealGguf, Facts) {
  const std::string folder = std::string(KVASIR_MODELS_DIR) + "/";
  ASSERT_TRUE(std::filesystem::exists(folder + "gemma-3-270m-Q4_K_M.gguf")) << "`make models` fetches it";
  const Tokenizer gemma = tokenizer_from_gguf(formats::GgufFile::open(folder + "gemma-3-270m-Q4_K_M.gguf"));
  EXPECT_EQ(gemma.vocab_size(), 262144);
  EXPECT_EQ(gemma.bos_id(), 2);
  EXPECT_EQ(gemma.eos_id(), 1);
  EXPECT_TRUE(gemma.adds_bos());
  EXPECT_TRUE(gemma.is_eog(*gemma.id_of("<end_of_turn>")));
  EXPECT_THAT(gemma.encode("<bos>x"), testing::SizeIs(2));
  // Spaces: runs of up to 31 are tokens, the longest first.
  EXPECT_THAT(gemma.encode(std::string(33, ' '), {.add_special = false}), ElementsAre(167, 138));

  const Tokenizer smollm =
      tokenizer_from_gguf(formats::GgufFile::open(folder + "SmolLM2-135M-Instruct.Q4_1.gguf"));
  EXPECT_EQ(smollm.vocab_size(), 49152);
  EXPECT_FALSE(smollm.adds_bos());
  EXPECT_TRUE(smollm.is_eog(2));
}

}  // namespace
}  // namespace kvasir::tokenizer
