#include "models/identity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/digest.h"
#include "base/error.h"
#include "models/descriptors.h"

namespace kvasir::models {
namespace {

using nlohmann::json;

std::string json_text(std::string_view text) {
  return json(text).dump();
}

// A number as ECMAScript prints it: the shortest digits that read back, no fraction for integers.
std::string number(double value) {
  if (value == 0) return "0";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const bool negative = text.front() == '-';
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  const std::string_view tail = text.substr(e + (text[e + 1] == '+' ? 2 : 1));
  std::from_chars(tail.data(), tail.data() + tail.size(), exponent);
  const int k = static_cast<int>(digits.size()), n = exponent + 1;  // value = 0.digits * 10^n
  std::string out = negative ? "-" : "";
  const auto at = static_cast<size_t>(std::max(n, 0));
  if (k <= n && n <= 21) return out + digits + std::string(static_cast<size_t>(n - k), '0');
  if (0 < n && n <= 21) return out + digits.substr(0, at) + "." + digits.substr(at);
  if (-6 < n && n <= 0) return out + "0." + std::string(static_cast<size_t>(-n), '0') + digits;
  out += digits.substr(0, 1);
  if (k > 1) out += "." + digits.substr(1);
  return out + fmt::format("e{}{}", n > 0 ? "+" : "-", std::abs(n - 1));
}

std::string bits_text(double value) {
  return fmt::format("\"{:016x}\"", std::bit_cast<uint64_t>(value));
}

std::string hash16(const std::string& text) {
  unsigned char bytes[32];
  unsigned length = 0;
  KVASIR_CHECK(EVP_Digest(text.data(), text.size(), bytes, &length, EVP_sha256(), nullptr) == 1);
  return hex(std::span(bytes).first(8));
}

std::string text(const std::string& path, const std::optional<formats::MlxQuantization>& q) {
  const std::string body =
      q ? fmt::format("{},{},\"{}\"", q->bits, q->group_size,
                      q->mode == formats::StorageFormat::f8_scaled ? "fp8" : formats::name(q->mode).substr(4))
        : "0,0,\"none\"";
  return path.empty() ? "[" + body + "]" : "[" + json_text(path) + "," + body + "]";
}

// The converted form of another tool's section.
std::optional<formats::MlxQuantization> converted(const formats::ForeignScheme& scheme) {
  using formats::ForeignLayout;
  using formats::StorageFormat;
  formats::MlxQuantization out{StorageFormat::mlx_affine, scheme.bits, scheme.group_size};
  if (scheme.layout == ForeignLayout::fp8) out = {StorageFormat::f8_scaled, 8, scheme.block_cols};
  if (scheme.layout == ForeignLayout::nvfp4_divided || scheme.layout == ForeignLayout::nvfp4_times)
    out.mode = StorageFormat::mlx_nvfp4;
  if (scheme.layout == ForeignLayout::mxfp4) out.mode = StorageFormat::mlx_mxfp4;
  return out;
}

RopeRecord rope_record(const json& object, const json& t, const std::string& where) {
  const ConfigFields fields(object, where), text_fields(t, where);
  RopeRecord rope;
  rope.type = fields.text("rope_type", fields.text("type", "default"));
  rope.theta = fields.positive("rope_theta", text_fields.positive("rope_theta", 10000));
  rope.partial = fields.real("partial_rotary_factor", text_fields.real("partial_rotary_factor", 1));
  rope.factor = fields.real("factor", 1);
  return rope;
}

}  // namespace

CanonicalRecord record_of(const json& config, const json& kv_config,
                          const formats::QuantizationConfig& quantization, const std::string& where) {
  const ConfigFields top(config, where);
  json t = config;
  if (const auto nested = top.find_object("text_config")) t = nested->object();
  const ConfigFields f(t, where);
  CanonicalRecord r;
  r.model_type = top.text("model_type", "");
  r.layers = f.size("num_hidden_layers", 0);
  r.hidden_size = f.size("hidden_size", 0);
  r.heads = f.size("num_attention_heads", 0);
  const int64_t default_dim = r.heads > 0 ? r.hidden_size / r.heads : 0;
  r.kv_heads = f.size("num_key_value_heads", r.heads);
  r.head_dim = f.size("head_dim", default_dim);
  r.global_head_dim = f.size("global_head_dim", r.head_dim);
  r.global_kv_heads = f.size("num_global_key_value_heads", r.kv_heads);
  r.attention_k_eq_v = f.flag("attention_k_eq_v", false);
  r.kv_shared_layers = f.size("num_kv_shared_layers", 0);
  r.enable_moe_block = f.flag("enable_moe_block", false);
  r.experts = f.size("num_experts", 0);
  const bool by_token = r.model_type == "qwen3_moe" || r.model_type.starts_with("qwen3_5_moe");
  r.top_k_experts = f.size(by_token ? "num_experts_per_tok" : "top_k_experts", 0);
  r.hidden_size_per_layer_input = f.size("hidden_size_per_layer_input", 0);
  r.sliding_window = f.size("sliding_window", 0);
  r.final_softcap = f.find_real("final_logit_softcapping");
  r.intermediate_size = f.size("intermediate_size", 0);
  r.moe_intermediate_size = f.size("moe_intermediate_size", 0);
  r.vocab_size = f.size("vocab_size", 0);
  // As the family's own class takes it; of a type that has no row, from what is there.
  if (const Descriptor* row = find_descriptor(remapped(f.text("model_type", r.model_type))))
    r.epsilon = norm_epsilon(row->epsilon, f);
  else
    for (const char* key :
         {"rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"})
      if (!r.epsilon) r.epsilon = f.find_real(key);
  r.tie = f.flag("tie_word_embeddings", top.flag("tie_word_embeddings", false));
  r.activation = f.text("hidden_activation", f.text("hidden_act", ""));
  if (r.activation.empty() && r.model_type.starts_with("gemma")) r.activation = "gelu_pytorch_tanh";
  r.dtype = top.text("dtype", top.text("torch_dtype", f.text("dtype", "bfloat16")));
  if (const auto kinds = f.find_texts("layer_types")) r.layer_types = *kinds;
  if (r.layer_types.empty() && r.model_type == "llama" && r.layers <= 10000)
    r.layer_types.assign(static_cast<size_t>(r.layers), "full_attention");

  const auto parameters = f.find_object("rope_parameters");
  bool nested = false;
  if (parameters)
    for (const auto& [kind, value] : parameters->object().items())
      if (value.is_object()) {
        nested = true;
        r.ropes[kind] = rope_record(value, json::object(), where);
      }
  if (!nested) {
    const auto scaling = f.find_object("rope_scaling");
    r.ropes["full_attention"] = rope_record(parameters ? parameters->object()
                                            : scaling  ? scaling->object()
                                                       : json::object(),
                                            t, where);
  }

  if (kv_config.is_array()) {
    r.kv_quant.emplace();
    for (const json& entry : kv_config) {
      const ConfigFields fields(entry, "kv_config.json");
      r.kv_quant->push_back(
          {fields.size("layer_idx", 0), fields.size("bits", 0), fields.size("group_size", 0)});
    }
  }
  if (const formats::ForeignQuantization* foreign = quantization.foreign()) {
    if (const formats::ForeignScheme* scheme = foreign->scheme("")) r.weights = converted(*scheme);
  } else {
    r.weights = quantization.defaults();
    for (const auto& [path, q] : quantization.overrides()) r.weight_overrides[path] = q;
  }
  return r;
}

CanonicalRecord record_of(const ModelConfig& m) {
  CanonicalRecord r;
  r.model_type = m.model_type;
  r.layers = m.layers;
  r.hidden_size = m.hidden;
  r.heads = m.heads;
  r.kv_heads = r.global_kv_heads = m.kv_heads;
  r.head_dim = r.global_head_dim = m.head_dim;
  r.experts = m.experts.count;
  r.top_k_experts = m.experts.used;
  r.moe_intermediate_size = m.experts.intermediate;
  r.intermediate_size = m.intermediate;
  r.vocab_size = m.vocab;
  r.epsilon = static_cast<double>(m.epsilon);
  r.final_softcap = m.final_softcap;
  r.tie = m.tie == TieRule::always;
  r.activation = ops::name(m.activation);
  r.dtype = "gguf";
  for (const LayerConfig& layer : m.layer) {
    const char* kind = layer.window ? "sliding_attention" : "full_attention";
    r.layer_types.emplace_back(kind);
    if (layer.window) r.sliding_window = *layer.window;
    if (layer.rope < 0) continue;
    const RopeConfig& rope = m.ropes[static_cast<size_t>(layer.rope)];
    r.ropes[kind] = {std::string(name(rope.kind)), rope.theta, rope.partial, rope.factor};
  }
  return r;
}

std::string config_fingerprint_text(const CanonicalRecord& r) {
  std::string kinds, kv = "null";
  for (const std::string& kind : r.layer_types) kinds += (kinds.empty() ? "" : ",") + json_text(kind);
  if (r.kv_quant) {
    kv = "[";
    for (const KvQuant& q : *r.kv_quant)
      kv += fmt::format("{}{{\"layerIdx\":{},\"bits\":{},\"groupSize\":{}}}", kv.size() > 1 ? "," : "",
                        q.layer, q.bits, q.group_size);
    kv += "]";
  }
  return fmt::format(
      "{{\"layerTypes\":[{}],\"hiddenSize\":{},\"headDim\":{},\"globalHeadDim\":{},\"numAttentionHeads\":{},"
      "\"numKeyValueHeads\":{},\"numGlobalKeyValueHeads\":{},\"attentionKEqV\":{},\"numKvSharedLayers\":{},"
      "\"enableMoeBlock\":{},\"numExperts\":{},\"topKExperts\":{},\"hiddenSizePerLayerInput\":{},"
      "\"slidingWindow\":{},\"finalLogitSoftcapping\":{},\"kvQuant\":{}}}",
      kinds, r.hidden_size, r.head_dim, r.global_head_dim, r.heads, r.kv_heads, r.global_kv_heads,
      r.attention_k_eq_v, r.kv_shared_layers, r.enable_moe_block, r.enable_moe_block ? r.experts : 0,
      r.enable_moe_block ? r.top_k_experts : 0, r.hidden_size_per_layer_input, r.sliding_window,
      r.final_softcap ? number(*r.final_softcap) : "null", kv);
}

std::string config_fingerprint(const CanonicalRecord& record) {
  return hash16(config_fingerprint_text(record));
}

std::string specialization_fingerprint_text(const CanonicalRecord& r) {
  if (!r.epsilon)
    throw_error(
        ErrorCode::corrupt_file,
        "a {} model without the epsilon of its norms has no fingerprint: its configuration must say it",
        printable(r.model_type));
  std::string ropes, overrides, weights = "null";
  for (const auto& [kind, rope] : r.ropes)
    ropes +=
        fmt::format("{}[{},{},{},{},{}]", ropes.empty() ? "" : ",", json_text(kind), json_text(rope.type),
                    bits_text(rope.theta), bits_text(rope.partial), bits_text(rope.factor));
  for (const auto& [path, q] : r.weight_overrides)
    overrides += (overrides.empty() ? "" : ",") + text(path, q);
  if (r.weights)
    weights = fmt::format("{{\"default\":{},\"overrides\":[{}]}}", text("", r.weights), overrides);
  return fmt::format(
      "{{\"v\":1,\"config\":\"{}\",\"modelType\":{},\"numHiddenLayers\":{},\"intermediateSize\":{},"
      "\"moeIntermediateSize\":{},\"numExperts\":{},\"topKExperts\":{},\"vocabSize\":{},\"rmsNormEps\":{},"
      "\"tieWordEmbeddings\":{},\"activation\":{},\"rope\":[{}],\"dtype\":{},\"weightQuant\":{}}}",
      config_fingerprint(r), json_text(r.model_type), r.layers, r.intermediate_size, r.moe_intermediate_size,
      r.experts, r.top_k_experts, r.vocab_size, bits_text(*r.epsilon), r.tie, json_text(r.activation), ropes,
      json_text(r.dtype), weights);
}

std::string specialization_fingerprint(const CanonicalRecord& record) {
  return hash16(specialization_fingerprint_text(record));
}

std::optional<std::string> artifact_identity(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  // A snapshot's files are links into blobs/: only the folder they are named in is resolved.
  const bool gguf = path.extension() == ".gguf";
  const fs::path given = fs::absolute(path, error);
  fs::path folder = gguf ? given.parent_path() : given;
  if (!folder.has_filename()) folder = folder.parent_path();
  folder = fs::weakly_canonical(folder, error);
  if (error) return std::nullopt;
  std::string revision = folder.filename().string();
  const bool digits = std::all_of(revision.begin(), revision.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
  if (revision.size() < 40 || revision.size() > 64 || !digits) return std::nullopt;
  if (folder.parent_path().filename() != "snapshots") return std::nullopt;
  const std::string repository = folder.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  const size_t split = repository.find("--", kPrefix.size());
  if (!repository.starts_with(kPrefix) || split == std::string::npos || split == kPrefix.size() ||
      split + 2 == repository.size())
    return std::nullopt;
  for (char& c : revision)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  std::string out = fmt::format("hf:{}/{}@{}", repository.substr(kPrefix.size(), split - kPrefix.size()),
                                repository.substr(split + 2), revision);
  if (gguf) out += "#" + path.filename().string();
  return out;
}

}  // namespace kvasir::models
