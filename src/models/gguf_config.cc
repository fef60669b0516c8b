#include "models/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "models/profiles.h"

namespace kvasir::models {
namespace {

using formats::GgufFile;
using nlohmann::json;

constexpr auto kArchitectures = std::to_array<GgufArchitecture>({
    {"apertus", "apertus", false},    {"cohere2", "cohere2", false},
    {"command-r", "cohere", false},   {"ernie4_5", "ernie4_5", false},
    {"exaone", "exaone", false},      {"exaone4", "exaone4", false},
    {"gemma", "gemma", false},        {"gemma2", "gemma2", false},
    {"gemma3", "gemma3_text", false}, {"glm4", "glm4", false},
    {"granite", "granite", true},     {"hunyuan-dense", "hunyuan_v1_dense", false},
    {"internlm2", "internlm2", true}, {"llama", "llama", true},
    {"minicpm", "minicpm", true},     {"mistral3", "ministral3", true},
    {"nemotron", "nemotron", false},  {"olmo", "olmo", true},
    {"olmo2", "olmo2", false},        {"phi2", "phi", false},
    {"phi3", "phi3", false},          {"qwen2", "qwen2", false},
    {"qwen3", "qwen3", false},        {"qwen3moe", "qwen3_moe", false},
    {"seed_oss", "seed_oss", false},  {"smollm3", "smollm3", true},
    {"stablelm", "stablelm", false},  {"starcoder2", "starcoder2", false},
});

class Metadata {
 public:
  Metadata(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::optional<uint64_t> count(std::string_view key) const {
    return file_.find_count(prefix_ + std::string(key));
  }
  std::optional<double> real(std::string_view key) const {
    return file_.find_real(prefix_ + std::string(key));
  }
  std::optional<std::string_view> text(std::string_view key) const {
    return file_.find_string(prefix_ + std::string(key));
  }
  std::optional<bool> flag(std::string_view key) const { return file_.find_bool(prefix_ + std::string(key)); }
  std::string key(std::string_view key) const { return prefix_ + std::string(key); }

  void require(std::string_view key) const {
    if (file_.find(prefix_ + std::string(key)) == nullptr)
      throw_error(ErrorCode::corrupt_file, "{}: its metadata has no {}{}", file_.path(), prefix_, key);
  }

  [[noreturn]] void reject(std::string_view key, const std::string& value, std::string_view expected) const {
    throw_error(ErrorCode::corrupt_file, "{}: {}{} is {}, expected {}", file_.path(), prefix_, key, value,
                expected);
  }

  // {key: value} for keys that are present. Either way messages call the field by the key, which `out`'s own
  // key precedes where `out` is an object in another.
  void copy_count(std::string_view key, json& out, const std::string& field,
                  const std::string& outer = "") const {
    names_[outer + field] = prefix_ + std::string(key);
    if (const auto value = count(key)) out[field] = *value;
  }
  void copy_real(std::string_view key, json& out, const std::string& field,
                 const std::string& outer = "") const {
    names_[outer + field] = prefix_ + std::string(key);
    if (const auto value = real(key)) out[field] = *value;
  }
  // A count for all layers or a list with one each, which must then agree.
  void copy_uniform_count(std::string_view key, uint64_t layers, json& out, const char* field) const {
    names_[field] = prefix_ + std::string(key);
    const auto list = file_.find_counts_per_layer(prefix_ + std::string(key), layers);
    if (!list || list->empty()) return;
    for (uint64_t value : *list)
      if (value != list->front())
        throw_error(ErrorCode::unsupported,
                    "{}: {}{} differs between layers; this family needs one value for all", file_.path(),
                    prefix_, key);
    out[field] = list->front();
  }

  FieldNames& names() const { return names_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
  mutable FieldNames names_;  // of config.json's fields: the keys that they were looked for under
};

json rope_scaling(const Metadata& m) {
  json scaling;
  const std::string type(m.text("rope.scaling.type").value_or("linear"));
  double factor = m.real("rope.scaling.factor").value_or(m.real("rope.scale_linear").value_or(0));
  if (factor == 0 && type == "yarn")
    m.reject("rope.scaling.factor", "missing or 0", "a number above 0 with rope.scaling.type yarn");
  if (factor == 0 && type != "longrope") factor = 1;
  if (type == "none" || (type == "linear" && factor == 1)) return nullptr;
  if (factor != 0) scaling["factor"] = factor;
  scaling["rope_type"] = type;
  const std::string outer = "rope_scaling.";
  m.names()[outer + "factor"] = m.key("rope.scaling.factor");
  m.names()[outer + "rope_type"] = m.key("rope.scaling.type");
  m.copy_count("rope.scaling.original_context_length", scaling, "original_max_position_embeddings", outer);
  m.copy_real("rope.scaling.yarn_attn_factor", scaling, "attention_factor", outer);
  m.copy_real("rope.scaling.yarn_beta_fast", scaling, "beta_fast", outer);
  m.copy_real("rope.scaling.yarn_beta_slow", scaling, "beta_slow", outer);
  if (const double all = m.real("rope.scaling.yarn_log_multiplier").value_or(0); all != 0) {
    scaling["mscale"] = 1.0;
    scaling["mscale_all_dim"] = all;
  }
  return scaling;
}

// What part of a head turns: all of it unless the file says otherwise, which a few families can do.
void rotate_part(const Metadata& m, std::string_view model_type, json& t) {
  if (!t.contains("head_dim")) return;
  const uint64_t head_dim = t["head_dim"].get<uint64_t>();
  constexpr std::string_view kTakePart[] = {"glm4", "nemotron", "phi", "phi3", "stablelm"};
  const bool takes_part = std::ranges::find(kTakePart, model_type) != std::end(kTakePart);
  const uint64_t dims = m.count("rope.dimension_count").value_or(head_dim);
  if (takes_part ? dims == 0 || dims > head_dim || dims % 2 != 0 : dims != head_dim)
    m.reject("rope.dimension_count", std::to_string(dims),
             takes_part ? fmt::format("an even number from 2 to the {} elements of a head", head_dim)
                        : fmt::format("the {} elements of a head", head_dim));
  if (const uint64_t sliding = m.count("rope.dimension_count_swa").value_or(dims); sliding != dims)
    m.reject("rope.dimension_count_swa", std::to_string(sliding),
             fmt::format("{}, as rope.dimension_count", dims));
  // A half more, so that the product with head_dim is dims when it is cut to a whole number.
  if (takes_part)
    t["partial_rotary_factor"] =
        dims == head_dim ? 1.0 : (static_cast<double>(dims) + 0.5) / static_cast<double>(head_dim);
}

// Keys that would change the result and that nothing here honours: refused unless they say what is done
// anyway.
void refuse_unused(const GgufFile& file, const Metadata& m) {
  auto refuse = [&](std::string_view key, const std::string& value, std::string_view expected) {
    throw_error(ErrorCode::unsupported, "{}: {} is {}; supported: {}", file.path(), key, value, expected);
  };
  if (const auto type = file.find_string("general.type"); type && *type != "model")
    refuse("general.type", printable(*type), "model");
  if (m.flag("attention.causal") == false)
    refuse(m.key("attention.causal"), "false", "true (an encoder cannot generate text)");
  // 0 says nothing, 1 is softmax.
  if (const auto gating = m.count("expert_gating_func"); gating.value_or(0) > 1)
    refuse(m.key("expert_gating_func"), std::to_string(*gating), "1 (softmax)");
  for (const char* key : {"expert_weights_scale", "rope.scaling.yarn_ext_factor"})
    if (const double value = m.real(key).value_or(1); value != 1 && value != 0)
      refuse(m.key(key), fmt::format("{}", value), "1");
}

// What the metadata says, in the words of config.json.
json to_config(const GgufFile& file, const GgufArchitecture& architecture, const Metadata& m) {
  refuse_unused(file, m);
  for (const char* key : {"block_count", "embedding_length", "attention.head_count"}) m.require(key);
  json t;
  t["model_type"] = architecture.model_type;
  m.copy_count("block_count", t, "num_hidden_layers");
  m.copy_count("embedding_length", t, "hidden_size");
  m.copy_count("context_length", t, "max_position_embeddings");
  m.copy_count("vocab_size", t, "vocab_size");
  if (!t.contains("vocab_size"))
    if (const auto tokens = file.find_strings("tokenizer.ggml.tokens")) t["vocab_size"] = tokens->size();
  const uint64_t layers = m.count("block_count").value_or(0);
  if (layers > 10000)
    throw_error(ErrorCode::corrupt_file, "{}: {} layers, expected at most 10000", file.path(), layers);
  m.copy_uniform_count("feed_forward_length", layers, t, "intermediate_size");
  m.copy_uniform_count("attention.head_count", layers, t, "num_attention_heads");
  m.copy_uniform_count("attention.head_count_kv", layers, t, "num_key_value_heads");
  if (!t.contains("num_key_value_heads") && t.contains("num_attention_heads"))
    t["num_key_value_heads"] = t["num_attention_heads"];
  const auto key = m.count("attention.key_length"), value = m.count("attention.value_length");
  if (key && value && *key != *value)
    throw_error(ErrorCode::unsupported,
                "{}: keys of {} and values of {} elements; this family needs them equal", file.path(), *key,
                *value);
  const uint64_t hidden = m.count("embedding_length").value_or(0);
  if (key)
    t["head_dim"] = *key;
  else if (t.contains("num_attention_heads") && t["num_attention_heads"].get<uint64_t>() > 0)
    t["head_dim"] = hidden / t["num_attention_heads"].get<uint64_t>();

  m.copy_real("attention.layer_norm_rms_epsilon", t, "rms_norm_eps");
  for (const char* name : {"layer_norm_eps", "norm_epsilon", "norm_eps"})
    m.copy_real("attention.layer_norm_epsilon", t, name);

  m.names()["rope_theta"] = m.key("rope.freq_base");
  t["rope_theta"] = m.real("rope.freq_base").value_or(10000);
  if (const json scaling = rope_scaling(m); !scaling.is_null()) t["rope_scaling"] = scaling;
  rotate_part(m, architecture.model_type, t);
  if (const formats::GgufTensor* factors = file.find_tensor("rope_factors_long.weight"); factors != nullptr) {
    // The lists are tensors, read when the model is loaded; two different ones stand for them until then,
    // because which one is used follows from the context limit.
    const auto pairs = static_cast<size_t>(std::min<int64_t>(factors->ne[0], 65536));
    json scaling = t.contains("rope_scaling") ? t["rope_scaling"] : json::object();
    scaling["rope_type"] = "longrope";
    scaling["short_factor"] = std::vector<double>(pairs, 1.0);
    scaling["long_factor"] = std::vector<double>(pairs, 2.0);
    if (file.find_tensor("rope_factors_short.weight") == nullptr)
      throw_error(ErrorCode::corrupt_file, "{}: tensor rope_factors_long without rope_factors_short",
                  file.path());
    m.copy_count("rope.scaling.original_context_length", scaling, "original_max_position_embeddings",
                 "rope_scaling.");
    m.copy_real("rope.scaling.attn_factor", scaling, "attention_factor", "rope_scaling.");
    t["rope_scaling"] = scaling;
  }
  m.copy_count("attention.sliding_window", t, "sliding_window");
  m.copy_count("attention.shared_kv_layers", t, "num_kv_shared_layers");
  m.copy_real("attn_logit_softcapping", t, "attn_logit_softcapping");
  m.copy_real("final_logit_softcapping", t, "final_logit_softcapping");
  m.copy_count("expert_count", t, "num_experts");
  m.copy_count("expert_used_count", t, "num_experts_per_tok");
  m.copy_count("expert_feed_forward_length", t, "moe_intermediate_size");
  if (const uint64_t experts = m.count("expert_count").value_or(0);
      experts > 0 && architecture.model_type != "qwen3_moe")
    throw_error(ErrorCode::unsupported,
                "{}: {} is {}: experts of {} models are not supported; supported with experts: qwen3moe",
                file.path(), m.key("expert_count"), experts, architecture.name);

  // Which layers slide, when the converter lists them.
  const std::string pattern_key = std::string(architecture.name) + ".attention.sliding_window_pattern";
  const formats::GgufValue* pattern = file.find(pattern_key);
  if (pattern != nullptr && pattern->is_array) {
    const auto slides = file.find_bools(pattern_key);
    json kinds = json::array();
    for (const bool sliding : *slides) kinds.push_back(sliding ? "sliding_attention" : "full_attention");
    t["layer_types"] = kinds;
  } else if (pattern != nullptr) {
    m.copy_count("attention.sliding_window_pattern", t, "sliding_window_pattern");
  }

  const std::string_view type = architecture.model_type;
  if (type == "qwen3_moe") {
    t["norm_topk_prob"] = true;
  } else if (type == "gemma3_text") {
    m.copy_real("rope.freq_base_swa", t, "rope_local_base_freq");
    // The 27B model scales by its width per head, the others by their head_dim.
    t["query_pre_attn_scalar"] = layers == 62 ? hidden / t.value("num_attention_heads", uint64_t{1})
                                              : t.value("head_dim", uint64_t{256});
  } else if (type == "exaone4") {
    if (!t.contains("sliding_window")) t["sliding_window"] = nullptr;  // none, not the class's default
  } else if (type == "olmo2") {
    if (t.contains("sliding_window")) t["model_type"] = "olmo3";  // one architecture for both
  } else if (type == "gemma2") {
    // 27B (46 layers): 4608 / 32; the others their head_dim.
    t["query_pre_attn_scalar"] = layers == 46 ? hidden / t.value("num_attention_heads", uint64_t{1})
                                              : t.value("head_dim", uint64_t{256});
  } else if (type == "granite") {
    m.copy_real("attention.scale", t, "attention_multiplier");
    m.copy_real("embedding_scale", t, "embedding_multiplier");
    m.copy_real("residual_scale", t, "residual_multiplier");
    m.copy_real("logit_scale", t, "logits_scaling");
  } else if (type == "cohere" || type == "cohere2") {
    m.copy_real("logit_scale", t, "logit_scale");
    t["use_qk_norm"] = file.find_tensor("blk.0.attn_q_norm.weight") != nullptr;
  } else if (type == "stablelm") {
    t["use_parallel_residual"] = file.find_tensor("blk.0.ffn_norm.weight") == nullptr;
    t["qk_layernorm"] = file.find_tensor("blk.0.attn_q_norm.weight") != nullptr;
  } else if (type == "olmo") {
    m.copy_real("attention.clamp_kqv", t, "clip_qkv");
  } else if (type == "minicpm") {
    t["scale_emb"] = m.real("embedding_scale").value_or(12.0);
    const double residual =
        m.real("residual_scale")
            .value_or(1.4 / std::sqrt(static_cast<double>(std::max<uint64_t>(1, layers))));
    t["scale_depth"] = residual * std::sqrt(static_cast<double>(std::max<uint64_t>(1, layers)));
    t["dim_model_base"] =
        m.real("logit_scale") ? static_cast<double>(hidden) * 1.0 / *m.real("logit_scale") : 256.0;
  } else if (type == "ministral3") {
    json parameters = t.contains("rope_scaling") ? t["rope_scaling"] : json{{"rope_type", "default"}};
    t.erase("rope_scaling");
    parameters["rope_theta"] = t["rope_theta"];
    parameters["llama_4_scaling_beta"] = m.real("attention.temperature_scale").value_or(0.0);
    parameters["original_max_position_embeddings"] =
        m.count("rope.scaling.original_context_length").value_or(m.count("context_length").value_or(1));
    t["rope_parameters"] = parameters;
  }
  return t;
}

// Scalars of the activation, which the converter moves from tensors into lists: one for all layers or one
// each.
std::vector<XieluScalars> xielu_scalars(const GgufFile& file, int64_t layers) {
  std::vector<XieluScalars> out(static_cast<size_t>(layers));
  auto read = [&](std::string_view key, float XieluScalars::*field) {
    const formats::GgufValue* value = file.find(key);
    if (value == nullptr)
      throw_error(ErrorCode::corrupt_file, "{}: {} is missing, expected a number for each layer", file.path(),
                  key);
    const std::vector<float> list = value->is_array
                                        ? *file.find_reals(key)
                                        : std::vector<float>(out.size(), static_cast<float>(file.real(key)));
    if (list.size() != out.size())
      throw_error(ErrorCode::corrupt_file, "{}: {} has {} entries, expected {}", file.path(), key,
                  list.size(), out.size());
    for (size_t i = 0; i < out.size(); ++i) {
      if (!std::isfinite(list[i]))
        throw_error(ErrorCode::corrupt_file, "{}: {} holds {}, expected finite numbers", file.path(), key,
                    list[i]);
      out[i].*field = list[i];
    }
  };
  read("xielu.alpha_p", &XieluScalars::alpha_p);
  read("xielu.alpha_n", &XieluScalars::alpha_n);
  read("xielu.beta", &XieluScalars::beta);
  read("xielu.eps", &XieluScalars::eps);
  return out;
}

// The vocabulary is the table's rows. Gemma 3's converter cuts rows past the tokens and may leave the
// configuration's size as it was (models-qwen-llama-universal.md 7.3); of other files one of the two is
// wrong.
void check_vocabulary(const GgufFile& file, const Metadata& m, ModelConfig& config) {
  const formats::GgufTensor* embed = file.find_tensor("token_embd.weight");
  if (embed == nullptr) return;  // said where it is needed
  const int64_t rows = embed->ne[1];
  if (rows > 0 && rows < config.vocab && config.model_type == "gemma3_text") config.vocab = rows;
  if (rows == config.vocab) return;
  const std::string size =
      m.count("vocab_size") ? m.key("vocab_size") : "the number of tokenizer.ggml.tokens";
  throw_error(ErrorCode::corrupt_file, "{}: {} is {}, expected the {} rows of token_embd.weight", file.path(),
              size, config.vocab, rows);
}

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() {
  return kArchitectures;
}

const GgufArchitecture* gguf_architecture_of(std::string_view model_type) {
  // Families that share another's.
  for (const auto& [family, row] : {std::pair<std::string_view, std::string_view>{"internlm3", "llama"},
                                    {"mistral", "llama"},
                                    {"olmo3", "olmo2"}})
    if (model_type == family) model_type = row;
  const auto* found = std::ranges::find(kArchitectures, model_type, &GgufArchitecture::model_type);
  return found == kArchitectures.end() ? nullptr : found;
}

ModelConfig as_gguf(ModelConfig config, bool permuted_qk) {
  config.gguf = true;
  config.permuted_qk = permuted_qk;
  // The converters of these families store 1 + gain.
  if (config.norm == NormKind::rms_plus_one || config.norm == NormKind::layer_norm_plus_one)
    config.gain_offset = 0;
  // llama.cpp multiplies by the unrounded root; the publisher rounds it to the dtype of the embedding, which
  // is no longer known.
  config.embed_multiplier_rounded = false;
  WeightNames& n = config.names;
  n.embed = "token_embd";
  n.final_norm = "output_norm";
  n.head = "output";
  n.layer = "blk.{i}.";
  if (config.block == Block::post)
    n.norms = {"post_attention_norm", "post_ffw_norm", "", ""};
  else if (config.block == Block::sandwich)
    n.norms = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"};
  else if (config.model_type == "seed_oss")  // what follows attention here, not what precedes the MLP
    n.norms = {"attn_norm", "post_attention_norm", "", ""};
  else
    n.norms = {"attn_norm", "ffn_norm", "", ""};
  n.q = "attn_q";
  n.k = "attn_k";
  n.v = "attn_v";
  n.o = "attn_output";
  n.qkv = "attn_qkv";
  n.q_norm = "attn_q_norm";
  n.k_norm = "attn_k_norm";
  n.gate = "ffn_gate";
  n.up = "ffn_up";
  n.down = "ffn_down";
  n.gate_up = "ffn_up";
  n.router = "ffn_gate_inp";
  n.experts = "ffn";
  if (config.fused_qkv == FusedQkv::grouped) config.fused_qkv = FusedQkv::none;  // split by the converter
  if (config.qk_norm == QkNorm::head_layer_norm_list)
    config.qk_norm = QkNorm::head_layer_norm;  // stacked by the converter
  config.drop = {R"(\.attn_rot_embd(\.weight)?$)"};
  return config;
}

ModelConfig parse_gguf_config(const GgufFile& file) {
  const std::string architecture(file.string("general.architecture"));
  const auto found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                  [&](const GgufArchitecture& a) { return a.name == architecture; });
  if (found == kArchitectures.end()) unsupported_architecture(file.path(), architecture);

  const Metadata m(file, architecture);
  const json t = to_config(file, *found, m);
  ModelConfig config =
      as_gguf(parse_config(t, nullptr, file.path(), nullptr, &m.names()), found->permuted_qk);
  // Rows that have a default for it (and OLMo's, which has no other value) leave it unread.
  const bool layer_norm = config.norm == NormKind::layer_norm ||
                          config.norm == NormKind::layer_norm_plus_one ||
                          config.norm == NormKind::layer_norm_no_affine;
  const char* epsilon = layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  m.require(epsilon);
  config.epsilon = static_cast<float>(m.real(epsilon).value_or(0));
  if (!(config.epsilon > 0) || std::isinf(config.epsilon))
    m.reject(epsilon, fmt::format("{}", config.epsilon), "a number above 0");
  // It multiplies what the type itself gives; a longrope's own is not stored, so that this one is all of it.
  const double factor = m.real("rope.scaling.attn_factor").value_or(1);
  if (!(factor > 0) || std::isinf(factor))
    throw_error(ErrorCode::corrupt_file, "{}: {} is {}, expected a number above 0", file.path(),
                m.key("rope.scaling.attn_factor"), factor);
  for (RopeConfig& rope : config.ropes)
    if (rope.kind != RopeKind::longrope) rope.attention_factor *= factor;
  if (t.contains("rope_scaling") && std::ranges::all_of(config.ropes, [](const RopeConfig& rope) {
        return rope.kind == RopeKind::standard;
      }))
    throw_error(ErrorCode::unsupported, "{}: rope of type {}: {} models have plain rope", file.path(),
                printable(t["rope_scaling"]["rope_type"].get<std::string>()), architecture);
  if (config.activation == ops::ActivationFunction::xielu) config.xielu = xielu_scalars(file, config.layers);
  // What metadata does not say, the presence of tensors does.
  auto has = [&](const char* tensor) { return file.find_tensor(tensor) != nullptr; };
  config.fused_qkv = has("blk.0.attn_qkv.weight") ? FusedQkv::concat : FusedQkv::none;
  config.fused_mlp = config.gated && !has("blk.0.ffn_gate.weight") && !has("blk.0.ffn_gate_inp.weight")
                         ? FusedMlp::gate_up
                         : FusedMlp::none;
  config.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
  config.o_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_up.bias");
  config.head_bias = has("output.bias");
  if (config.tie == TieRule::always && has("output.weight")) config.tie = TieRule::never;
  if (config.tie == TieRule::never && !has("output.weight")) config.tie = TieRule::always;

  check_vocabulary(file, m, config);
  config.eos_ids.clear();
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = file.find_count(key); id && *id < static_cast<uint64_t>(config.vocab))
      if (std::find(config.eos_ids.begin(), config.eos_ids.end(), static_cast<int32_t>(*id)) ==
          config.eos_ids.end())
        config.eos_ids.push_back(static_cast<int32_t>(*id));
  if (const auto id = file.find_count("tokenizer.ggml.bos_token_id");
      id && *id < static_cast<uint64_t>(config.vocab))
    config.bos_id = static_cast<int32_t>(*id);
  return config;
}

}  // namespace kvasir::models
