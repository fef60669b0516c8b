// From a configuration to an implementation: identity, fingerprints, exact profiles, the registry, refusals.
#include "models/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/test_folder.h"
#include "models/descriptors.h"
#include "models/model.h"
#include "models/synth.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return fmt::format("[{}] {}\n{}", name(error.code()), error.what(), error.details());
  }
  return "no error";
}

CanonicalRecord record(const json& config, const json& kv_config = nullptr) {
  return record_of(config, kv_config, formats::QuantizationConfig::from_config(config, "c"), "c");
}

class ExactProfiles : public testing::Test {
 protected:
  ExactProfiles()
      : json_(synth_config("qwen3", "tiny")),
        config_(parse_config(json_, nullptr, "c")),
        record_(record(json_)) {
    exact_.id = "exact";
    exact_.artifact = "hf:a/b@0123";
    exact_.config_fingerprint = config_fingerprint(record_);
    exact_.execution.graph = "qwen3";
    exact_.required_capabilities = implied_capabilities(exact_.execution);
  }
  std::string refusal(const std::vector<Profile>& profiles,
                      const std::string& artifact = "hf:a/b@0123") const {
    ResolveOptions options;
    options.profiles = profiles;
    options.artifact = artifact;
    const std::string first = message_of([&] { resolve_profile(config_, record_, options); });
    EXPECT_EQ(message_of([&] { resolve_profile(config_, record_, options); }), first);
    return first;
  }
  Profile with(const std::function<void(Profile&)>& change) const {
    Profile out = exact_;
    change(out);
    return out;
  }

  json json_;
  ModelConfig config_;
  CanonicalRecord record_;
  Profile exact_;
};

TEST_F(ExactProfiles, ExactOnesAreChosenByTheArtifactAlone) {
  ResolveOptions options;
  options.profiles = {exact_};
  options.artifact = exact_.artifact;
  const Resolved resolved = resolve_profile(config_, record_, options);
  EXPECT_TRUE(resolved.exact);
  EXPECT_EQ(resolved.profile.id, "exact");
  options.profiles[0].id = "changed later";
  EXPECT_EQ(resolved.profile.id, "exact");

  for (const std::optional<std::string>& other :
       {std::optional<std::string>(), std::optional<std::string>("hf:a/b@4567")}) {
    options.artifact = other;
    const Resolved family = resolve_profile(config_, record_, options);
    EXPECT_FALSE(family.exact);
    EXPECT_EQ(family.profile.id, "qwen3-dedicated");
  }
}

TEST_F(ExactProfiles, WhatCannotBeHonouredIsRefused) {
  const std::string kept = "refusing to fall back";
  EXPECT_EQ(refusal({exact_}), "no error");
  EXPECT_THAT(refusal({with([](Profile& p) { p.id = " \t"; })}), HasSubstr("id must not be empty"));
  EXPECT_THAT(refusal({exact_, exact_}), HasSubstr("profile exact: id"));
  EXPECT_THAT(refusal({with([](Profile& p) { p.id = "qwen3-dedicated"; })}),
              HasSubstr("qwen3-dedicated: id"));
  EXPECT_THAT(refusal({with([](Profile& p) { p.config_fingerprint.reset(); })}),
              HasSubstr("both or neither"));
  EXPECT_THAT(refusal({with([](Profile& p) { p.fidelity.claim = "measured"; })}), HasSubstr("fidelity (L1"));
  EXPECT_THAT(refusal({with([](Profile& p) { p.required_capabilities.erase("qwen3-graph"); })}),
              AllOf(HasSubstr("profile exact"), HasSubstr("qwen3-graph")));
  EXPECT_THAT(refusal({with([](Profile& p) { p.execution.graph = "glm5.2"; })}), HasSubstr("colibri"));
  EXPECT_THAT(refusal({with([](Profile& p) { p.execution.loop = "diffusion"; })}),
              HasSubstr("diffusion-gemma"));
  EXPECT_THAT(refusal({exact_, with([](Profile& p) { p.id = "second"; })}),
              AllOf(HasSubstr("hf:a/b@0123"), HasSubstr("exact, second")));
  EXPECT_THAT(refusal({with([](Profile& p) { p.config_fingerprint = "0000000000000000"; })}),
              AllOf(HasSubstr("profile exact"), HasSubstr("0000000000000000"),
                    HasSubstr(config_fingerprint(record_)), HasSubstr(kept)));
  EXPECT_THAT(refusal({with([](Profile& p) {
                p.execution.graph = "gemma3";
                p.required_capabilities = implied_capabilities(p.execution);
              })}),
              AllOf(HasSubstr("profile exact"), HasSubstr("gemma3"), HasSubstr(kept)));
  EXPECT_THAT(refusal({with([](Profile& p) {
                p.required_capabilities.insert({"vision-sidecar", "native-mtp"});
              })}),
              AllOf(HasSubstr("lacks native-mtp, vision-sidecar"), HasSubstr(kept)));
  EXPECT_THAT(refusal({with([](Profile& p) {
                p.execution.loader = "gguf";
                p.required_capabilities = implied_capabilities(p.execution);
              })}),
              AllOf(HasSubstr("loader is gguf"), HasSubstr(kept)));
}

TEST_F(ExactProfiles, AResultIsOfOneConfiguration) {
  const Resolved resolved = resolve_profile(config_, record_);
  EXPECT_NO_THROW(assert_resolved(config_, record_, resolved));
  const json other = synth_config("qwen3", "tiny", {{"num_attention_heads", 8}, {"head_dim", 64}});
  EXPECT_THROW(assert_resolved(parse_config(other, nullptr, "c"), record(other), resolved), Error);
  Resolved forged = resolved;
  forged.exact = true;
  forged.profile.artifact = "hf:x/y@1";
  EXPECT_THROW(assert_resolved(config_, record_, forged), Error);
}

