#include "models/descriptors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace kvasir::models {
namespace {

using ops::ActivationFunction;
using ops::RopeLayout;

// ---- pieces that several families share

void llama(const ConfigFields& f, ModelConfig& m, FamilyTraits&) {
  m.qkv_bias = m.o_bias = f.flag("attention_bias", false);
  m.mlp_bias = f.flag("mlp_bias", false);
}

void no_bias(ModelConfig& m) {
  m.qkv_bias = m.o_bias = m.mlp_bias = false;
}
void all_bias(ModelConfig& m, bool on) {
  m.qkv_bias = m.o_bias = m.mlp_bias = on;
}

// Every layer slides when the config names a window.
void slide_all(const ConfigFields& f, FamilyTraits& t) {
  if (f.size("sliding_window", 0) > 0) t.slides = [](int64_t) { return true; };
}

// Qwen: the upper layers slide, if use_sliding_window says so.
void slide_qwen(const ConfigFields& f, FamilyTraits& t) {
  if (!f.flag("use_sliding_window", false) || f.size("sliding_window", 0) == 0) return;
  const int64_t first = f.size("max_window_layers", 28);
  t.slides = [first](int64_t i) { return i >= first; };
}

// Every n-th layer is full, the others slide.
void full_every(int64_t n, FamilyTraits& t) {
  t.slides = [n](int64_t i) { return (i + 1) % n != 0; };
}

void post_block(ModelConfig& m) {
  m.block = Block::post;
  m.names.norms[0] = "post_attention_layernorm";
  m.names.norms[1] = "post_feedforward_layernorm";
}

void gemma_common(const ConfigFields& f, ModelConfig& m, FamilyTraits&) {
  no_bias(m);
  m.norm = NormKind::rms_plus_one;
  m.head_dim = f.count("head_dim");
  m.activation = ActivationFunction::gelu_tanh;
  m.embed_multiplier = std::sqrt(static_cast<double>(m.hidden));
  m.embed_multiplier_rounded = true;
  m.tie = TieRule::always;
}

void cohere_common(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.block = Block::parallel;
  m.norm = NormKind::layer_norm;
  m.norm_bias = f.flag("layer_norm_bias", false);
  m.rope_layout = RopeLayout::interleaved;
  m.tie = TieRule::always;
  m.logits_multiplier = f.real("logit_scale", 0.0625);
}

void layer_norm_with_bias(ModelConfig& m) {
  m.norm = NormKind::layer_norm;
  m.norm_bias = true;
}

void require_whole_heads(const ConfigFields& f, const ModelConfig& m) {
  if (m.heads * m.head_dim != m.hidden)
    throw_error(ErrorCode::corrupt_file,
                "{}: {} heads of {} elements make {}, but {} is {}; this family needs them equal", f.where(),
                m.heads, m.head_dim, m.heads * m.head_dim, f.name("hidden_size"), m.hidden);
}

// ---- the families, in the order of the spec's tables

void mistral(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  slide_all(f, t);
}

void smollm3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  t.rope.theta = 2e6;
  std::vector<int64_t> with_rope;
  if (const auto list = f.find_integers("no_rope_layers"); list && !list->empty()) {
    with_rope = *list;
    if (static_cast<int64_t>(with_rope.size()) != m.layers)
      throw_error(ErrorCode::corrupt_file, "{}: no_rope_layers has {} entries, expected {}", f.where(),
                  with_rope.size(), m.layers);
  } else {
    const int64_t interval = f.count("no_rope_layer_interval", 4);
    for (int64_t i = 0; i < m.layers; ++i) with_rope.push_back((i + 1) % interval != 0);
  }
  t.has_rope = [with_rope](int64_t i, bool) { return with_rope[static_cast<size_t>(i)] != 0; };
  if (f.flag("use_sliding_window", false) && f.size("sliding_window", 0) > 0)
    t.slides = [with_rope](int64_t i) { return with_rope[static_cast<size_t>(i)] == 0; };
}

