// Which implementation a configuration gets, decided before any weight is opened (model-selection.md 4, 5,
// 10).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"

namespace kvasir::models {

// Error{unsupported}: names the type, the supported families, and the reason when one is known.
[[noreturn]] void unsupported_model(std::string_view where, std::string_view model_type,
                                    std::string_view reason);
[[noreturn]] void unsupported_architecture(std::string_view where, std::string_view architecture);

struct Profile {
  std::string id;
  std::string graph;           // "qwen3", "gemma3", "minicpm5", "universal-dense", ...
  std::string loader;          // "safetensors", "gguf"
  std::string implementation;  // registry id
};

// The first family of the ladder that takes the configuration.
Profile resolve_profile(const ModelConfig& config);

struct Implementation {
  std::string id;
  std::string graph;
};
// Throws Error{unsupported} naming profile and implementation when it is not registered or builds another
// graph.
const Implementation& select_implementation(const Profile& profile);

}  // namespace kvasir::models
