// Configurations for synthetic checkpoints: what each family needs beside the common sizes.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/nearest_name.h"
#include "models/config.h"
#include "models/descriptors.h"
#include "models/synth.h"

namespace kvasir::models {
namespace {

using nlohmann::json;

struct Size {
  std::string_view name;
  int64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, context, window;
};

constexpr Size kSizes[] = {
    {"tiny", 64, 4, 4, 2, 16, 96, 128, 256, 8},
    {"small", 256, 4, 4, 2, 64, 768, 1024, 2048, 64},
    {"135m", 576, 30, 9, 3, 64, 1536, 49152, 8192, 512},
    {"1b", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 4096},
    {"8b", 4096, 32, 32, 8, 128, 14336, 128256, 131072, 4096},
};

// What a family's configuration has beside, or instead of, the common fields.
json family_fields(std::string_view family, const Size& s) {
  const int64_t pairs = s.head_dim / 2;
  // Windows were the first version's only; null says so in those that are published since.
  if (family == "mistral") return {{"sliding_window", nullptr}, {"head_dim", s.head_dim}};
  if (family == "smollm3") return {{"no_rope_layer_interval", 4}};
  if (family == "qwen3") return {{"head_dim", s.head_dim}};
  if (family == "qwen3_moe")
    return {{"head_dim", s.head_dim},          {"num_experts", 8},
            {"num_experts_per_tok", 2},        {"moe_intermediate_size", s.intermediate / 3},
            {"norm_topk_prob", true},          {"decoder_sparse_step", 1},
            {"mlp_only_layers", json::array()}};
  if (family == "gemma") return {{"head_dim", s.head_dim}, {"hidden_act", "gelu_pytorch_tanh"}};
  if (family == "gemma2")
    return {{"head_dim", s.head_dim},
            {"hidden_activation", "gelu_pytorch_tanh"},
            {"query_pre_attn_scalar", s.head_dim},
            {"sliding_window", s.window},
            {"attn_logit_softcapping", 50.0},
            {"final_logit_softcapping", 30.0}};
  if (family == "gemma3_text")
    return {{"head_dim", s.head_dim},
            {"hidden_activation", "gelu_pytorch_tanh"},
            {"query_pre_attn_scalar", s.head_dim},
            {"sliding_window", s.window},
            {"sliding_window_pattern", 2},
            {"rope_local_base_freq", 10000.0}};
  if (family == "phi3")
    return {{"original_max_position_embeddings", s.context / 8},
            {"rope_scaling",
             {{"type", "longrope"},
              {"short_factor", std::vector<double>(static_cast<size_t>(pairs), 1.25)},
              {"long_factor", std::vector<double>(static_cast<size_t>(pairs), 4.0)}}}};
  if (family == "glm4" || family == "glm")
    return {{"partial_rotary_factor", 0.5}, {"head_dim", s.head_dim}, {"attention_bias", true}};
  if (family == "granite")
    return {{"attention_multiplier", 0.25},
            {"embedding_multiplier", 12.0},
            {"residual_multiplier", 0.22},
            {"logits_scaling", 8.0}};
  if (family == "starcoder2")
    return {{"hidden_act", "gelu_pytorch_tanh"}, {"norm_epsilon", 1e-5}, {"use_bias", true}};
  // The publisher's own, which its class gives the layers with windows whatever the configuration says.
  if (family == "olmo3") return {{"sliding_window", s.window}, {"rope_theta", 500000.0}};
  if (family == "cohere") return {{"logit_scale", 0.0625}, {"use_qk_norm", true}, {"layer_norm_eps", 1e-5}};
  if (family == "cohere2")
    return {{"logit_scale", 0.0625}, {"sliding_window", s.window}, {"layer_norm_eps", 1e-5}};
  if (family == "stablelm")
    return {{"partial_rotary_factor", 0.25}, {"use_qkv_bias", true}, {"layer_norm_eps", 1e-5}};
  if (family == "phi")
    return {{"partial_rotary_factor", 0.5}, {"hidden_act", "gelu_new"}, {"layer_norm_eps", 1e-5}};
  if (family == "internlm2") return {{"bias", true}};
  if (family == "internlm3") return {{"qkv_bias", true}, {"bias", false}};
  if (family == "exaone4") return {{"sliding_window", s.window}, {"sliding_window_pattern", "LLLG"}};
  if (family == "nemotron")
    return {{"partial_rotary_factor", 0.5}, {"hidden_act", "relu2"}, {"norm_eps", 1e-5}};
  if (family == "minicpm")
    return {{"scale_emb", 12.0}, {"scale_depth", 1.4}, {"dim_model_base", s.hidden / 4}};
  // Their classes have another head_dim than the width over the heads.
  if (family == "seed_oss" || family == "helium") return {{"head_dim", s.head_dim}};
  if (family == "ministral3")
    return {{"head_dim", s.head_dim},
            {"rope_parameters",
             {{"rope_type", "default"},
              {"rope_theta", 10000.0},
              {"llama_4_scaling_beta", 0.1},
              {"original_max_position_embeddings", s.context / 16}}}};
  if (family == "ernie4_5") return {{"use_bias", true}, {"head_dim", s.head_dim}};
  // Its class takes the published ropes, whatever rope_theta says, unless the parameters are stated.
  if (family == "apertus")
    return {{"hidden_act", "xielu"},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  if (family == "nanochat") return {{"hidden_act", "relu2"}, {"final_logit_softcapping", 15.0}};
  if (family == "olmo") return {{"clip_qkv", 8.0}};
  if (family == "plamo") return {{"n_shared_head", s.heads / s.kv_heads}};
  return json::object();
}

}  // namespace

std::vector<std::string> synth_families() {
  std::vector<std::string> names;
  for (const Descriptor& row : descriptors()) names.emplace_back(row.model_type);
  return names;
}

std::vector<std::string> synth_sizes() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

json synth_config(std::string_view family, std::string_view size, const json& overrides) {
  auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& n : names) text += (text.empty() ? "" : ", ") + n;
    return text;
  };
  const std::string model_type = remapped(family);
  if (find_descriptor(model_type) == nullptr)
    throw_error(ErrorCode::invalid_input, "family {} cannot be synthesized; known: {}", printable(family),
                joined(synth_families()));
  const auto found =
      std::find_if(std::begin(kSizes), std::end(kSizes), [&](const Size& s) { return s.name == size; });
  if (found == std::end(kSizes))
    throw_error(ErrorCode::invalid_input, "size {} is unknown; known: {}", printable(size),
                joined(synth_sizes()));
  const Size& s = *found;
  json config = {{"model_type", model_type},
                 {"hidden_size", s.hidden},
                 {"num_hidden_layers", s.layers},
                 {"num_attention_heads", s.heads},
                 {"num_key_value_heads", s.kv_heads},
                 {"intermediate_size", s.intermediate},
                 {"vocab_size", s.vocab},
                 {"max_position_embeddings", s.context},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", "float32"},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}};
  if (model_type == "gemma" || model_type == "gemma2" || model_type == "gemma3_text" ||
      model_type == "cohere" || model_type == "cohere2" || model_type == "lille-130m")
    config["tie_word_embeddings"] = true;
  config.update(family_fields(model_type, s));
  if (model_type == "gemma3_text") config["rope_theta"] = 1e6;
  if (config.contains("hidden_activation")) config.erase("hidden_act");
  if (model_type == "lille-130m") {
    for (const auto& [from, to] : {std::pair{"hidden_size", "n_embd"},
                                   {"num_attention_heads", "n_head"},
                                   {"num_key_value_heads", "n_kv_heads"},
                                   {"num_hidden_layers", "n_layer"},
                                   {"rms_norm_eps", "layer_norm_eps"}}) {
      config[to] = config[from];
      config.erase(from);
    }
    config.erase("intermediate_size");
  }
  if (overrides.is_object())
    for (const auto& [key, value] : overrides.items()) {
      if (value.is_null())
        config.erase(key);
      else
        config[key] = value;
    }
  return config;
}

void check_fields(const json& base, const json& config) {
  std::set<std::string> known;
  const std::string family = parse_config(config, nullptr, "synthetic configuration", &known).model_type;
  for (const auto& [key, value] : base.items()) known.insert(key);
  for (const auto& [key, value] : config.items())
    if (!known.contains(key))
      throw_error(ErrorCode::invalid_input, "{} is no field that {} models have{}", printable(key), family,
                  did_you_mean(nearest_name(key, {known.begin(), known.end()})));
}

}  // namespace kvasir::models