void qwen2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  no_bias(m);
  m.qkv_bias = true;
  t.rope.theta = 1e6;
  if (m.max_position == 0) m.max_position = 32768;
  slide_qwen(f, t);
}

void qwen3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.mlp_bias = false;
  m.head_dim = f.count("head_dim");
  m.qk_norm = QkNorm::head;
  t.rope.theta = 1e6;
  slide_qwen(f, t);
}

void qwen3_moe(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  qwen3(f, m, t);
  t.rope.theta_required = true;
  t.slides = nullptr;
  if (f.flag("use_sliding_window", false)) slide_all(f, t);
  m.experts.count = f.has("num_experts") ? f.size("num_experts", 0) : f.size("num_local_experts", 0);
  if (m.experts.count == 0) return;
  m.experts.used = f.count("num_experts_per_tok");
  m.experts.intermediate = f.count("moe_intermediate_size");
  m.experts.normalize = f.flag("norm_topk_prob", false);
  if (m.experts.used > m.experts.count)
    throw_error(ErrorCode::corrupt_file, "{}: num_experts_per_tok is {}, more than the {} experts", f.where(),
                m.experts.used, m.experts.count);
  const int64_t step = f.count("decoder_sparse_step", 1);
  const std::vector<int64_t> dense = f.find_integers("mlp_only_layers").value_or(std::vector<int64_t>{});
  for (int64_t i = 0; i < m.layers; ++i)
    m.layer[static_cast<size_t>(i)].experts =
        (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
}

void gemma(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  gemma_common(f, m, t);
  t.gelu_is_tanh = true;  // the published configs say "gelu" and mean its tanh form
}

void gemma2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  gemma_common(f, m, t);
  m.block = Block::sandwich;
  m.attention_scale = 1 / std::sqrt(f.positive("query_pre_attn_scalar", 144));
  // An explicit null means no cap; an absent key means the family's.
  auto cap = [&](const char* key, double otherwise) -> std::optional<double> {
    if (f.object().contains(key) && !f.has(key)) return std::nullopt;
    return f.positive(key, otherwise);
  };
  m.attention_softcap = cap("attn_logit_softcapping", 50);
  m.final_softcap = cap("final_logit_softcapping", 30);
  t.window = 4096;
  t.slides = [](int64_t i) { return i % 2 == 0; };
}

void phi3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  no_bias(m);
  m.fused_qkv = FusedQkv::concat;
  m.fused_mlp = FusedMlp::gate_up;
  if (m.max_position == 0) m.max_position = 131072;
  t.rope.takes_partial = true;
  t.rope.phi3_names = true;
  t.rope.kinds = {RopeKind::longrope};
  slide_all(f, t);
}

void olmo2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  post_block(m);
  m.qk_norm = QkNorm::full;
}

void glm4(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  no_bias(m);
  m.qkv_bias = f.flag("attention_bias", false);
  m.block = Block::sandwich;
  m.rope_layout = RopeLayout::interleaved;
  m.fused_mlp = FusedMlp::gate_up;
  m.names.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                   "post_mlp_layernorm"};
  m.tie = TieRule::never;
  t.rope.takes_partial = t.rope.partial_required = true;
}

void granite(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.rope_layout = RopeLayout::half_split;
  m.attention_scale = f.positive("attention_multiplier");
  m.embed_multiplier = f.real("embedding_multiplier");
  m.residual_multiplier = f.real("residual_multiplier");
  m.logits_divisor = f.positive("logits_scaling");
}

void starcoder2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  all_bias(m, f.flag("use_bias", true));
  layer_norm_with_bias(m);
  m.gated = false;
  m.names.up = "mlp.c_fc";
  m.names.down = "mlp.c_proj";
  const std::string act = f.text("hidden_act", "gelu_pytorch_tanh");
  m.activation = act == "gelu" ? ActivationFunction::gelu_erf : ActivationFunction::gelu_tanh;
  t.rope.theta = 1e5;
  slide_all(f, t);
}

