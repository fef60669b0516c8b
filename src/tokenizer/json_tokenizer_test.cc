#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/test_strings.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kData = std::string(KVASIR_TEST_DATA) + "/tokenizer/";

const json& cases() {
  static const json all = json::parse(read_file(kData + "cases.json", 1 << 22));
  return all;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : cases().at("cases").items()) names.push_back(name);
  return names;
}

Tokenizer load(const json& tokenizer) {
  const std::string text = tokenizer.dump();
  TokenizerFiles files;
  files.tokenizer_json = text;
  return Tokenizer::from_files(files);
}

json tokenizer_json(const json& entry) {
  json model = cases().at("models").at(entry.at("model").get<std::string>());
  for (const auto& [key, value] : entry.at("changes").items()) model[key] = value;
  json added = json::array();
  for (const json& token : entry.at("added")) {
    json whole = {
        {"id", 100000 + added.size()}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}};
    whole.update(token);
    added.push_back(whole);
  }
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", entry.at("normalizer")},
          {"pre_tokenizer", entry.at("pre_tokenizer")},
          {"post_processor", entry.at("post_processor")},
          {"decoder", entry.at("decoder")},
          {"model", model}};
}

class Case : public testing::TestWithParam<std::string> {};

// Ids and texts against hashes of what the `tokenizers` package gives
// (tools/oracles/tokenizer_json_goldens.py).
TEST_P(Case, SameAsTokenizers) {
  const json& entry = cases().at("cases").at(GetParam());
  const Tokenizer t = load(tokenizer_json(entry));
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const auto specials = cases().at("specials").get<std::vector<std::string>>();
  const size_t block = cases().at("block");
  const auto hashes = entry.at("hashes").get<std::vector<std::string>>();
  ASSERT_FALSE(hashes.empty());
  // The oracle counts tokens, not ids: where ids have gaps the two differ, and none of these has gaps.
  const auto size = static_cast<uint64_t>(t.vocab_size());
  for (size_t b = 0; b < hashes.size(); ++b) {
    uint64_t state = kHashStart;
    for (size_t i = b * block; i < (b + 1) * block; ++i) {
      const std::string text = test_string(i, fragments, specials);
      const std::vector<int32_t> ids = t.encode(text, {.add_special = (i & 1) != 0});
      state = hash_ids(state, ids);
      if (i % 5 == 0) state = hash_bytes(state, t.decode(ids, {.skip_special = (i & 2) != 0}));
      if (i % 25 == 0) state = hash_bytes(state, t.decode(test_ids(i, size), {.skip_special = false}));
    }
    ASSERT_EQ(fmt::format("{:016x}", state), hashes[b])
        << "strings " << b * block << " to " << (b + 1) * block;
  }
}

