// Every kind of GGUF vocabulary, against sentencepiece (goldens) or against the tokenizer.json that it was
// made from (which json_tokenizer_test.cc checks against the `tokenizers` package).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/base64.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/test_strings.h"
#include "tokenizer/tokenizer.h"

namespace kvasir::tokenizer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::ElementsAreArray;

const std::string kData = std::string(KVASIR_TEST_DATA) + "/tokenizer/";

json read(const std::string& name) {
  return json::parse(read_file(kData + name, 1 << 22));
}

// Keeps the texts that a GgufTokenizerData points at.
struct OwnedData {
  std::deque<std::string> texts;
  std::vector<uint8_t> charsmap;
  GgufTokenizerData data;

  std::string_view keep(std::string text) { return texts.emplace_back(std::move(text)); }
};

// Eight times the text of one word, or of spaces, takes about eight times the processor's time: 64 times
// would be quadratic.
void expect_not_quadratic(const Tokenizer& t, const char* what) {
  for (const char* unit : {"a", " "}) {
    const auto seconds = [&](size_t size) {
      std::string text;
      while (text.size() < size) text += unit;
      const std::clock_t begin = std::clock();
      t.encode(text, {.add_special = false});
      return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    };
    const double eighth = seconds(size_t{1} << 17);
    EXPECT_LT(seconds(size_t{1} << 20), 24 * eighth + 0.1) << what << " '" << unit << "'";
  }
}

class Sentencepiece : public testing::TestWithParam<const char*> {};

TEST_P(Sentencepiece, SameIds) {
  const json all = read("sentencepiece.json");
  const json& entry = all.at("cases").at(GetParam());
  const bool unigram = std::string_view(GetParam()).starts_with("unigram");
  OwnedData owned;
  owned.data.model = unigram ? "t5" : "llama";
  for (const json& token : entry.at("tokens")) owned.data.tokens.push_back(owned.keep(token));
  owned.data.scores = entry.at("scores").get<std::vector<float>>();
  owned.data.token_types = entry.at("types").get<std::vector<int32_t>>();
  owned.data.unknown = 0;
  owned.data.bos = 1;
  owned.data.eos = 2;
  owned.data.add_space_prefix = entry.at("add_space_prefix");
  owned.data.remove_extra_whitespaces = entry.at("remove_extra_whitespaces");
  owned.charsmap = *decode_base64(entry.at("charsmap").get<std::string>());
  owned.data.precompiled_charsmap = owned.charsmap;
  const Tokenizer t = Tokenizer::from_gguf(owned.data);

  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const auto specials = all.at("specials").get<std::vector<std::string>>();
  const size_t block = all.at("block");
  const auto hashes = entry.at("hashes").get<std::vector<std::string>>();
  for (size_t b = 0; b < hashes.size(); ++b) {
    uint64_t state = kHashStart;
    for (size_t i = b * block; i < (b + 1) * block; ++i) {
      const std::string text = test_string(i, fragments, specials);
      state = hash_ids(state, t.encode(text, {.add_special = false, .parse_special = false}));
    }
    ASSERT_EQ(fmt::format("{:016x}", state), hashes[b])
        << "strings " << b * block << " to " << (b + 1) * block;
  }
  expect_not_quadratic(t, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Sentencepiece,
                         testing::Values("bpe", "bpe_no_prefix", "bpe_unknown", "bpe_unused", "unigram",
                                         "unigram_spaces"),
                         [](const auto& p) { return std::string(p.param); });

json plain_case(const json& all, const std::string& name) {
  const json& entry = all.at("cases").at(name);
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", entry.at("normalizer")},
          {"pre_tokenizer", entry.at("pre_tokenizer")},
          {"post_processor", nullptr},
          {"decoder", entry.at("decoder")},
          {"model", all.at("models").at(entry.at("model").get<std::string>())}};
}

Tokenizer load(const json& tokenizer) {
  const std::string text = tokenizer.dump();
  TokenizerFiles files;
  files.tokenizer_json = text;
  return Tokenizer::from_files(files);
}

// tokens in the order of their ids
void fill_vocabulary(OwnedData& owned, const json& vocabulary) {
  owned.data.tokens.resize(vocabulary.size());
  for (const auto& [text, id] : vocabulary.items()) owned.data.tokens.at(id.get<size_t>()) = owned.keep(text);
}

void fill_merges(OwnedData& owned, const json& merges) {
  for (const json& merge : merges) {
    owned.data.merges.push_back(owned.keep(merge.is_string() ? merge.get<std::string>()
                                                             : merge.at(0).get<std::string>() + " " +
                                                                   merge.at(1).get<std::string>()));
  }
}

void expect_same_ids(const Tokenizer& a, const Tokenizer& b, size_t count, const char* what) {
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  for (size_t i = 0; i < count; ++i) {
    const std::string text = test_string(i, fragments, {});
    ASSERT_EQ(a.encode(text, {.add_special = false}), b.encode(text, {.add_special = false}))
        << what << ": " << text;
  }
}