void gemma3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  gemma_common(f, m, t);
  m.block = Block::sandwich;
  m.qk_norm = QkNorm::head;
  m.attention_scale = 1 / std::sqrt(f.positive("query_pre_attn_scalar", 256));
  if (f.has("final_logit_softcapping")) m.final_softcap = f.positive("final_logit_softcapping");
  m.tie = TieRule::from_checkpoint;
  if (const nlohmann::json* b = f.find("use_bidirectional_attention"); b != nullptr && *b != false)
    throw_error(ErrorCode::unsupported,
                "{}: use_bidirectional_attention is set: an embedding variant, which cannot generate text",
                f.where());
  t.rope.theta = 1e6;
  t.local_rope = true;
  t.local_theta = 1e4;
  t.window = 4096;
  full_every(f.has("sliding_window_pattern") ? f.count("sliding_window_pattern")
                                             : f.count("_sliding_window_pattern", 6),
             t);
}

void olmo3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  olmo2(f, m, t);
  t.rope.theta = 5e5;
  t.local_rope = true;
  t.window = 4096;
  full_every(4, t);
}

void cohere(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  cohere_common(f, m, t);
  t.rope.theta = 8e6;
  if (f.flag("use_qk_norm", false)) m.qk_norm = QkNorm::head_layer_norm;
}

void cohere2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  cohere_common(f, m, t);
  require_whole_heads(f, m);
  t.rope.theta = 5e4;
  t.window = 4096;
  t.has_rope = [](int64_t, bool sliding) { return sliding; };
  full_every(f.count("sliding_window_pattern", 4), t);
}

void stablelm(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  no_bias(m);
  layer_norm_with_bias(m);
  require_whole_heads(f, m);
  m.qkv_bias = f.flag("use_qkv_bias", false);
  if (f.flag("use_parallel_residual", false)) m.block = Block::parallel;
  if (f.flag("qk_layernorm", false)) m.qk_norm = QkNorm::head_layer_norm_list;
  m.names.q_norm = "self_attn.q_layernorm";
  m.names.k_norm = "self_attn.k_layernorm";
  m.tie = TieRule::never;
  t.rope.takes_partial = true;
  t.rope.partial = 0.25;
}

void phi(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  all_bias(m, true);
  m.head_bias = true;
  m.block = Block::parallel;
  layer_norm_with_bias(m);
  m.activation = ActivationFunction::gelu_tanh;
  m.gated = false;
  m.names.o = "self_attn.dense";
  m.names.up = "mlp.fc1";
  m.names.down = "mlp.fc2";
  m.names.final_norm = "model.final_layernorm";
  m.names.q_norm = "self_attn.q_layernorm";
  m.names.k_norm = "self_attn.k_layernorm";
  if (f.flag("qk_layernorm", false)) m.qk_norm = QkNorm::head;
  m.tie = TieRule::never;
  t.rope.takes_partial = true;
  t.rope.partial = 0.5;
}

void glm(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.o_bias = false;
  m.rope_layout = RopeLayout::interleaved;
  m.fused_mlp = FusedMlp::gate_up;
  t.rope.takes_partial = true;
  t.rope.partial = 0.5;
}

void internlm2(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  t.rope.kinds = {RopeKind::linear, RopeKind::dynamic};
  m.fused_qkv = FusedQkv::grouped;
  m.qkv_bias = m.o_bias = f.flag("bias", true);
  m.names.embed = "model.tok_embeddings";
  m.names.head = "output";
  m.names.norms[0] = "attention_norm";
  m.names.norms[1] = "ffn_norm";
  m.names.qkv = "attention.wqkv";
  m.names.o = "attention.wo";
  m.names.gate = "feed_forward.w1";
  m.names.up = "feed_forward.w3";
  m.names.down = "feed_forward.w2";
  m.drop.push_back(R"(\.rope\.inv_freq$)");
}