TEST_P(Case, StreamsWhatItDecodes) {
  const json& entry = cases().at("cases").at(GetParam());
  const Tokenizer t = load(tokenizer_json(entry));
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const auto specials = cases().at("specials").get<std::vector<std::string>>();
  for (size_t i = 0; i < 200; ++i) {
    const std::vector<int32_t> ids = t.encode(test_string(i, fragments, specials));
    StreamDecoder stream(t, {.skip_special = true});
    std::string out;
    for (int32_t id : ids) {
      const std::string_view delta = stream.push(id);
      ASSERT_TRUE(is_valid_utf8(delta));
      out += delta;
    }
    out += stream.finish();
    ASSERT_EQ(out, t.decode(ids, {.skip_special = true}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Case, testing::ValuesIn(case_names()), [](const auto& p) { return p.param; });

// A word-level tokenizer over single characters and a few words, for rules that show in the ids.
json small(json added, json normalizer = nullptr) {
  json vocabulary;
  for (const char* text : {"[UNK]", "a", "b", "c", "d", "ab", "abc", "bcd", "x", "_"})
    vocabulary[text] = vocabulary.size();
  return {{"version", "1.0"},
          {"added_tokens", std::move(added)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "[UNK]"}}}};
}

json added(const char* content, json more = json::object()) {
  json token = {{"id", 0},         {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(more);
  return token;
}

std::vector<std::string> pieces(const Tokenizer& t, std::string_view text) {
  std::vector<std::string> out;
  for (int32_t id : t.encode(text)) out.emplace_back(t.piece(id));
  return out;
}

TEST(AddedTokens, LongestAtTheLeftmostPlace) {
  const Tokenizer t = load(small({added("ab"), added("abc"), added("bcd")}));
  EXPECT_THAT(pieces(t, "abcd"), ElementsAre("abc", "d"));
}

TEST(AddedTokens, SingleWord) {
  const Tokenizer t =
      load(small({added("ab", {{"single_word", true}}), added("abc", {{"single_word", true}})}));
  // The refused "abc" uses up its text: no shorter match is tried inside.
  EXPECT_THAT(pieces(t, "abcd"), ElementsAre("[UNK]"));
  EXPECT_THAT(pieces(t, "ab_"), ElementsAre("[UNK]"));
  EXPECT_THAT(pieces(t, "|ab|"), ElementsAre("[UNK]", "ab", "[UNK]"));
  EXPECT_THAT(pieces(t, "abc ab"), ElementsAre("abc", "[UNK]", "ab"));
}

TEST(AddedTokens, Ids) {
  // The model's id where the model has the text, else one after another from the number of texts on.
  json t = small({added("ab", {{"id", 77}}), added("<x>", {{"id", 1}}), added("<y>")});
  const Tokenizer tokenizer = load(t);
  EXPECT_EQ(tokenizer.id_of("ab"), 5);
  EXPECT_EQ(tokenizer.id_of("<x>"), 10);
  EXPECT_EQ(tokenizer.id_of("<y>"), 11);
  EXPECT_EQ(tokenizer.warnings().size(), 3);
  t["model"]["vocab"] = {{"a", 0}, {"b", 5}};
  t["model"]["unk_token"] = "a";
  t["added_tokens"] = json::array({added("<x>", {{"id", 1}})});
  EXPECT_EQ(load(t).id_of("<x>"), 2);
}

TEST(AddedTokens, SpecialOnesAreTextWhenAsked) {
  const Tokenizer t = load(small({added("<x>", {{"special", true}}), added("<y>")}));
  EXPECT_THAT(t.encode("<x><y>"), ElementsAre(10, 11));
  EXPECT_THAT(t.encode("<x><y>", {.parse_special = false}), ElementsAre(0, 11));
  EXPECT_EQ(t.decode(std::vector<int32_t>{10, 11, 1}), "<y>a");
  EXPECT_EQ(t.decode(std::vector<int32_t>{10, 11, 1}, {.skip_special = false}), "<x><y>a");
  EXPECT_TRUE(t.is_special(10));
  EXPECT_FALSE(t.is_special(11));
}

TEST(JsonTokenizer, InvalidTextIsRepaired) {
  json t = small(json::array());
  t["model"]["vocab"]["\uFFFD"] = 10;
  t["model"]["vocab"]["\uFFFD\uFFFD"] = 11;
  const Tokenizer tokenizer = load(t);
  EXPECT_THAT(tokenizer.encode("\xE2\x82"), ElementsAre(10));  // one maximal subpart
  EXPECT_THAT(tokenizer.encode("\xFF\xC0"), ElementsAre(11));
}

TEST(JsonTokenizer, ConfigFiles) {
  const std::string text = small(json::array({added("</s>", {{"special", true}})})).dump();
  TokenizerFiles files;
  files.tokenizer_json = text;
  files.tokenizer_config_json =
      R"({"model_max_length": Infinity, "bos_token": "a", "eos_token": {"content": "</s>"},
    "added_tokens_decoder": {"11": {"content": "<extra>", "special": true}}})";
  files.generation_config_json = R"({"eos_token_id": [10, 11]})";
  files.config_json = R"({"eos_token_id": 3})";
  const Tokenizer t = Tokenizer::from_files(files);
  EXPECT_EQ(t.bos_id(), 1);
  EXPECT_EQ(t.eos_id(), 10);
  EXPECT_EQ(t.id_of("<extra>"), 11);
  EXPECT_THAT(t.eog_ids(), ElementsAre(10, 11));
  files.generation_config_json = R"({"eos_token_id": null})";
  EXPECT_THAT(Tokenizer::from_files(files).eog_ids(), ElementsAre(3, 10));
  // Of a list that is none, no part counts.
  files.generation_config_json = R"({"eos_token_id": [2, "x"]})";
  const Tokenizer other = Tokenizer::from_files(files);
  EXPECT_THAT(other.eog_ids(), ElementsAre(3, 10));
  EXPECT_THAT(other.warnings(), testing::Contains(HasSubstr("generation_config.json: eos_token_id[1]")));
}

std::string error_of(const json& tokenizer) {
  try {
    load(tokenizer);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string encode_error(const json& tokenizer, const std::string& text) {
  const Tokenizer t = load(tokenizer);
  try {
    t.encode(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(JsonTokenizer, Refuses) {
  const json good = small(json::array());
  json t = good;
  t["version"] = "2.0";
  EXPECT_THAT(error_of(t), HasSubstr("Unknown tokenizer version '2.0'"));
  t = good;
  t["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Fancy"}}}}};
  EXPECT_THAT(error_of(t), HasSubstr("pre_tokenizer.pretokenizers[0]: pre-tokenizer type Fancy is unknown"));
  t["pre_tokenizer"] = {{"type", "ByteLevel"}, {"trim_offsets", true}};
  EXPECT_THAT(error_of(t), HasSubstr("member add_prefix_space is missing"));
  t["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_THAT(error_of(t), HasSubstr("pattern (a is invalid"));
  t["pre_tokenizer"]["pattern"]["Regex"] = "a{1,100000}";
  EXPECT_THAT(error_of(t), HasSubstr("repeats more than 1000 times"));
  t = good;
  t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
  EXPECT_THAT(error_of(t), HasSubstr("prepend_scheme"));
  t = good;
  t["model"] = {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", {"a b"}}};
  EXPECT_THAT(error_of(t), HasSubstr("token ab of merge 0 is out of vocabulary"));
  t["model"]["merges"] = {"a  b"};
  EXPECT_THAT(error_of(t), HasSubstr("one space"));
  t["model"]["merges"] = json::array();
  t["model"]["dropout"] = 0.5;
  EXPECT_THAT(error_of(t), HasSubstr("dropout"));
  t["model"]["dropout"] = 0.0;
  EXPECT_EQ(error_of(t), "no error");
  t["model"] = {{"type", "Unigram"}, {"vocab", json::parse(R"([["a", -1.0]])")}, {"unk_id", 1}};
  EXPECT_THAT(error_of(t), HasSubstr("model.unk_id"));
  t["model"] = {{"type", "BPE"}, {"vocab", {{"a", -1}}}, {"merges", json::array()}};
  EXPECT_THAT(error_of(t), HasSubstr("model.vocab.a"));
  t["model"]["vocab"] = {{"a", 0}, {std::string(65'537, 'b'), 1}};
  EXPECT_THAT(error_of(t), HasSubstr("65536"));
  t["model"]["vocab"] = {{"a", 4294967296}};
  EXPECT_THAT(error_of(t), HasSubstr("model.vocab.a"));
  t["model"]["vocab"] = {{"a", 0}};
  for (const json& merge : {json("a"), json({"a"}), json({"a", 3}), json(7), json({"a", "a", "a"})}) {
    t["model"]["merges"] = json::array({merge});
    EXPECT_NE(error_of(t), "no error") << merge;
  }
  // A vocabulary whose unknown token is not in it has no answer for what it does not know.
  t["model"] = {{"type", "WordPiece"},
                {"vocab", {{"a", 0}}},
                {"unk_token", "[UNK]"},
                {"continuing_subword_prefix", "##"},
                {"max_input_chars_per_word", 100}};
  EXPECT_THAT(load(t).encode("a"), ElementsAre(0));
  EXPECT_THAT(encode_error(t, "b"), HasSubstr("[UNK]"));
  t["model"] = {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "<none>"}};
  EXPECT_THAT(encode_error(t, "b"), HasSubstr("<none>"));
  t["model"] = {{"type", "Unigram"}, {"vocab", json::parse(R"([["a", -1.0]])")}, {"unk_id", nullptr}};
  EXPECT_NE(encode_error(t, "b"), "no error");
  t = good;
  json deep = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"normalizers", {deep}}};
  t["normalizer"] = deep;
  EXPECT_THAT(error_of(t), HasSubstr("nest deeper than 16"));
  t = good;
  t["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", {{{"SpecialToken", {{"id", "[CLS]"}}}}}},
                         {"pair", json::array()},
                         {"special_tokens", json::object()}};
  EXPECT_THAT(error_of(t), HasSubstr("[CLS] is not in special_tokens"));
  t["post_processor"]["special_tokens"] = {{"[CLS]", {{"id", "[CLS]"}, {"ids", {99}}, {"tokens", {"x"}}}}};
  EXPECT_THAT(error_of(t), HasSubstr("token id 99"));
}

// What the package (0.23.3) refuses to compile, or loads and then fails on for some or every text.
TEST(JsonTokenizer, RefusesWhatThePackageCannotApply) {
  const json good = small(json::array());
  json t = good;
  for (const char* pattern : {"[\\d-x]", "[\\w-.]", "[\\p{L}--[a-z]]", "[[:alpha:]-x]"}) {
    t["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    EXPECT_THAT(error_of(t), HasSubstr("begins with a class")) << pattern;
  }
  for (const char* pattern : {"[a-\\d]", "[\\x{41}-\\p{L}]", "[a-[:alpha:]]"}) {
    t["pre_tokenizer"]["pattern"]["Regex"] = pattern;
    EXPECT_THAT(error_of(t), HasSubstr("ends in a class")) << pattern;
  }
  for (const char* pattern :
       {"[\\d-]", "[-\\d]", "[a-b-\\d]", "[a-[b]]", "[\\s\\-x]", "[\\d-&&x]", "[+--]"}) {
    t["pre_tokenizer"]["pattern"]["Regex"] = pattern;
    EXPECT_EQ(error_of(t), "no error") << pattern;
  }
  t = small({{{"id", 10}, {"content", "\u0301"}, {"normalized", true}}}, {{"type", "StripAccents"}});
  EXPECT_THAT(error_of(t), HasSubstr("normalizes to nothing"));
  t["added_tokens"][0]["normalized"] = false;
  EXPECT_EQ(error_of(t), "no error");
  t = good;
  const json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  const auto one = [](json single) {
    return json{{"type", "TemplateProcessing"},
                {"single", single},
                {"pair", single},
                {"special_tokens", json::object()}};
  };
  t["post_processor"] = one(json::array({b}));
  EXPECT_THAT(error_of(t), HasSubstr("text B of 1, expected A"));
  t["post_processor"] = {{"type", "Sequence"}, {"processors", {one({a, a, a}), one(json::array({a}))}}};
  EXPECT_THAT(error_of(t), HasSubstr("give it 3 texts, expected one or two"));
}

TEST(JsonTokenizer, StepBudget) {
  json t = small(json::array());
  t["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a+)+$x"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Tokenizer tokenizer = load(t);
  EXPECT_THAT(
      [&] {
        try {
          tokenizer.encode(std::string(100, 'a') + "!");
        } catch (const Error& e) {
          return std::string(e.what());
        }
        return std::string();
      }(),
      HasSubstr("exceeded its step budget"));
}

// Streams that start inside a text keep their first space; without context the first space of a text is
// hidden.
TEST(Stream, LeadingSpaceBelongsToTheText) {
  const json& entry = cases().at("cases").at("fallback_llama");
  const Tokenizer t = load(tokenizer_json(entry));
  const std::vector<int32_t> ids = t.encode("the of", {.add_special = false});
  ASSERT_GE(ids.size(), 2);
  StreamDecoder fresh(t);
  EXPECT_FALSE(fresh.push(ids[0]).starts_with(' '));
  StreamDecoder inside(t, {}, std::span(ids).first(1));
  EXPECT_TRUE(inside.push(ids[0]).starts_with(' '));
}

TEST(Stream, IllFormedRunsOfByteTokens) {
  const json& entry = cases().at("cases").at("fallback_llama");
  const Tokenizer t = load(tokenizer_json(entry));
  const auto byte = [&](unsigned b) { return *t.id_of(fmt::format("<0x{:02X}>", b)); };
  // In decode() one ill-formed byte spoils its whole run; what a stream has handed out stays.
  const std::vector<int32_t> ids = {byte('h'), byte(0xE2), byte(0x82), byte('i'), *t.id_of("abcd")};
  EXPECT_EQ(t.decode(ids), "\uFFFD\uFFFD\uFFFD\uFFFDabcd");
  StreamDecoder stream(t);
  std::string out;
  for (int32_t id : ids) out += stream.push(id);
  out += stream.finish();
  EXPECT_EQ(out, "h\uFFFD\uFFFD\uFFFDabcd");
}

// A decoder that also strips the end is decoded in windows; a spoiled run changes text that is out already.
TEST(Stream, WindowsThatChangeTheirMindHandOutWholeCharacters) {
  json tokenizer = tokenizer_json(cases().at("cases").at("fallback_llama"));
  for (json& decoder : tokenizer.at("decoder").at("decoders"))
    if (decoder.at("type") == "Strip") decoder["stop"] = 1;
  const Tokenizer t = load(tokenizer);
  const auto byte = [&](unsigned b) { return *t.id_of(fmt::format("<0x{:02X}>", b)); };
  const std::vector<int32_t> ids = {byte(0xC3), byte(0xA9), byte(0xE2), *t.id_of("abcd")};
  EXPECT_EQ(t.decode(ids), "\uFFFD\uFFFD\uFFFDabcd");
  StreamDecoder stream(t);
  std::string out;
  for (int32_t id : ids) {
    const std::string_view delta = stream.push(id);
    EXPECT_TRUE(is_valid_utf8(delta)) << delta;
    out += delta;
  }
  out += stream.finish();
  EXPECT_EQ(out, "\u00E9\uFFFD\uFFFD\uFFFDabcd");
}

// A megabyte of one word takes a moment, not a minute, in every model.
TEST(JsonTokenizer, LongWordsAreNotQuadratic) {
  for (const char* name : {"pattern_llama3", "fallback_llama", "fallback_gemma", "unigram", "suffix",
                           "prefix", "wordpiece_True"}) {
    const Tokenizer t = load(tokenizer_json(cases().at("cases").at(name)));
    for (const char* unit : {"a", " ", "\n", "the", "中", "\xFF"}) {
      std::string text;
      while (text.size() < (1 << 20)) text += unit;
      // Of the processor: a busy machine is no slow tokenizer.
      const std::clock_t begin = std::clock();
      t.encode(text);
      EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 10) << name << " " << unit;
    }
  }
}

}  // namespace
}  // namespace kvasir::tokenizer
