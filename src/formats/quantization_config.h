// The quantization section of a config.json: MLX modes with overrides per module, or another tool's method
// (spec: formats.md 2.4 and 3, model-selection.md 2.3).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "formats/foreign_quantization.h"
#include "formats/storage_format.h"

namespace kvasir::formats {

struct MlxQuantization {
  StorageFormat mode = StorageFormat::mlx_affine;  // one of the mlx_* formats
  int bits = 4;
  int group_size = 64;
  bool operator==(const MlxQuantization&) const = default;
};

// The sizes that a mode has where a checkpoint names none: the only ones, but for affine.
MlxQuantization mode_defaults(StorageFormat mode);

// "affine b4 g64", "mxfp4 b4 g32"
std::string describe(const MlxQuantization& quantization);

class QuantizationConfig {
 public:
  // Reads the section of a parsed config.json. An unquantized model gives an empty one. Throws
  // Error{corrupt_file} for a malformed section or two that disagree, Error{unsupported} for methods, modes
  // and sizes that this build does not read; `file` is what messages call the config.
  static QuantizationConfig from_config(const nlohmann::json& config, const std::string& file);

  bool present() const { return defaults_.has_value() || !overrides_.empty(); }
  // The section of another tool; then there are no defaults and no overrides. Null: none.
  const ForeignQuantization* foreign() const { return foreign_ ? &*foreign_ : nullptr; }
  const std::optional<MlxQuantization>& defaults() const { return defaults_; }

  struct Spec {
    std::optional<MlxQuantization> quantization;  // none: the module is not quantized
    bool stated = false;                          // by an override of this very path
    const std::string* key = nullptr;             // the override's key, if any
  };
  // What the section says of a module, by its path as stored ("model.layers.0.mlp.up_proj"). Overrides may be
  // written with or without the prefix "language_model.".
  Spec spec(std::string_view path) const;

  const std::map<std::string, std::optional<MlxQuantization>, std::less<>>& overrides() const {
    return overrides_;
  }

 private:
  std::optional<ForeignQuantization> foreign_;
  std::optional<MlxQuantization> defaults_;
  std::map<std::string, std::optional<MlxQuantization>, std::less<>> overrides_;  // nothing: false
};

}  // namespace kvasir::formats