void internlm3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  t.rope.kinds = {RopeKind::linear, RopeKind::dynamic};
  m.qkv_bias = m.o_bias = f.flag("qkv_bias", f.flag("attention_bias", false));
  m.mlp_bias = f.flag("bias", f.flag("mlp_bias", false));
}

void exaone(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.names.embed = "transformer.wte";
  m.names.final_norm = "transformer.ln_f";
  m.names.layer = "transformer.h.{i}.";
  m.names.norms[0] = "ln_1";
  m.names.norms[1] = "ln_2";
  m.names.q = "attn.attention.q_proj";
  m.names.k = "attn.attention.k_proj";
  m.names.v = "attn.attention.v_proj";
  m.names.o = "attn.attention.out_proj";
  m.names.gate = "mlp.c_fc_0";
  m.names.up = "mlp.c_fc_1";
  m.names.down = "mlp.c_proj";
}

void exaone4(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  post_block(m);
  m.qk_norm = QkNorm::head;
  // An explicit null (or 0) means no windows, and then every layer has rope; absent keys mean the class's
  // own.
  if (f.object().contains("sliding_window") && f.size("sliding_window", 0) == 0) return;
  t.window = 4096;
  t.has_rope = [](int64_t, bool sliding) { return sliding; };
  if (const nlohmann::json* pattern = f.find("sliding_window_pattern"); pattern && pattern->is_string()) {
    const std::string text = f.text("sliding_window_pattern", "");
    if (text.empty() || text.find_first_not_of("LG") != std::string::npos)
      f.reject("sliding_window_pattern", "a count or a string of L and G");
    t.slides = [text](int64_t i) { return text[static_cast<size_t>(i) % text.size()] == 'L'; };
  } else {
    full_every(f.count("sliding_window_pattern", 4), t);
  }
}

void nemotron(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.norm = NormKind::layer_norm_plus_one;
  m.norm_bias = true;
  m.activation = ActivationFunction::relu2;
  m.gated = false;
  t.rope.takes_partial = true;
  t.rope.partial = 0.5;
  t.rope.kinds = {RopeKind::linear};
}

void minicpm(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.embed_multiplier = f.real("scale_emb");
  m.residual_multiplier = f.real("scale_depth") / std::sqrt(static_cast<double>(m.layers));
  m.head_input_divisor = static_cast<double>(m.hidden) / f.positive("dim_model_base");
  t.rope.theta = 1e6;
  t.head_may_be_missing = true;
}

void mimo(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.qkv_bias = true;
  m.o_bias = false;
  m.drop.push_back(R"(^model\.mtp_layers\.)");
}

void ministral3(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  slide_all(f, t);
  const auto parameters = f.find_object("rope_parameters");
  if (!parameters)
    f.reject("rope_parameters", "an object with llama_4_scaling_beta and original_max_position_embeddings");
  m.query_scale_beta = parameters->real("llama_4_scaling_beta");
  m.query_scale_original = static_cast<double>(parameters->count("original_max_position_embeddings"));
  m.drop.push_back(R"(\.activation_scale$)");
}

void seed_oss(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.qkv_bias = f.flag("attention_bias", true);
  m.o_bias = f.flag("attention_out_bias", false);
}

void hunyuan(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  if (f.flag("use_qk_norm", true)) m.qk_norm = QkNorm::head_after_rope;
  m.names.q_norm = "self_attn.query_layernorm";
  m.names.k_norm = "self_attn.key_layernorm";
}

void ernie45(const ConfigFields& f, ModelConfig& m, FamilyTraits&) {
  all_bias(m, f.flag("use_bias", false));
  m.rope_layout = RopeLayout::interleaved;
}

void apertus(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.qk_norm = QkNorm::head;
  m.activation = ActivationFunction::xielu;
  m.gated = false;
  m.names.norms[0] = "attention_layernorm";
  m.names.norms[1] = "feedforward_layernorm";
}

