// Who a checkpoint is (model-selection.md 2.2, 3): the canonical record of its configuration, where it came
// from, and two fingerprints. Fingerprints choose code; what identifies numerics is the NumericsKey.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/quantization_config.h"
#include "models/config.h"

namespace kvasir::models {

struct KvQuant {
  int64_t layer = 0, bits = 0, group_size = 0;
  bool operator==(const KvQuant&) const = default;
};

struct RopeRecord {
  std::string type = "default";
  double theta = 10000, partial = 1, factor = 1;
  bool operator==(const RopeRecord&) const = default;
};

// The fields that fingerprints cover, defaults applied.
struct CanonicalRecord {
  std::string model_type;  // as the file says
  std::vector<std::string> layer_types;
  int64_t hidden_size = 0, head_dim = 0, global_head_dim = 0, heads = 0, kv_heads = 0, global_kv_heads = 0;
  bool attention_k_eq_v = false;
  int64_t kv_shared_layers = 0;
  bool enable_moe_block = false;
  int64_t experts = 0, top_k_experts = 0, hidden_size_per_layer_input = 0, sliding_window = 0;
  std::optional<double> final_softcap;
  std::optional<std::vector<KvQuant>> kv_quant;  // none: no kv_config.json, which is not an empty one
  int64_t layers = 0, intermediate_size = 0, moe_intermediate_size = 0, vocab_size = 0;
  std::optional<double> epsilon;  // what the norms use; none: the configuration does not say
  bool tie = false;
  std::string activation, dtype = "bfloat16";
  std::map<std::string, RopeRecord> ropes;  // by layer kind
  std::optional<formats::MlxQuantization> weights;
  std::map<std::string, std::optional<formats::MlxQuantization>> weight_overrides;  // none: not quantized
  bool operator==(const CanonicalRecord&) const = default;
};

// Of a parsed config.json, of any model_type; `kv_config` is null or the parsed kv_config.json. Throws
// Error{invalid_input} for a field of another type.
CanonicalRecord record_of(const nlohmann::json& config, const nlohmann::json& kv_config,
                          const formats::QuantizationConfig& quantization, const std::string& where);
// Of GGUF metadata.
CanonicalRecord record_of(const ModelConfig& config);

// 16 hex digits (3.2, 3.3), and the text that is hashed. The second throws Error{corrupt_file} for a record
// without epsilon.
std::string config_fingerprint(const CanonicalRecord& record);
std::string config_fingerprint_text(const CanonicalRecord& record);
std::string specialization_fingerprint(const CanonicalRecord& record);
std::string specialization_fingerprint_text(const CanonicalRecord& record);

// "hf:<org>/<repo>@<revision>" where the path, links resolved, lies in a snapshot of a Hugging Face cache,
// with
// "#<file>" for a GGUF file (3.1). Everything else can change under its name: none.
std::optional<std::string> artifact_identity(const std::filesystem::path& path);

}  // namespace kvasir::models