TEST(GgufKinds, ByteLevelPreTokenizers) {
  const json all = read("cases.json");
  const std::vector<std::pair<const char*, const char*>> kinds = {{"gpt-2", "gpt2"},
                                                                  {"phi-2", "gpt2"},
                                                                  {"dbrx", "llama3"},
                                                                  {"smaug-bpe", "llama3"},
                                                                  {"qwen2", "qwen2"},
                                                                  {"qwen35", "qwen35"},
                                                                  {"gpt-4o", "gpt4o"},
                                                                  {"deepseek-v3", "deepseek_v3"},
                                                                  {"falcon", "falcon"},
                                                                  {"default", "default"},
                                                                  {"starcoder", "starcoder"},
                                                                  {"smollm", "starcoder"},
                                                                  {"deepseek-llm", "deepseek_llm"},
                                                                  {"deepseek-coder", "deepseek_coder"}};
  for (const auto& [pre, pattern] : kinds) {
    const json plain = plain_case(all, std::string("pattern_") + pattern);
    OwnedData owned;
    owned.data.model = "gpt2";
    owned.data.pre = pre;
    fill_vocabulary(owned, plain.at("model").at("vocab"));
    fill_merges(owned, plain.at("model").at("merges"));
    expect_same_ids(Tokenizer::from_gguf(owned.data), load(plain), 10000, pre);
  }
  // These also take whole pieces that are tokens, and put BOS in front.
  for (const auto& [pre, pattern] :
       {std::pair("llama-bpe", "llama3"), {"tekken", "tekken"}, {"minicpm5", "minicpm5"}}) {
    json plain = plain_case(all, std::string("pattern_") + pattern);
    plain["model"]["ignore_merges"] = true;
    OwnedData owned;
    owned.data.model = "gpt2";
    owned.data.pre = pre;
    owned.data.bos = 5;
    fill_vocabulary(owned, plain.at("model").at("vocab"));
    fill_merges(owned, plain.at("model").at("merges"));
    const Tokenizer t = Tokenizer::from_gguf(owned.data);
    EXPECT_EQ(t.adds_bos(), std::string_view(pre) != "minicpm5") << pre;
    expect_same_ids(t, load(plain), 10000, pre);
    expect_not_quadratic(t, pre);
  }
}

TEST(GgufKinds, WordPiece) {
  const json plain = plain_case(read("cases.json"), "wordpiece_True");
  OwnedData owned;
  owned.data.model = "bert";
  fill_vocabulary(owned, plain.at("model").at("vocab"));
  owned.data.token_types.assign(owned.data.tokens.size(), 1);
  for (size_t i = 0; i < owned.data.tokens.size(); ++i) {
    // As the converters write them: U+2581 where a word begins, nothing where it goes on, specials as they
    // are.
    std::string_view& token = owned.data.tokens[i];
    if (token.starts_with("##")) {
      token.remove_prefix(2);
    } else if (token.starts_with('[') && token.size() > 1) {
      owned.data.token_types[i] = 3;
    } else {
      token = owned.keep("▁" + std::string(token));
    }
  }
  owned.data.unknown = 0;
  owned.data.bos = 1;
  owned.data.separator = 2;
  const Tokenizer t = Tokenizer::from_gguf(owned.data), json_tokenizer = load(plain);
  expect_same_ids(t, json_tokenizer, 10000, "bert");
  expect_not_quadratic(t, "bert");
  const std::vector<int32_t> ids = t.encode("the quick, brown fox");
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(t.decode(ids), json_tokenizer.decode(json_tokenizer.encode("the quick, brown fox")));
}

TEST(GgufKinds, Gemma4) {
  json plain = plain_case(read("cases.json"), "fallback_gemma");
  plain["pre_tokenizer"] = json::parse(
      R"({"type": "Split", "pattern": {"Regex": "[^\\n]+|[\\n]+"}, "behavior": "Isolated", "invert": false})");
  OwnedData owned;
  owned.data.model = "gemma4";
  fill_vocabulary(owned, plain.at("model").at("vocab"));
  fill_merges(owned, plain.at("model").at("merges"));
  owned.data.token_types.assign(owned.data.tokens.size(), 1);
  owned.data.unknown = *load(plain).id_of("<unk>");
  owned.data.bos = 7;
  const Tokenizer t = Tokenizer::from_gguf(owned.data);
  expect_same_ids(t, load(plain), 10000, "gemma4");
  expect_not_quadratic(t, "gemma4");
  EXPECT_TRUE(t.adds_bos());
}

TEST(GgufKinds, WholeTokenizerJsonInside) {
  const json plain = plain_case(read("cases.json"), "pattern_qwen2");
  const std::string text = plain.dump();
  OwnedData owned;
  owned.data.huggingface_json = text;
  owned.data.model = "rwkv";
  owned.data.eos = 9;
  const Tokenizer t = Tokenizer::from_gguf(owned.data);
  expect_same_ids(t, load(plain), 200, "inside");
  EXPECT_EQ(t.eos_id(), 9);
  EXPECT_TRUE(t.is_eog(9));
  // Where it cannot be loaded the other entries count.
  owned.data.huggingface_json = "{}";
  owned.data.model = "llama";
  owned.data.tokens = {"<unk>", "▁", "a"};
  owned.data.scores = {0, -1, -2};
  owned.data.add_bos = false;
  const Tokenizer other = Tokenizer::from_gguf(owned.data);
  EXPECT_THAT(other.encode("a"), ElementsAre(1, 2));
  EXPECT_THAT(other.warnings(), testing::Contains(testing::HasSubstr("tokenizer.huggingface.json")));
}

}  // namespace
}  // namespace kvasir::tokenizer