void nanochat(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.norm = NormKind::rms_no_weight;
  m.embed_norm = true;
  m.qk_norm = QkNorm::head_after_rope;
  m.activation = ActivationFunction::relu2;
  m.gated = false;
  m.final_softcap = f.positive("final_logit_softcapping", 15);
  m.tie = TieRule::never;
  m.names.up = "mlp.fc1";
  m.names.down = "mlp.fc2";
  WeightNames& original = m.other_names.emplace(m.names);
  original.embed = "transformer.wte";
  original.layer = "transformer.h.{i}.";
  original.q = "attn.c_q";
  original.k = "attn.c_k";
  original.v = "attn.c_v";
  original.o = "attn.c_proj";
  original.up = "mlp.c_fc";
  original.down = "mlp.c_proj";
}

void helium(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  require_whole_heads(f, m);
  m.o_bias = false;
  m.rope_layout = RopeLayout::interleaved;
  t.rope.theta = 1e5;
}

void olmo(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  m.norm = NormKind::layer_norm_no_affine;
  if (f.has("clip_qkv")) m.clip_qkv = f.positive("clip_qkv");
  if (!f.has("d_model")) {
    llama(f, m, t);
    return;
  }
  // The original layout of the checkpoints, before they were converted. The class that wrote it could do more
  // than its checkpoints do.
  const std::pair<const char*, nlohmann::json> fixed[] = {{"activation_type", "swiglu"},
                                                          {"alibi", false},
                                                          {"attention_layer_norm", false},
                                                          {"bias_for_layer_norm", false},
                                                          {"block_type", "sequential"},
                                                          {"embedding_layer_norm", false},
                                                          {"include_bias", false},
                                                          {"layer_norm_type", "default"},
                                                          {"layer_norm_with_affine", false},
                                                          {"multi_query_attention", false},
                                                          {"n_kv_heads", m.heads},
                                                          {"norm_after", false},
                                                          {"rope", true},
                                                          {"scale_logits", false}};
  for (const auto& [key, value] : fixed)
    if (const nlohmann::json* given = f.find(key); given != nullptr && *given != value)
      throw_error(ErrorCode::unsupported, "{}: {} is {}; supported in OLMo's original layout: {}", f.where(),
                  key, shown(*given), value.dump());
  no_bias(m);
  m.fused_qkv = FusedQkv::concat;
  m.fused_mlp = FusedMlp::up_gate;
  m.tie = f.flag("weight_tying", false) ? TieRule::always : TieRule::never;
  m.names.embed = "model.transformer.wte";
  m.names.head = "model.transformer.ff_out";
  m.names.layer = "model.transformer.blocks.{i}.";
  m.names.qkv = "att_proj";
  m.names.o = "attn_out";
  m.names.gate_up = "ff_proj";
  m.names.down = "ff_out";
}

void plamo(const ConfigFields& f, ModelConfig& m, FamilyTraits& t) {
  llama(f, m, t);
  m.block = Block::parallel;
  m.head_dim = m.hidden / m.heads;
  const int64_t shared = f.count("n_shared_head", 8);
  m.kv_heads = (m.heads + shared - 1) / shared;
  m.kv_heads_tiled = true;
  m.names.layer = "model.layers.layers.{i}.";
  m.names.norms[0] = "norm";
  m.tie = TieRule::never;
}

void lille(const ConfigFields&, ModelConfig& m, FamilyTraits&) {
  no_bias(m);
  m.fused_qkv = FusedQkv::concat;
  m.rope_layout = RopeLayout::interleaved;
  m.tie = TieRule::always;
  m.names.embed = "transformer.tok_embeddings";
  m.names.final_norm = "transformer.norm";
  m.names.layer = "transformer.layers.{i}.";
  m.names.norms[0] = "attention.norm";
  m.names.norms[1] = "feed_forward.norm";
  m.names.qkv = "attention.qkv_proj";
  m.names.o = "attention.out_proj";
  m.names.gate = "feed_forward.gate_proj";
  m.names.up = "feed_forward.up_proj";
  m.names.down = "feed_forward.down_proj";
}

