// The canonical record of a plain decoder: everything the graph builder needs, resolved from config.json or
// GGUF metadata by the family's row of the descriptor table (descriptors.h). It has no defaults left to apply
// and no architecture name to look at.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config_fields.h"
#include "models/rope_config.h"
#include "ops/activation/activation.h"
#include "ops/rope/rope.h"

namespace kvasir::models {

// Where the norms and residual additions of a layer lie. x is the residual stream, rho the residual
// multiplier.
//   pre       h = x + rho attn(n1(x));       out = h + rho mlp(n2(h))
//   post      h = x + n1(attn(x));           out = h + n2(mlp(h))
//   sandwich  h = x + n2(attn(n1(x)));       out = h + n4(mlp(n3(h)))     (glm4 has this form too)
//   parallel  y = n1(x);                     out = attn(y) + mlp(y) + x
enum class Block : uint8_t { pre, post, sandwich, parallel };

enum class NormKind : uint8_t {
  rms,
  rms_plus_one,
  rms_no_weight,
  layer_norm,
  layer_norm_plus_one,
  layer_norm_no_affine
};

enum class QkNorm : uint8_t {
  none,
  head,                  // the family's norm over head_dim, one gain for all heads, before rope
  full,                  // over the whole q (k) projection
  head_layer_norm,       // LayerNorm with a [heads, head_dim] gain, before rope
  head_layer_norm_list,  // the same, a tensor a head
  head_after_rope,
};

enum class FusedQkv : uint8_t { none, concat, grouped };   // grouped: per KV head its q rows, k, v
enum class FusedMlp : uint8_t { none, gate_up, up_gate };  // order of the halves of one stored matrix
enum class TieRule : uint8_t { from_checkpoint, always, never };

struct LayerConfig {
  std::optional<int> window;  // keys a token sees, itself included
  int rope = 0;               // index into ModelConfig::ropes; -1: positions are not encoded
  bool experts = false;
};

struct ExpertConfig {
  int64_t count = 0;
  int64_t used = 0;
  int64_t intermediate = 0;
  bool normalize = false;  // the chosen probabilities are divided by their sum
};

// Names of a family's tensors, without ".weight"; {i} is the layer, relative names follow the layer prefix.
struct WeightNames {
  std::string embed = "model.embed_tokens", final_norm = "model.norm", head = "lm_head",
              layer = "model.layers.{i}.";
  std::array<std::string, 4> norms = {"input_layernorm", "post_attention_layernorm",
                                      "pre_feedforward_layernorm", "post_feedforward_layernorm"};
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj", o = "self_attn.o_proj";
  std::string qkv = "self_attn.qkv_proj", q_norm = "self_attn.q_norm", k_norm = "self_attn.k_norm";
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj",
              gate_up = "mlp.gate_up_proj";
  // Experts: one tensor each under `experts`.{e}, or fused there, or stacked; GGUF: ffn_gate_exps and so on.
  std::string router = "mlp.gate", experts = "mlp.experts", stacked_experts = "mlp.switch_mlp";
  std::string activation = "mlp.act_fn";  // xielu's scalars
};

struct XieluScalars {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;  // the alphas before softplus
};

struct ModelConfig {
  std::string model_type;  // after remapping
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0, vocab = 0;
  int64_t max_position = 0;  // 0: not declared

  Block block = Block::pre;
  NormKind norm = NormKind::rms;
  bool norm_bias = false;
  float epsilon = 0;
  float gain_offset = 0;  // 1 for the plus-one norms unless the checkpoint stores the sum already

  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_bias = false;
  QkNorm qk_norm = QkNorm::none;
  FusedQkv fused_qkv = FusedQkv::none;
  FusedMlp fused_mlp = FusedMlp::none;
  bool kv_heads_tiled = false;  // query head h reads KV head h mod G instead of h / (N / G)
  std::optional<double> clip_qkv;
  double attention_scale = 0;
  std::optional<double> attention_softcap;
  double query_scale_beta = 0,
         query_scale_original = 0;  // q *= 1 + beta ln(1 + floor(p / original)); beta 0: none

  ops::RopeLayout rope_layout = ops::RopeLayout::half_split;
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layer;

  ops::ActivationFunction activation = ops::ActivationFunction::silu;
  bool gated = true;
  std::vector<XieluScalars> xielu;  // a layer each, where the file keeps them in its metadata; empty: tensors
  ExpertConfig experts;

  std::optional<double> embed_multiplier;
  bool embed_multiplier_rounded = false;  // to the dtype in which the embedding is stored (Gemma)
  bool embed_norm = false;
  std::optional<double> residual_multiplier, logits_multiplier, logits_divisor, head_input_divisor,
      final_softcap;
  TieRule tie = TieRule::from_checkpoint;

  WeightNames names;
  std::optional<WeightNames>
      other_names;                // of another layout of the same tensors: taken when its table is there
  std::vector<std::string> drop;  // ECMAScript patterns of tensors that are knowingly not used
  bool gguf = false;              // tensors carry GGUF's names
  bool permuted_qk = false;       // q and k rows are stored for interleaved rope (GGUF's llama family)

  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  std::vector<std::string> warnings;  // what the configuration says and is not done, a line each

  std::string canonical_text() const;  // every field that can change a result; part of the NumericsKey
};

// The record of a parsed config.json. `raw` is the whole file; the text model's fields may be nested under
// text_config. `generation` is generation_config.json or null: its eos_token_id replaces the others. `where`
// is what messages call the file. Throws Error{unsupported} with the lists of families for an unknown
// model_type, Error{corrupt_file} for a bad field. The fields that this family has are added to `read`;
// `names` is what messages call them where the file has other names.
ModelConfig parse_config(const nlohmann::json& raw, const nlohmann::json& generation,
                         const std::string& where, std::set<std::string>* read = nullptr,
                         const FieldNames* names = nullptr);

}  // namespace kvasir::models
