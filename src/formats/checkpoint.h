// One view of everything that a model loader needs, whatever the checkpoint's form: a GGUF file, a Hugging
// Face folder, or a folder written by MLX.
//
//   Checkpoint checkpoint = Checkpoint::open(path);     // config text or GGUF metadata; no tensor file is
//   read checkpoint.read_headers();                          // the catalogue of tensors; still no tensor
//   data const TensorEntry& entry = checkpoint.tensor(name); WeightSource source = checkpoint.weight(entry);
//   // views into the mapping: the first access to data
//
// header_opens() and data_opens() count the two, so that "resolve first" (design law M1) can be tested.
// Names, shapes and quantization are those of the file: renaming and permuting for a family is the models'
// business.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/foreign_weights.h"
#include "formats/gguf.h"
#include "formats/limits.h"
#include "formats/quantization_config.h"
#include "formats/safetensors.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

enum class CheckpointKind : uint8_t { gguf, safetensors, mlx };
std::string_view name(CheckpointKind kind);

// Small files beside the weights, where present.
struct AuxiliaryFiles {
  std::optional<std::filesystem::path> tokenizer_json, tokenizer_config, special_tokens_map, added_tokens;
  std::optional<std::filesystem::path> generation_config, kv_config, preprocessor_config, processor_config;
  // The chat template by precedence: chat_template.jinja, then chat_template.json. (tokenizer_config.json may
  // hold one, too.)
  std::optional<std::filesystem::path> chat_template_jinja, chat_template_json;
  std::map<std::string, std::filesystem::path>
      additional_templates;         // additional_chat_templates/<name>.jinja
  bool has_vision_sidecar = false;  // optiq_vision.safetensors
  std::string foreign_tokenizer;    // tokenizer.model or *.tiktoken without tokenizer.json

  // Why no text can be read or written with the model: it lacks a tokenizer.json. Else empty.
  std::string text_problem() const;
};

// Of a model's folder, or of one that holds the text side alone.
AuxiliaryFiles find_auxiliary_files(const std::filesystem::path& folder);

// One tensor, or one MLX triplet (weight, scales, biases) or another tool's set under the name of its weight.
struct TensorEntry {
  std::string name;  // "model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"
  StorageFormat format = StorageFormat::f32;
  std::vector<int64_t> shape;  // outermost first: a linear weight is [out, in], a stack [experts, out, in]
  uint64_t stored_bytes = 0;   // with scales and biases
  std::string file;            // that holds it, for messages
  std::optional<MlxQuantization> quantization;   // MLX triplets only
  bool quantization_stated = false;              // by an override of this module, not by the defaults
  std::shared_ptr<const ForeignTensor> foreign;  // another tool's tensors: converted by weight()
  bool needs_width = false;  // the defaults contradict the shapes: only with_width() can tell the sizes

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const;  // product of all but the last dimension
};

struct CheckpointOptions {
  bool lenient_safetensors = false;
  ReadLimits limits = {};
};

class Checkpoint {
 public:
  // `path`: a .gguf file (part 1 of a split one), or a folder with config.json and safetensors, or a folder
  // with one GGUF model. Throws Error{not_found, invalid_input, corrupt_file, unsupported} naming the file.
  static Checkpoint open(const std::filesystem::path& path, const CheckpointOptions& options = {});

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  CheckpointKind kind() const { return kind_; }
  const std::filesystem::path& path() const { return path_; }  // of the GGUF file or the folder
  const GgufFile* gguf() const { return gguf_.get(); }         // null for folders

  // Folders only (empty for GGUF): config.json as text and parsed (an object), and
  // generation_config.json (null when absent or unreadable, the latter with a warning; without an
  // eos_token_id that is none, with a warning).
  const std::string& config_text() const { return config_text_; }
  const nlohmann::json& config() const { return config_; }
  const nlohmann::json& generation_config() const { return generation_config_; }
  const QuantizationConfig& quantization() const { return quantization_; }
  const AuxiliaryFiles& files() const { return files_; }

  // Why no text can be read or written with it; empty where it can, as far as names and keys tell.
  std::string text_problem() const;

  // Reads and checks the headers of the tensor files and builds the catalogue. Does nothing the second time.
  void read_headers();
  bool has_headers() const { return has_headers_; }
  std::span<const TensorEntry> tensors() const;  // sorted by name
  const TensorEntry* find(std::string_view name) const;
  // Throws Error{not_found} naming the checkpoint and the tensor.
  const TensorEntry& tensor(std::string_view name) const;

  // The entry for a module whose configuration says it reads `in` features: its last dimension must be that.
  // An MLX triplet whose sizes came from the defaults and contradict the shapes is re-read with the sizes
  // that follow from `in` (one warning); a stated one must agree. Headers only. Throws Error{corrupt_file}
  // naming tensor, expected and got.
  TensorEntry with_width(const TensorEntry& entry, int64_t in);

  // What `entry` looks like without its data: pointers are null, everything else is filled in. Headers only.
  WeightSource layout(const TensorEntry& entry) const;
  // The tensor as a matrix [rows, cols] over the mapping; a stack's experts lie one behind the other (see
  // row_range). `tensor_scale` is filled in for NVFP4 with one scale; for stacks see tensor_scales(). Counts
  // as opening data.
  WeightSource weight(const TensorEntry& entry) const;
  // NVFP4: the scale of the whole tensor, one a slab of a stack; empty when the file has none. Reads those
  // few bytes.
  std::vector<float> tensor_scales(const TensorEntry& entry) const;
  // The tensor's values in f32 (de-quantized if need be), for norms, biases and other small ones.
  std::vector<float> values(const TensorEntry& entry) const;
  // Calls `visit` with every stored span of the tensor in a fixed order (codes, scales, biases, tensor
  // scales): what a digest of the weights covers, beside name, format and shape. Counts as opening data.
  void visit_stored_bytes(const TensorEntry& entry,
                          const std::function<void(std::span<const std::byte>)>& visit) const;

  uint64_t header_opens() const { return header_opens_; }
  uint64_t data_opens() const;
  std::span<const std::string> warnings() const { return warnings_; }

 private:
  Checkpoint() = default;
  void open_folder();
  void catalogue_gguf();
  void catalogue_safetensors();
  TensorEntry mlx_entry(const SafetensorsTensor& weight, const std::string& path) const;
  // Of a tensor that belongs to a module quantized by another tool: none where another tensor of the module
  // stands for it, or where it is plain (`plain`).
  std::optional<TensorEntry> foreign_entry(const SafetensorsTensor& tensor, bool& plain) const;
  // The tensor called `path` + `suffix` in the safetensors files, or null.
  const SafetensorsTensor* companion(std::string_view path, std::string_view suffix) const;

  CheckpointOptions options_;
  CheckpointKind kind_ = CheckpointKind::safetensors;
  std::filesystem::path path_;
  std::unique_ptr<GgufFile> gguf_;
  std::unique_ptr<SafetensorsModel> safetensors_;
  std::string config_text_;
  nlohmann::json config_;
  nlohmann::json generation_config_;
  QuantizationConfig quantization_;
  AuxiliaryFiles files_;
  bool has_headers_ = false;
  std::vector<TensorEntry> tensors_;
  uint64_t header_opens_ = 0;
  std::vector<std::string> warnings_;
};

// Rows [first, first + count) of a matrix: an expert of a stack, a part of a fused projection.
WeightSource row_range(const WeightSource& source, int64_t first, int64_t count);

}  // namespace kvasir::formats