TEST_F(ExactProfiles, RegistrySelectsOrRefuses) {
  const Registry& registry = Registry::built_in();
  Resolved resolved = resolve_profile(config_, record_);
  EXPECT_EQ(registry.select(resolved).id, "qwen3");
  EXPECT_EQ(&registry.select(resolved), &registry.select(resolved));
  const auto select = [&](const std::function<void(Execution&)>& change) {
    Resolved changed = resolved;
    change(changed.profile.execution);
    return message_of([&] { registry.select(changed); });
  };
  EXPECT_THAT(select([](Execution& e) { e.implementation = "mine"; }),
              AllOf(HasSubstr("qwen3-dedicated"), HasSubstr("mine"), HasSubstr("unavailable"),
                    HasSubstr("refusing to fall back")));
  EXPECT_THAT(
      select([](Execution& e) { e.specialization = "generated"; }),
      AllOf(HasSubstr("qwen3-generated"), HasSubstr(resolved.config_fingerprint), HasSubstr("refusing")));
  EXPECT_THAT(select([](Execution& e) { e.implementation = "gemma3"; }),
              AllOf(HasSubstr("incompatible"), HasSubstr("graph: expected qwen3, got gemma3"),
                    HasSubstr("refusing")));
  EXPECT_THAT(select([](Execution& e) { e.loop = "diffusion"; }), HasSubstr("loop: expected diffusion"));
  EXPECT_THAT(select([](Execution& e) { e.loader = "colibri"; }), HasSubstr("loader: expected colibri"));

  std::vector<Implementation> mine = {{"mine", "qwen3", "safetensors"}};
  const Registry larger = registry.with(mine);
  mine[0].id = "renamed";
  resolved.profile.execution.implementation = "mine";
  EXPECT_EQ(larger.select(resolved).id, "mine");
  EXPECT_THROW(registry.select(resolved), Error);
  const std::vector<Implementation> again = {{"qwen3", "qwen3", "safetensors"}},
                                    empty = {{" ", "qwen3", "gguf"}};
  EXPECT_THAT(message_of([&] { (void)larger.with(again); }),
              AllOf(HasSubstr("duplicate"), HasSubstr("qwen3")));
  EXPECT_THAT(message_of([&] { (void)larger.with(empty); }),
              HasSubstr("implementation id must not be empty"));
}

TEST(Support, TiersAndNames) {
  EXPECT_EQ(support_tier("qwen3", ""), "targeted");
  EXPECT_EQ(support_tier("gemma3_text", ""), "targeted");
  EXPECT_EQ(support_tier("qwen3_assistant", ""), "none");
  EXPECT_EQ(support_tier("llama", "mlx-community/MiniCPM5-1B-OptiQ-4bit"), "targeted");
  EXPECT_EQ(support_tier("llama", "x/y"), "generic");
  EXPECT_EQ(support_tier("mamba", ""), "none");
  EXPECT_TRUE(is_supported(synth_config("olmo2", "tiny")));
  for (const char* text : {"null", "[]", "7", "{}", R"({"model_type":3})", R"({"model_type":"llama"})",
                           R"({"model_type":"llama","hidden_size":"x"})", R"({"model_type":"nothing"})"})
    EXPECT_FALSE(is_supported(json::parse(text))) << text;

  const auto refusal = [](const char* type) {
    return message_of([&] { parse_config({{"model_type", type}}, nullptr, "c"); });
  };
  EXPECT_THAT(refusal("mistral3_x"), HasSubstr("mistral3_x"));
  for (const Descriptor& row : descriptors())
    EXPECT_THAT(refusal("mistral3_x"), HasSubstr(std::string(row.model_type)));
  EXPECT_THAT(refusal("joyai_llm_flash"), AllOf(HasSubstr("joyai_llm_flash"), HasSubstr("deepseek_v3")));
  EXPECT_THAT(refusal("qwen3_assistant"), HasSubstr("load it as a draft model"));
}

// Refusals come before any tensor file is opened: this one is no safetensors file at all.
TEST(Support, RefusalsComeBeforeTensorFiles) {
  const TestFolder temporary("select");
  const fs::path& folder = temporary.path();
  std::ofstream(folder / "model.safetensors") << "no header";
  const auto load = [&](const json& config, LoadOptions options = {}) {
    std::ofstream(folder / "config.json") << config.dump();
    return message_of([&] { Model::load(folder, options); });
  };
  const json good = synth_config("qwen3", "tiny");
  EXPECT_THAT(load(good), HasSubstr("model.safetensors"));  // the damage shows once the rest is right
  const auto with = [&](const json& change) {
    json config = good;
    config.merge_patch(change);
    return load(config);
  };
  for (const std::string& message :
       {with({{"model_type", "rwkv"}}), with({{"model_type", nullptr}}), with({{"hidden_size", -1}}),
        with({{"hidden_size", nullptr}}), with({{"num_key_value_heads", 3}}), with({{"layer_types", {"x"}}}),
        with({{"rms_norm_eps", 0}}), with({{"rope_theta", -1}}), with({{"hidden_act", "relu"}}),
        with({{"quantization_config", {{"quant_method", "hqq"}}}}), with({{"quantization", {{"bits", 7}}}}),
        with({{"rope_scaling", {{"rope_type", "unheard-of"}}}})}) {
    EXPECT_THAT(message, testing::Not(HasSubstr("model.safetensors"))) << message;
    EXPECT_NE(message, "no error");
  }
  LoadOptions options;
  Profile bad;
  bad.id = "bad";
  options.profiles = {bad};
  EXPECT_THAT(load(good, options), HasSubstr("profile bad"));
}

}  // namespace
}  // namespace kvasir::models
