// Where a checkpoint comes from, its canonical record, and the published fingerprints.
#include "models/identity.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/test_folder.h"
#include "models/synth.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

CanonicalRecord record(const json& config, const json& kv_config = nullptr) {
  return record_of(config, kv_config, formats::QuantizationConfig::from_config(config, "c"), "c");
}

std::vector<std::string> every(int count, int period, const char* often, const char* last) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(i % period == period - 1 ? last : often);
  return out;
}

json kv_list(const std::vector<int>& bits) {
  json out = json::array();
  for (size_t i = 0; i < bits.size(); ++i)
    out.push_back({{"layer_idx", i}, {"bits", bits[i]}, {"group_size", 64}});
  return out;
}

json tiny_a() {
  return {{"model_type", "gemma4_text"},
          {"layer_types", {"sliding_attention", "full_attention"}},
          {"hidden_size", 64},
          {"head_dim", 16},
          {"global_head_dim", 32},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_global_key_value_heads", 1},
          {"attention_k_eq_v", true},
          {"enable_moe_block", true},
          {"num_experts", 8},
          {"top_k_experts", 2},
          {"sliding_window", 8},
          {"final_logit_softcapping", 30.0},
          {"num_hidden_layers", 2},
          {"intermediate_size", 96},
          {"moe_intermediate_size", 32},
          {"vocab_size", 128},
          {"rms_norm_eps", 1e-6},
          {"tie_word_embeddings", true},
          {"dtype", "bfloat16"},
          {"rope_parameters",
           {{"full_attention",
             {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}},
            {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}},
          {"quantization", {{"bits", 4}, {"group_size", 64}, {"model.embed_tokens", {{"bits", 8}}}}}};
}
const json kTinyKv = kv_list({4, 8});

// model-selection.md 3.2 and 3.3.
TEST(Identity, PublishedFingerprints) {
  const json qwen = {
      {"model_type", "qwen3_5"},   {"layer_types", every(64, 4, "linear_attention", "full_attention")},
      {"hidden_size", 5120},       {"head_dim", 256},
      {"num_attention_heads", 24}, {"num_key_value_heads", 4},
      {"num_experts", 7}};
  EXPECT_EQ(config_fingerprint_text(record(qwen)).size(), 1511u);
  EXPECT_EQ(config_fingerprint(record(qwen)), "50117975cb405944");

  json e4b = {{"model_type", "gemma4"},
              {"text_config",
               {{"layer_types", every(42, 6, "sliding_attention", "full_attention")},
                {"hidden_size", 2560},
                {"head_dim", 256},
                {"global_head_dim", 512},
                {"num_attention_heads", 8},
                {"num_key_value_heads", 2},
                {"num_kv_shared_layers", 18},
                {"hidden_size_per_layer_input", 256},
                {"sliding_window", 512},
                {"final_logit_softcapping", 30.0}}}};
  std::vector<int> bits = {4, 4, 4, 8, 8, 4, 4, 4, 4, 8, 8, 8, 4, 4, 8};
  bits.resize(24, 4);
  EXPECT_EQ(config_fingerprint_text(record(e4b, kv_list(bits))).size(), 2095u);
  EXPECT_EQ(config_fingerprint(record(e4b, kv_list(bits))), "418e9adc386ea67c");

  const json a4b = {
      {"model_type", "gemma4"},   {"layer_types", every(30, 6, "sliding_attention", "full_attention")},
      {"hidden_size", 2816},      {"head_dim", 256},
      {"global_head_dim", 512},   {"num_attention_heads", 16},
      {"num_key_value_heads", 8}, {"num_global_key_value_heads", 2},
      {"attention_k_eq_v", true}, {"enable_moe_block", true},
      {"num_experts", 128},       {"top_k_experts", 8},
      {"sliding_window", 1024},   {"final_logit_softcapping", 30}};
  bits = {8, 4, 4, 8, 8, 8, 4, 4, 8, 8, 4, 8, 8};
  bits.resize(30, 4);
  EXPECT_EQ(config_fingerprint(record(a4b, kv_list(bits))), "c9dd67ed5a525231");

  const json minicpm = {{"model_type", "llama"}, {"num_hidden_layers", 24},   {"hidden_size", 1536},
                        {"head_dim", 128},       {"num_attention_heads", 16}, {"num_key_value_heads", 2}};
  EXPECT_EQ(config_fingerprint_text(record(minicpm)).size(), 735u);
  EXPECT_EQ(config_fingerprint(record(minicpm)), "310a328499a28dab");

  json tiny = tiny_a();
  EXPECT_EQ(config_fingerprint(record(tiny, kTinyKv)), "668f70c44e6582c2");
  EXPECT_EQ(specialization_fingerprint_text(record(tiny, kTinyKv)).size(), 566u);
  EXPECT_EQ(specialization_fingerprint(record(tiny, kTinyKv)), "392fb88d37c9efdf");
  tiny["final_logit_softcapping"] = 12.5;
  EXPECT_EQ(config_fingerprint_text(record(tiny, kTinyKv)).size(), 432u);
  EXPECT_EQ(config_fingerprint(record(tiny, kTinyKv)), "f9e944f0148f3e13");
}

TEST(Identity, EachFieldOfAFingerprintChangesItAndOthersDoNot) {
  const CanonicalRecord base = record(tiny_a(), kTinyKv);
  const std::vector<std::function<void(CanonicalRecord&)>> config = {
      [](auto& r) { r.layer_types[0] = "full_attention"; },
      [](auto& r) { ++r.hidden_size; },
      [](auto& r) { ++r.head_dim; },
      [](auto& r) { ++r.global_head_dim; },
      [](auto& r) { ++r.heads; },
      [](auto& r) { ++r.kv_heads; },
      [](auto& r) { ++r.global_kv_heads; },
      [](auto& r) { r.attention_k_eq_v = false; },
      [](auto& r) { ++r.kv_shared_layers; },
      [](auto& r) { r.enable_moe_block = false; },
      [](auto& r) { ++r.experts; },
      [](auto& r) { ++r.top_k_experts; },
      [](auto& r) { ++r.hidden_size_per_layer_input; },
      [](auto& r) { ++r.sliding_window; },
      [](auto& r) { r.final_softcap.reset(); },
      [](auto& r) { r.kv_quant.reset(); },
      [](auto& r) { r.kv_quant->clear(); },
      [](auto& r) { r.kv_quant->at(1).bits = 4; }};
  const std::vector<std::function<void(CanonicalRecord&)>> specialization = {
      [](auto& r) { r.model_type = "other"; },
      [](auto& r) { ++r.layers; },
      [](auto& r) { ++r.intermediate_size; },
      [](auto& r) { ++r.moe_intermediate_size; },
      [](auto& r) { ++r.vocab_size; },
      [](auto& r) { *r.epsilon *= 2; },
      [](auto& r) { r.tie = false; },
      [](auto& r) { r.activation = "silu"; },
      [](auto& r) { r.ropes["full_attention"].partial = 0.5; },
      [](auto& r) { r.ropes.erase("sliding_attention"); },
      [](auto& r) { r.dtype = "float16"; },
      [](auto& r) { r.weights->bits = 8; },
      [](auto& r) { r.weight_overrides["model.embed_tokens"].reset(); },
      [](auto& r) { r.weights.reset(); }};
  std::set<std::string> seen = {specialization_fingerprint(base)};
  for (const auto& change : config) {
    CanonicalRecord r = base;
    change(r);
    EXPECT_NE(config_fingerprint(r), config_fingerprint(base));
    EXPECT_TRUE(seen.insert(specialization_fingerprint(r)).second);
  }
  for (const auto& change : specialization) {
    CanonicalRecord r = base;
    change(r);
    EXPECT_EQ(config_fingerprint(r), config_fingerprint(base));
    EXPECT_TRUE(seen.insert(specialization_fingerprint(r)).second);
  }
}

TEST(Identity, RecordsDoNotDependOnOrderNestingOrTheFormOfRope) {
  json reordered = json::parse(R"({"unknown":[1,2]})");
  const json tiny = tiny_a();
  for (auto it = tiny.crbegin(); it != tiny.crend(); ++it) reordered[it.key()] = *it;
  EXPECT_EQ(record(reordered), record(tiny));
  json inner = tiny_a(), wrapper = {{"model_type", "gemma4_text"}};
  wrapper["text_config"] = inner;
  EXPECT_EQ(config_fingerprint(record(wrapper)), config_fingerprint(record(inner)));

  const json scaling = {{"rope_type", "llama3"}, {"factor", 8.0}};
  json old_form = synth_config("llama", "tiny"), new_form = old_form;
  for (json* form : {&old_form, &new_form})
    for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) form->erase(key);
  old_form["rope_theta"] = 5e5;
  old_form["rope_scaling"] = scaling;
  new_form["rope_parameters"] = scaling;
  new_form["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_EQ(record(old_form), record(new_form));
  EXPECT_EQ(record(old_form).ropes.at("full_attention").theta, 5e5);
}

// A record in the words of config.json.
json canonical(const CanonicalRecord& r) {
  const auto sizes = [](const std::optional<formats::MlxQuantization>& q) -> json {
    if (!q) return false;
    return {{"bits", q->bits},
            {"group_size", q->group_size},
            {"mode", std::string(formats::name(q->mode)).substr(4)}};
  };
  json out = {{"model_type", r.model_type},
              {"layer_types", r.layer_types},
              {"hidden_size", r.hidden_size},
              {"head_dim", r.head_dim},
              {"global_head_dim", r.global_head_dim},
              {"num_attention_heads", r.heads},
              {"num_key_value_heads", r.kv_heads},
              {"num_global_key_value_heads", r.global_kv_heads},
              {"attention_k_eq_v", r.attention_k_eq_v},
              {"num_kv_shared_layers", r.kv_shared_layers},
              {"enable_moe_block", r.enable_moe_block},
              {"num_experts", r.experts},
              {"top_k_experts", r.top_k_experts},
              {"num_experts_per_tok", r.top_k_experts},
              {"hidden_size_per_layer_input", r.hidden_size_per_layer_input},
              {"sliding_window", r.sliding_window},
              {"final_logit_softcapping", r.final_softcap ? json(*r.final_softcap) : json()},
              {"num_hidden_layers", r.layers},
              {"intermediate_size", r.intermediate_size},
              {"moe_intermediate_size", r.moe_intermediate_size},
              {"vocab_size", r.vocab_size},
              {"tie_word_embeddings", r.tie},
              {"hidden_activation", r.activation},
              {"dtype", r.dtype}};
  for (const char* key : {"rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"})
    out[key] = *r.epsilon;  // each family reads its own
  for (const auto& [kind, rope] : r.ropes)
    out["rope_parameters"][kind] = {{"rope_type", rope.type},
                                    {"rope_theta", rope.theta},
                                    {"partial_rotary_factor", rope.partial},
                                    {"factor", rope.factor}};
  if (r.weights) {
    out["quantization"] = sizes(r.weights);
    for (const auto& [path, q] : r.weight_overrides) out["quantization"][path] = sizes(q);
  }
  return out;
}

// S1: what a record says, read again, is the record.
TEST(Identity, TheCanonicalRecordIsIdempotent) {
  const auto same = [](const json& config, const json& kv_config, const std::string& what) {
    const CanonicalRecord first = record(config, kv_config);
    json kv;
    if (first.kv_quant) {
      kv = json::array();
      for (const KvQuant& q : *first.kv_quant)
        kv.push_back({{"layer_idx", q.layer}, {"bits", q.bits}, {"group_size", q.group_size}});
    }
    const CanonicalRecord again = record(json::parse(canonical(first).dump()), kv);
    EXPECT_EQ(again, first) << what;
    EXPECT_EQ(specialization_fingerprint_text(again), specialization_fingerprint_text(first)) << what;
  };
  same(tiny_a(), kTinyKv, "tiny A");
  same(tiny_a(), nullptr, "tiny A without kv_config");
  same(tiny_a(), json::array(), "tiny A with an empty kv_config");
  same({{"model_type", "gemma4"}, {"text_config", tiny_a()}}, kTinyKv, "wrapped");
  json excluded = tiny_a();
  excluded["quantization"]["lm_head"] = false;
  excluded["quantization"]["mode"] = "affine";
  same(excluded, nullptr, "a module that is not quantized");
  json flat = synth_config("llama", "tiny");
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) flat.erase(key);
  flat["rope_theta"] = 12345.678;
  flat["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 1.0 / 3}};
  same(flat, nullptr, "the old form of rope");
  for (const std::string& family : synth_families())
    for (const std::string& size : synth_sizes()) {
      if (family == "ministral3" && size == "tiny") continue;  // has no such size
      same(synth_config(family, size), nullptr, family + " " + size);
    }
}

// What the publishers' classes read, and their defaults: transformers' configuration_<family>.py.
TEST(Identity, TheEpsilonIsTheOneThatTheModelUses) {
  const std::vector<const char*> keys = {"rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon",
                                         "layer_norm_epsilon"};
  const auto with = [&](const std::string& family, const json& fields) {
    json config = synth_config(family, "tiny");
    for (const char* key : keys) config.erase(key);
    config.update(fields);
    return config;
  };
  // A key that the family does not read must not count, first in any other order as it may be.
  const std::tuple<const char*, json, double> given[] = {
      {"starcoder2", {{"norm_epsilon", 3e-4}, {"rms_norm_eps", 9e-4}, {"layer_norm_eps", 9e-4}}, 3e-4},
      {"starcoder2", json::object(), 1e-5},
      {"stablelm", {{"layer_norm_eps", 3e-4}, {"rms_norm_eps", 9e-4}}, 3e-4},
      {"phi", json::object(), 1e-5},
      {"cohere", json::object(), 1e-5},
      {"nanochat", json::object(), 1e-5},
      {"gemma3_text", json::object(), 1e-6},
      {"nemotron", {{"norm_eps", 3e-4}, {"rms_norm_eps", 9e-4}}, 3e-4},
      {"exaone", {{"layer_norm_epsilon", 3e-4}}, 3e-4},
      {"lille-130m", {{"layer_norm_eps", 3e-4}}, 3e-4},
      {"olmo", {{"rms_norm_eps", 9e-4}}, 1e-5},
      {"llama", {{"rms_norm_eps", 3e-4}, {"layer_norm_eps", 9e-4}}, 3e-4}};
  for (const auto& [family, fields, epsilon] : given) {
    const json config = with(family, fields);
    EXPECT_EQ(record(config).epsilon, epsilon) << family << fields;
    EXPECT_EQ(parse_config(config, nullptr, "c").epsilon, static_cast<float>(epsilon)) << family << fields;
    json wrapper = {{"model_type", "mistral3"}, {"text_config", config}};
    EXPECT_EQ(record(wrapper).epsilon, epsilon) << family << fields;
    EXPECT_NE(specialization_fingerprint_text(record(config))
                  .find(fmt::format("\"rmsNormEps\":\"{:016x}\"", std::bit_cast<uint64_t>(epsilon))),
              std::string::npos);
  }
  // Neither guessed nor told: refused, by the model and by the fingerprint alike.
  for (const char* family : {"llama", "nemotron", "exaone"}) {
    const json config = with(family, json::object());
    EXPECT_EQ(record(config).epsilon, std::nullopt);
    EXPECT_THROW(parse_config(config, nullptr, "c"), Error) << family;
    EXPECT_THROW(specialization_fingerprint(record(config)), Error) << family;
    EXPECT_NO_THROW(config_fingerprint(record(config))) << family;
  }
}

TEST(Identity, OnlySnapshotsOfTheCacheAreEvidence) {
  const TestFolder temporary("cache");
  const fs::path& root = temporary.path();
  const std::string revision = "B04599DE95D7A9BFBD7F208D347C0F10D9432A42";
  const std::string lower = "b04599de95d7a9bfbd7f208d347c0f10d9432a42";
  const fs::path snapshot = root / "models--mlx-community--Qwen3.8--27B" / "snapshots" / revision;
  fs::create_directories(snapshot);
  fs::create_directories(root / "models--a--b" / "snapshots" / "main");
  fs::create_directories(root / "models--a--b" / "snapshots" / "abc123");
  fs::create_directories(root / "models--a" / "snapshots" / revision);
  fs::create_directories(root / "b");
  fs::create_directory_symlink(snapshot, root / "alias");
  EXPECT_EQ(artifact_identity(snapshot), "hf:mlx-community/Qwen3.8--27B@" + lower);
  EXPECT_EQ(artifact_identity(snapshot / ""), "hf:mlx-community/Qwen3.8--27B@" + lower);
  EXPECT_EQ(artifact_identity(root / "alias"), "hf:mlx-community/Qwen3.8--27B@" + lower);
  EXPECT_EQ(artifact_identity(snapshot / "m-Q4_0.gguf"),
            "hf:mlx-community/Qwen3.8--27B@" + lower + "#m-Q4_0.gguf");
  for (const char* other : {"models--a--b/snapshots/main", "models--a--b/snapshots/abc123", "b", "b/m.gguf"})
    EXPECT_EQ(artifact_identity(root / other), std::nullopt) << other;
  EXPECT_EQ(artifact_identity(root / "models--a" / "snapshots" / revision), std::nullopt);
}

}  // namespace
}  // namespace kvasir::models