// layer_norm_eps and its like where a class has a default; OLMo's class has no field.
constexpr EpsilonRule kLayerNormEps{{"layer_norm_eps", ""}, 1e-5};
constexpr EpsilonRule kFixedEpsilon{{"", ""}, 1e-5};

constexpr auto kDescriptors = std::to_array<Descriptor>({
    {"apertus", apertus},
    {"cohere", cohere, kLayerNormEps},
    {"cohere2", cohere2, kLayerNormEps},
    {"ernie4_5", ernie45},
    {"exaone", exaone, {{"rms_norm_eps", "layer_norm_epsilon"}, 0}},
    {"exaone4", exaone4},
    {"gemma", gemma},
    {"gemma2", gemma2},
    {"gemma3_text", gemma3, {{"rms_norm_eps", ""}, 1e-6}},
    {"glm", glm},
    {"glm4", glm4},
    {"granite", granite},
    {"helium", helium},
    {"hunyuan_v1_dense", hunyuan},
    {"internlm2", internlm2},
    {"internlm3", internlm3},
    {"lille-130m", lille, {{"rms_norm_eps", "layer_norm_eps"}, 0}},
    {"llama", llama},
    {"mimo", mimo},
    {"minicpm", minicpm},
    {"ministral3", ministral3},
    {"mistral", mistral},
    {"nanochat", nanochat, {{"rms_norm_eps", ""}, 1e-5}},
    {"nemotron", nemotron, {{"norm_eps", ""}, 0}},
    {"olmo", olmo, kFixedEpsilon},
    {"olmo2", olmo2},
    {"olmo3", olmo3},
    {"phi", phi, kLayerNormEps},
    {"phi3", phi3},
    {"plamo", plamo},
    {"qwen2", qwen2},
    {"qwen3", qwen3},
    {"qwen3_moe", qwen3_moe},
    {"seed_oss", seed_oss},
    {"smollm3", smollm3},
    {"stablelm", stablelm, kLayerNormEps},
    {"starcoder2", starcoder2, {{"norm_epsilon", ""}, 1e-5}},
    {"telechat3", llama},
});

// Some of these have no row of their own: the error for them names both.
constexpr auto kRemap = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"iquestcoder", "llama"},
    {"gemma3", "gemma3_text"},
    {"mistral3", "mistral"},
    {"llava", "mistral3"},
    {"phi-msft", "phixtral"},
    {"falcon_mamba", "mamba"},
    {"joyai_llm_flash", "deepseek_v3"},
    {"kimi_k2", "deepseek_v3"},
    {"qwen2_5_vl", "qwen2_vl"},
    {"minimax_m2", "minimax"},
    {"gemma4_unified", "gemma4"},
});

}  // namespace

std::span<const Descriptor> descriptors() {
  return kDescriptors;
}

const Descriptor* find_descriptor(std::string_view model_type) {
  const auto found = std::find_if(kDescriptors.begin(), kDescriptors.end(),
                                  [&](const Descriptor& d) { return d.model_type == model_type; });
  return found == kDescriptors.end() ? nullptr : &*found;
}

std::optional<double> norm_epsilon(const EpsilonRule& rule, const ConfigFields& f) {
  for (const std::string_view key : rule.keys)
    if (!key.empty() && f.has(key)) return f.positive(key);
  return rule.otherwise > 0 ? std::optional(rule.otherwise) : std::nullopt;
}

std::string remapped(std::string_view model_type) {
  // One after another: llava is read as mistral3, a wrapper whose usual text model is a mistral.
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [from, to] : kRemap)
      if (from == model_type) {
        model_type = to;
        changed = true;
        break;
      }
  }
  return std::string(model_type);
}

}  // namespace kvasir::models
