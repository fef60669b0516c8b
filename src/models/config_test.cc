#include "models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "models/descriptors.h"
#include "models/gguf_config.h"
#include "models/modules/attention.h"
#include "models/profiles.h"
#include "models/synth.h"

namespace kvasir::models {
namespace {

using nlohmann::json;

std::string message_of(const json& config) {
  try {
    parse_config(config, nullptr, "config.json");
  } catch (const Error& error) {
    return std::string(error.what()) + "\n" + error.details();
  }
  return "accepted";
}

json llama(const json& overrides = nullptr) {
  return synth_config("llama", "tiny", overrides);
}

TEST(Config, EveryFamilyOfTheTableIsReadAtEverySize) {
  for (const std::string& family : synth_families())
    for (const std::string& size : synth_sizes()) {
      const ModelConfig m = parse_config(synth_config(family, size), nullptr, "config.json");
      EXPECT_EQ(m.model_type, family);
      EXPECT_EQ(static_cast<int64_t>(m.layer.size()), m.layers);
      EXPECT_GT(m.attention_scale, 0);
    }
}

TEST(Config, HeadDimDefaultsAndOverrides) {
  EXPECT_EQ(parse_config(llama(), nullptr, "c").head_dim, 16);
  EXPECT_EQ(parse_config(llama({{"head_dim", 24}}), nullptr, "c").head_dim, 24);
  EXPECT_EQ(parse_config(llama({{"num_key_value_heads", nullptr}}), nullptr, "c").kv_heads, 4);
}

TEST(Config, LayerKinds) {
  const ModelConfig gemma = parse_config(
      synth_config("gemma3_text", "tiny", {{"sliding_window_pattern", 3}, {"num_hidden_layers", 7}}), nullptr,
      "c");
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(gemma.layer[static_cast<size_t>(i)].window.has_value(), (i + 1) % 3 != 0) << i;
  EXPECT_EQ(gemma.ropes.size(), 2u);
  // An explicit list wins over the pattern.
  const json listed =
      synth_config("gemma3_text", "tiny",
                   {{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_FALSE(parse_config(listed, nullptr, "c").layer[0].window.has_value());
  // mistral: every layer slides when the window is not null.
  EXPECT_EQ(
      parse_config(synth_config("mistral", "tiny", {{"sliding_window", 8}}), nullptr, "c").layer[0].window,
      8);
  EXPECT_FALSE(parse_config(synth_config("mistral", "tiny"), nullptr, "c").layer[0].window);
  // NoPE layers.
  const ModelConfig smol = parse_config(synth_config("smollm3", "tiny"), nullptr, "c");
  EXPECT_EQ(smol.layer[3].rope, -1);
  EXPECT_EQ(smol.layer[2].rope, 0);
}

TEST(Config, NestedTextConfigAndEosOrder) {
  const json text = synth_config("gemma3_text", "tiny");
  const json wrapped = {{"model_type", "gemma3"}, {"text_config", text}, {"eos_token_id", {1, 106}}};
  const ModelConfig m = parse_config(wrapped, nullptr, "c");
  EXPECT_EQ(m.model_type, "gemma3_text");
  EXPECT_EQ(m.eos_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(parse_config(wrapped, json{{"eos_token_id", 50}}, "c").eos_ids, (std::vector<int32_t>{50}));
}

// What transformers 5's class takes for these fields (int, list of int, null), but for negative ids, which it
// keeps and never meets.
TEST(Config, SpecialIdsAreIdsOrTheFileIsRefused) {
  const json bad = {
      "x", "2", -3, 2.5, true, json::object(), {2, "x"}, {2, -1}, {2, true}, {{2}}, int64_t{1} << 32};
  for (const char* key : {"eos_token_id", "bos_token_id"})
    for (const json& value : bad) {
      const std::string reason = fmt::format("config.json: {} is {}, expected", key, value.dump());
      EXPECT_THAT(message_of(llama({{key, value}})), testing::HasSubstr(reason));
      const json wrapped = {{"model_type", "gemma3"}, {"text_config", synth_config("gemma3_text", "tiny")}};
      json top = wrapped, below = wrapped;
      top[key] = value;
      below["text_config"][key] = value;
      EXPECT_THAT(message_of(top), testing::HasSubstr(reason));
      EXPECT_THAT(message_of(below), testing::HasSubstr(reason));
      // Where the other file replaces them as well.
      EXPECT_THROW(parse_config(llama({{key, value}}), json{{"eos_token_id", 5}}, "c"), Error);
    }
  EXPECT_THAT(message_of(llama({{"bos_token_id", {1, 2}}})), testing::HasSubstr("bos_token_id is [1,2]"));
  auto eos = [](const json& value) {
    json config = llama({});
    config["eos_token_id"] = value;
    return parse_config(config, nullptr, "c").eos_ids;
  };
  EXPECT_EQ(eos(nullptr), std::vector<int32_t>{});
  EXPECT_EQ(eos(json::array()), std::vector<int32_t>{});
  EXPECT_EQ(eos(0), std::vector<int32_t>{0});
  EXPECT_EQ(eos({2, 5}), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(parse_config(llama({{"eos_token_id", nullptr}}), nullptr, "c").eos_ids, std::vector<int32_t>{});
}

TEST(Config, IdsBeyondTheVocabularyAreToldAndIgnored) {
  const ModelConfig m = parse_config(
      llama({{"vocab_size", 300}, {"eos_token_id", {2, 999}}, {"bos_token_id", 300}}), nullptr, "c");
  EXPECT_EQ(m.eos_ids, std::vector<int32_t>{2});
  EXPECT_FALSE(m.bos_id);
  EXPECT_EQ(m.warnings,
            (std::vector<std::string>{"c: eos_token_id 999 is no token of a vocabulary of 300: ignored",
                                      "c: bos_token_id 300 is no token of a vocabulary of 300: ignored"}));
  const ModelConfig replaced =
      parse_config(llama({{"vocab_size", 300}}), json{{"eos_token_id", {299, 300}}}, "c");
  EXPECT_EQ(replaced.eos_ids, std::vector<int32_t>{299});
  EXPECT_EQ(replaced.warnings,
            std::vector<std::string>{"generation_config.json: eos_token_id 300 is no token "
                                     "of a vocabulary of 300: ignored"});
  EXPECT_TRUE(parse_config(llama({}), nullptr, "c").warnings.empty());
}

TEST(Config, WrappersOfSparseAndOfSeveralFamilies) {
  // The published 4B: everything else is a default of the publisher's class.
  const json gemma = {{"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}}};
  const ModelConfig m = parse_config(gemma, nullptr, "c");
  EXPECT_EQ(m.heads, 8);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.head_dim, 256);
  EXPECT_EQ(m.vocab, 262208);
  EXPECT_EQ(m.max_position, 131072);
  EXPECT_EQ(m.attention_scale, 1.0 / 16);

  const json mistral = synth_config("mistral", "tiny"), ministral = synth_config("ministral3", "tiny");
  auto wrapped = [](json text) { return json{{"model_type", "mistral3"}, {"text_config", std::move(text)}}; };
  EXPECT_EQ(parse_config(wrapped(mistral), nullptr, "c").model_type, "mistral");
  EXPECT_EQ(parse_config(wrapped(ministral), nullptr, "c").model_type, "ministral3");
  json unnamed = mistral;
  unnamed.erase("model_type");
  EXPECT_EQ(parse_config(wrapped(unnamed), nullptr, "c").model_type, "mistral");
  EXPECT_THAT(message_of(wrapped({{"model_type", "rwkv"}})),
              testing::AllOf(testing::HasSubstr("rwkv"), testing::HasSubstr("text_config of a mistral3")));
}

TEST(Config, ExaoneFourAttendsWithRopeWhereItSlides) {
  auto layers = [](const json& change) {
    std::string out;
    for (const LayerConfig& l : parse_config(synth_config("exaone4", "tiny", change), nullptr, "c").layer)
      out += l.window ? l.rope >= 0 ? "L" : "l" : l.rope >= 0 ? "G" : "g";
    return out;
  };
  EXPECT_EQ(layers({}), "LLLg");
  EXPECT_EQ(layers({{"sliding_window_pattern", nullptr}}), "LLLg");  // removes the key: the class's is 4
  EXPECT_EQ(layers({{"sliding_window_pattern", 2}}), "LgLg");
  EXPECT_EQ(layers({{"sliding_window_pattern", nullptr}, {"sliding_window", nullptr}}), "LLLg");
  json none = synth_config("exaone4", "tiny");
  none["sliding_window"] = nullptr;  // stays, as null
  EXPECT_EQ(parse_config(none, nullptr, "c").layer[0].rope, 0);
  EXPECT_FALSE(parse_config(none, nullptr, "c").layer[0].window);
}

TEST(Config, OlmosOriginalFields) {
  auto original = [](const json& change) {
    json config = {{"model_type", "olmo"}, {"d_model", 64},
                   {"n_heads", 4},         {"n_layers", 2},
                   {"embedding_size", 48}, {"max_sequence_length", 256},
                   {"mlp_ratio", 3.5},     {"activation_type", "swiglu"},
                   {"rope", true}};
    config.update(change);
    return config;
  };
  EXPECT_EQ(parse_config(original(json::object()), nullptr, "c").intermediate, 112);
  EXPECT_EQ(parse_config(original({{"mlp_hidden_size", 192}}), nullptr, "c").intermediate, 96);
  EXPECT_THAT(message_of(original({{"mlp_hidden_size", 193}})),
              testing::HasSubstr("intermediate_size is 96.5"));
  EXPECT_EQ(parse_config(original({{"clip_qkv", 0.01}}), nullptr, "c").clip_qkv, 0.01);
  const json other = {{"include_bias", true},
                      {"alibi", true},
                      {"rope", false},
                      {"layer_norm_type", "rms"},
                      {"layer_norm_with_affine", true},
                      {"attention_layer_norm", true},
                      {"multi_query_attention", true},
                      {"n_kv_heads", 2},
                      {"activation_type", "gelu"},
                      {"scale_logits", true}};
  for (const auto& [key, value] : other.items())
    EXPECT_THAT(message_of(original({{key, value}})),
                testing::HasSubstr(fmt::format("{} is {}", key, value.dump())));
  EXPECT_EQ(message_of(original({{"n_kv_heads", 4}, {"alibi", false}, {"clip_qkv", nullptr}})), "accepted");
}

// What a family's published code lacks is refused under every name that the kind goes by.
TEST(Config, RopeKindsOfAFamily) {
  const json yarn = {{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 4.0}},
             linear = {{"rope_type", "linear"}, {"rope_theta", 10000.0}, {"factor", 4.0}};
  for (const char* family : {"nemotron", "internlm2", "internlm3"})
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      EXPECT_THAT(
          message_of(synth_config(family, "tiny", {{key, yarn}})),
          testing::HasSubstr("rope type yarn is not supported by this family; supported: default, linear"))
          << family;
      EXPECT_EQ(message_of(synth_config(family, "tiny", {{key, linear}})), "accepted") << family;
    }
  EXPECT_THAT(
      message_of(synth_config("phi3", "tiny", {{"rope_scaling", linear}})),
      testing::HasSubstr("rope type linear is not supported by this family; supported: default, longrope"));
  EXPECT_THAT(message_of(llama({{"rope_scaling", {{"rope_type", "bent"}}}})),
              testing::HasSubstr("rope type bent is not supported; supported: default, linear, dynamic"));
  // Published with plain ropes only; their classes in transformers take every kind.
  for (const char* family : {"gemma", "gemma2", "glm4", "stablelm", "starcoder2"}) {
    const ModelConfig m =
        parse_config(synth_config(family, "tiny", {{"rope_scaling", linear}}), nullptr, "c");
    EXPECT_EQ(m.ropes.front().kind, RopeKind::linear) << family;
    EXPECT_EQ(m.ropes.front().factor, 4) << family;
    EXPECT_THAT(message_of(synth_config(family, "tiny", {{"rope_scaling", {{"rope_type", "foo"}}}})),
                testing::HasSubstr("rope type foo is not supported"))
        << family;
  }
  // qwen3_moe has no theta of its own.
  EXPECT_THAT(message_of(synth_config("qwen3_moe", "tiny", {{"rope_theta", nullptr}})),
              testing::HasSubstr("rope_theta is missing"));
  EXPECT_EQ(message_of(synth_config("qwen3_moe", "tiny",
                                    {{"rope_theta", nullptr},
                                     {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}})),
            "accepted");
}

// model-selection.md 2.2: required where the graph uses it. The rows that have a default of their own, and
// the class behind Gemma 3's sparse configurations, keep it.
TEST(Config, TheEpsilonOfNormsIsStatedOrTheRows) {
  const std::map<std::string, float> own = {{"cohere", 1e-5f},   {"cohere2", 1e-5f},   {"gemma3_text", 1e-6f},
                                            {"nanochat", 1e-5f}, {"olmo", 1e-5f},      {"phi", 1e-5f},
                                            {"stablelm", 1e-5f}, {"starcoder2", 1e-5f}};
  for (const std::string& family : synth_families()) {
    json config = synth_config(family, "tiny");
    for (const char* key : {"rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon"}) config.erase(key);
    if (const auto at = own.find(family); at != own.end())
      EXPECT_EQ(parse_config(config, nullptr, "c").epsilon, at->second) << family;
    else
      EXPECT_THAT(message_of(config),
                  testing::HasSubstr(family == "nemotron" ? "config.json: norm_eps is missing"
                                                          : "config.json: rms_norm_eps is missing"))
          << family;
  }
  EXPECT_THAT(message_of(llama({{"rms_norm_eps", 1e-60}})), testing::HasSubstr("too small"));
}

// Gemma 1's configurations say "gelu" and mean its tanh form; no other function is theirs.
TEST(Config, GemmasActivationIsGeluOrItsTanhForm) {
  auto gemma = [](const json& act, const json& activation = nullptr) {
    return message_of(
        synth_config("gemma", "tiny", {{"hidden_act", act}, {"hidden_activation", activation}}));
  };
  EXPECT_EQ(gemma("gelu"), "accepted");
  EXPECT_EQ(parse_config(synth_config("gemma", "tiny", {{"hidden_act", "gelu"}}), nullptr, "c").activation,
            ops::ActivationFunction::gelu_tanh);
  EXPECT_EQ(gemma("gelu_pytorch_tanh"), "accepted");
  EXPECT_EQ(gemma(nullptr), "accepted");
  EXPECT_EQ(gemma("gelu", "gelu_pytorch_tanh"), "accepted");
  EXPECT_THAT(gemma("silu"), testing::HasSubstr("hidden_act is silu, but gemma models use gelu_tanh"));
  EXPECT_THAT(gemma("relu"), testing::HasSubstr("hidden_act is relu"));
  EXPECT_THAT(gemma("silu", "gelu_pytorch_tanh"), testing::HasSubstr("hidden_act is silu"));
  EXPECT_THAT(gemma("gelu", "relu"), testing::HasSubstr("hidden_activation is relu"));
  // The others have it in so many words; messages name the field that says otherwise.
  EXPECT_THAT(message_of(synth_config("gemma2", "tiny", {{"hidden_activation", "gelu"}})),
              testing::HasSubstr("config.json: hidden_activation is gelu, but gemma2 models use"));
}

TEST(Config, MinicpmWithoutAHeadHasTheEmbeddings) {
  auto rule = [](const char* family, const json& tie) {
    return parse_config(synth_config(family, "tiny", {{"tie_word_embeddings", tie}}), nullptr, "c").tie;
  };
  EXPECT_EQ(rule("minicpm", false), TieRule::from_checkpoint);
  EXPECT_EQ(rule("minicpm", true), TieRule::always);
  EXPECT_EQ(rule("minicpm", nullptr), TieRule::from_checkpoint);
  EXPECT_EQ(rule("llama", false), TieRule::never);
}

// model-selection.md 10.2, and llava's remapping to mistral3 (models-qwen-llama-universal.md 2).
TEST(Config, ModelTypesThatAreNone) {
  for (const json& config : {json::object(), json{{"model_type", nullptr}}, json{{"model_type", ""}}})
    EXPECT_THAT(message_of(config),
                testing::AllOf(testing::HasSubstr("model type (missing)"), testing::HasSubstr("smollm3")));
  EXPECT_THAT(message_of({{"model_type", 3}}),
              testing::AllOf(testing::HasSubstr("model type 3 is not supported: expected a string"),
                             testing::HasSubstr("smollm3")));
  const json text = synth_config("mistral", "tiny");
  EXPECT_EQ(parse_config({{"model_type", "llava"}, {"text_config", text}}, nullptr, "c").model_type,
            "mistral");
  EXPECT_EQ(
      parse_config({{"model_type", "llava"}, {"text_config", synth_config("llama", "tiny")}}, nullptr, "c")
          .model_type,
      "llama");
}

// transformers 5.24, tiny models of every class with a factor of 1/2: six families and no others read it for
// plain rope; with the other kinds the rest cannot run (a table of 8 for heads of 16), but for proportional.
TEST(Config, PartOfAHeadIsRotatedWhereThePublishersClassDoes) {
  const std::set<std::string> part = {"phi", "phi3", "glm", "glm4", "stablelm", "nemotron"};
  for (const std::string& family : synth_families()) {
    json config = synth_config(family, "tiny");
    const bool inside = config.contains("rope_parameters");
    (inside ? config["rope_parameters"] : config)["partial_rotary_factor"] = 0.5;
    config.erase("rope_scaling");  // phi3's lists are of whole heads
    const ModelConfig m = parse_config(config, nullptr, "c");
    EXPECT_EQ(m.ropes.front().dims, part.contains(family) ? 8 : 16) << family;
    if (part.contains(family)) {
      EXPECT_TRUE(m.warnings.empty()) << family;
    } else {
      EXPECT_THAT(m.warnings, testing::ElementsAre("c: partial_rotary_factor is 0.5: ignored, this family "
                                                   "rotates whole heads"))
          << family;
    }
  }
  const json four = {{"factor", 4}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "granite"}) {
    for (const char* kind : {"linear", "dynamic", "yarn", "llama3"}) {
      json scaling = four;
      scaling["rope_type"] = kind;
      EXPECT_THAT(message_of(synth_config(family, "tiny",
                                          {{"rope_scaling", scaling}, {"partial_rotary_factor", 0.5}})),
                  testing::HasSubstr("partial_rotary_factor is 0.5, expected 1"))
          << family << kind;
      EXPECT_EQ(
          message_of(synth_config(family, "tiny", {{"rope_scaling", scaling}, {"partial_rotary_factor", 1}})),
          "accepted");
    }
    const json proportional = {
        {"rope_type", "proportional"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}};
    EXPECT_EQ(parse_config(synth_config(family, "tiny", {{"rope_parameters", proportional}}), nullptr, "c")
                  .ropes.front()
                  .partial,
              0.5);
  }
}

TEST(Config, RecordDoesNotDependOnOrderOrUnknownKeys) {
  const json config = synth_config("gemma2", "tiny");
  json more = config;
  more["zzz_unknown"] = {1, 2, 3};
  EXPECT_EQ(parse_config(config, nullptr, "c").canonical_text(),
            parse_config(more, nullptr, "c").canonical_text());
  EXPECT_NE(parse_config(config, nullptr, "c").canonical_text(),
            parse_config(synth_config("gemma2", "tiny", {{"attn_logit_softcapping", 49.0}}), nullptr, "c")
                .canonical_text());
}

TEST(Config, Refusals) {
  EXPECT_THAT(message_of(json{{"hidden_size", 3}}), testing::HasSubstr("model_type is missing"));
  EXPECT_THAT(message_of({{"model_type", "mistral3_x"}}),
              testing::AllOf(testing::HasSubstr("mistral3_x"), testing::HasSubstr("starcoder2"),
                             testing::HasSubstr("qwen3_moe")));
  EXPECT_THAT(message_of({{"model_type", "joyai_llm_flash"}}),
              testing::AllOf(testing::HasSubstr("joyai_llm_flash"), testing::HasSubstr("deepseek_v3")));
  EXPECT_THAT(message_of({{"model_type", "gemma4_assistant"}}), testing::HasSubstr("draft model"));
  EXPECT_THAT(message_of({{"model_type", "x"}, {"auto_map", json::object()}}),
              testing::HasSubstr("own code is not run"));
  EXPECT_THAT(message_of(llama({{"hidden_size", nullptr}})), testing::HasSubstr("hidden_size is missing"));
  EXPECT_THAT(message_of(llama({{"hidden_size", 64.5}})), testing::HasSubstr("hidden_size is 64.5"));
  EXPECT_THAT(message_of(llama({{"num_hidden_layers", 0}})), testing::HasSubstr("num_hidden_layers is 0"));
  EXPECT_THAT(message_of(llama({{"vocab_size", 4294967296}})),
              testing::HasSubstr("vocab_size is 4294967296"));
  EXPECT_THAT(
      message_of(llama({{"num_key_value_heads", 3}})),
      testing::AllOf(testing::HasSubstr("4 attention heads"), testing::HasSubstr("3 key-value heads")));
  EXPECT_THAT(message_of(llama({{"rms_norm_eps", -1e-5}})), testing::HasSubstr("rms_norm_eps"));
  EXPECT_THAT(message_of(llama({{"hidden_act", "relu"}})), testing::HasSubstr("relu"));
  EXPECT_THAT(
      message_of(synth_config("exaone", "tiny", {{"activation_function", "gelu"}, {"hidden_act", nullptr}})),
      testing::HasSubstr("gelu, but exaone models use silu"));
  EXPECT_THAT(message_of(llama({{"layer_types", {"full_attention"}}})),
              testing::HasSubstr("layer_types has 1 entries, expected 4"));
  EXPECT_THAT(
      message_of(llama({{"layer_types", {"full_attention", "x", "full_attention", "full_attention"}}})),
      testing::HasSubstr("layer_types[1] is x"));
  EXPECT_THAT(message_of(synth_config("granite", "tiny", {{"logits_scaling", nullptr}})),
              testing::HasSubstr("logits_scaling"));
  EXPECT_THAT(message_of(synth_config("qwen3", "tiny", {{"head_dim", nullptr}})),
              testing::HasSubstr("head_dim"));
  EXPECT_THAT(message_of(synth_config("glm4", "tiny", {{"partial_rotary_factor", nullptr}})),
              testing::HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message_of(synth_config("smollm3", "tiny", {{"no_rope_layers", {1, 1}}})),
              testing::HasSubstr("no_rope_layers has 2 entries, expected 4"));
  EXPECT_THAT(message_of(synth_config("helium", "tiny", {{"head_dim", 8}})),
              testing::HasSubstr("hidden_size is 64"));
  EXPECT_THAT(message_of(synth_config("gemma3_text", "tiny", {{"use_bidirectional_attention", true}})),
              testing::HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(message_of(synth_config("qwen3_moe", "tiny", {{"num_experts_per_tok", 9}})),
              testing::HasSubstr("more than the 8 experts"));
  EXPECT_THAT(message_of(synth_config("qwen3_moe", "tiny", {{"num_experts_per_tok", 0}})),
              testing::HasSubstr("num_experts_per_tok is 0"));
  EXPECT_THAT(message_of(llama({{"rope_theta", 0}, {"rope_parameters", nullptr}})),
              testing::HasSubstr("rope_theta is 0"));
  EXPECT_THAT(message_of(llama({{"num_attention_heads", 2147483648}})),
              testing::HasSubstr("num_attention_heads is 2147483648"));
  EXPECT_THAT(message_of(llama({{"rms_norm_eps", nullptr}, {"hidden_size", "64"}})),
              testing::HasSubstr("hidden_size is \"64\""));
  EXPECT_THAT(message_of(json{{"model_type", 3}}), testing::HasSubstr("model type 3 is not supported"));
  EXPECT_THAT(message_of(json{{"model_type", "llama"}, {"text_config", 3}}),
              testing::HasSubstr("text_config is 3"));
}

// A window must be one, and only layers that exist can share keys and values.
TEST(Config, ABadFieldIsTheFilesFault) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const json& bad : {llama({{"num_attention_heads", 0}}), llama({{"hidden_size", nullptr}}),
                          llama({{"rms_norm_eps", nan}}), llama({{"num_key_value_heads", 3}}),
                          llama({{"rope_theta", 0}, {"rope_parameters", nullptr}}),
                          synth_config("smollm3", "tiny", {{"no_rope_layers", {1, 1}}}),
                          synth_config("helium", "tiny", {{"head_dim", 8}}),
                          synth_config("qwen3_moe", "tiny", {{"num_experts_per_tok", 9}})}) {
    try {
      parse_config(bad, nullptr, "config.json");
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file) << bad;
    }
  }
  EXPECT_THAT(message_of(llama({{"rms_norm_eps", nan}})), testing::HasSubstr("rms_norm_eps is nan"));
  EXPECT_THAT(message_of(llama({{"vocab_size", int64_t{1} << 40}})), testing::HasSubstr("to 2147483647"));
}

TEST(Synth, FieldsThatAFamilyHasNot) {
  const json base = synth_config("llama", "tiny");
  check_fields(base, synth_config("llama", "tiny", {{"head_dim", 8}, {"attention_bias", true}}));
  try {
    check_fields(base, synth_config("llama", "tiny", {{"hiden_size", 32}}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean hidden_size?"));
  }
}

TEST(Config, WindowsAndSharedLayers) {
  const auto gemma = [](const json& change) {
    return message_of(synth_config("gemma3_text", "tiny", change));
  };
  EXPECT_THAT(gemma({{"sliding_window", -1}}), testing::HasSubstr("sliding_window is -1, expected a whole"));
  EXPECT_THAT(gemma({{"sliding_window", 0}}), testing::HasSubstr("layer 0 slides, but sliding_window is 0"));
  EXPECT_EQ(gemma({{"sliding_window", 0}, {"sliding_window_pattern", 1}}), "accepted");  // no layer slides
  EXPECT_THAT(
      message_of(synth_config("qwen2", "tiny", {{"sliding_window", -7}, {"use_sliding_window", true}})),
      testing::HasSubstr("sliding_window is -7"));
  const json sliding = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(message_of(llama({{"layer_types", sliding}})),
              testing::HasSubstr("layer 1 slides, but sliding_window is missing"));
  EXPECT_THAT(message_of(llama({{"layer_types", sliding}, {"sliding_window", 0}})),
              testing::HasSubstr("layer 1 slides, but sliding_window is 0"));
  EXPECT_EQ(message_of(llama({{"layer_types", sliding}, {"sliding_window", 6}})), "accepted");
  // Where the publisher's class has a width of its own, that is meant.
  EXPECT_EQ(parse_config(synth_config("olmo3", "tiny", {{"sliding_window", nullptr}}), nullptr, "c")
                .layer[0]
                .window,
            4096);

  for (const int64_t shared : {4, 5, 2147483647})
    EXPECT_THAT(message_of(llama({{"num_kv_shared_layers", shared}})),
                testing::AllOf(testing::HasSubstr(fmt::format("num_kv_shared_layers is {}", shared)),
                               testing::HasSubstr("less than the 4 layers")));
  EXPECT_THAT(message_of(llama({{"num_kv_shared_layers", -1}})),
              testing::HasSubstr("num_kv_shared_layers is -1"));
  EXPECT_THAT(message_of(llama({{"num_kv_shared_layers", 2}})),
              testing::HasSubstr("num_kv_shared_layers is 2"));
  EXPECT_EQ(message_of(llama({{"num_kv_shared_layers", 0}})), "accepted");
}

TEST(Profiles, LadderOfFamilies) {
  auto profile = [](const json& config) {
    return resolve_profile(parse_config(config, nullptr, "c"), record_of(config, nullptr, {}, "c"))
        .profile.id;
  };
  EXPECT_EQ(profile(llama()), "universal-dense");
  EXPECT_EQ(profile(synth_config("qwen3", "tiny")), "qwen3-dedicated");
  EXPECT_EQ(profile(synth_config("qwen3_moe", "tiny")), "qwen3-moe-dedicated");
  EXPECT_EQ(profile(synth_config("gemma3_text", "tiny")), "gemma3-dedicated");
  const json minicpm5 = llama({{"hidden_size", 1536},
                               {"num_hidden_layers", 24},
                               {"num_attention_heads", 16},
                               {"num_key_value_heads", 2},
                               {"head_dim", 128},
                               {"vocab_size", 130560},
                               {"intermediate_size", 4608}});
  EXPECT_EQ(profile(minicpm5), "minicpm5-dedicated");
  json other = minicpm5;
  other["num_hidden_layers"] = 42;
  EXPECT_EQ(profile(other), "universal-dense");
}

TEST(QkvRows, PermutationOfTheConverter) {
  // One head of 4: the publisher's rows 0 1 2 3 are stored as 0 2 1 3.
  ModelConfig m;
  m.heads = m.kv_heads = 1;
  m.head_dim = 4;
  m.permuted_qk = true;
  EXPECT_EQ(qkv_rows(m).q, (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(qkv_rows(m).k, (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_TRUE(qkv_rows(m).v.empty());
  m.head_dim = 6;  // stored row 2 j + s is the publisher's row 3 s + j
  const std::vector<int32_t> map = qkv_rows(m).q;
  for (int s = 0; s < 2; ++s)
    for (int j = 0; j < 3; ++j) EXPECT_EQ(map[static_cast<size_t>(3 * s + j)], 2 * j + s);
}

TEST(QkvRows, GroupedFusion) {
  ModelConfig m;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 1;
  m.fused_qkv = FusedQkv::grouped;  // q0 q1 k0 v0 q2 q3 k1 v1
  const QkvRows rows = qkv_rows(m);
  EXPECT_EQ(rows.q, (std::vector<int32_t>{0, 1, 4, 5}));
  EXPECT_EQ(rows.k, (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(rows.v, (std::vector<int32_t>{3, 7}));
}

TEST(NumericsKey, EveryPartChangesIt) {
  NumericsParts parts;
  parts.weights = "w";
  parts.kv.resize(1);
  const NumericsKey base(parts);
  EXPECT_EQ(base, NumericsKey(parts));
  EXPECT_EQ(base.hex().size(), 64u);
  auto changed = [&](auto&& change) {
    NumericsParts other = parts;
    change(other);
    return !(NumericsKey(other) == base);
  };
  EXPECT_TRUE(changed([](NumericsParts& p) { p.weights = "x"; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.config = "x"; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.activations = "bf16"; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv[0].window = 8; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv[0].codec.k.plain = Dtype::f32; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv[0].codec.v.gpu_compat = true; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv[0].codec.v.guard = false; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv[0].codec.k.kind = kv::PlaneCodec::Kind::rotated; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.kv_start = 8; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.isa = IsaLevel::avx2; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.rope = "dynamic:1"; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.adapter = "a"; }));
  EXPECT_TRUE(changed([](NumericsParts& p) { p.tensor_parallel = 2; }));
  EXPECT_FALSE(changed([](NumericsParts& p) { p.kv[0].page_tokens = 16; }));
}

}  // namespace
}  // namespace kvasir::models
