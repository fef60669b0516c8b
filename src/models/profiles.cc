#include "models/profiles.h"

#include <algorithm>

#include "base/error.h"
#include "models/descriptors.h"
#include "models/gguf_config.h"

namespace kvasir::models {
namespace {

// Families with a profile of their own; every other row of the descriptor table is "generic".
constexpr std::string_view kTargeted[] = {"MiniCPM5", "gemma3", "gemma3_text", "qwen3", "qwen3_moe"};

std::string families() {
  std::string text = "targeted: ";
  for (std::string_view type : kTargeted) text += fmt::format("{}{}", type == kTargeted[0] ? "" : ", ", type);
  text += "\ngeneric: ";
  bool first = true;
  for (const Descriptor& row : descriptors()) {
    if (std::find(std::begin(kTargeted), std::end(kTargeted), row.model_type) != std::end(kTargeted))
      continue;
    text += fmt::format("{}{}", first ? "" : ", ", row.model_type);
    first = false;
  }
  return text;
}

// MiniCPM5-1B is a llama of exactly this shape.
bool is_minicpm5(const ModelConfig& m) {
  return m.model_type == "llama" && m.hidden == 1536 && m.layers == 24 && m.heads == 16 && m.kv_heads == 2 &&
         m.head_dim == 128 && m.vocab == 130560 && m.tie != TieRule::always;
}

const std::vector<Implementation>& registry() {
  static const std::vector<Implementation> kRegistry = {
      {"gemma3", "gemma3"},
      {"minicpm5", "minicpm5"},
      {"qwen3", "qwen3"},
      {"qwen3-moe", "qwen3-moe"},
      {"universal-dense", "universal-dense"},
  };
  return kRegistry;
}

}  // namespace

void unsupported_model(std::string_view where, std::string_view model_type, std::string_view reason) {
  const std::string mapped = remapped(model_type);
  std::string message = fmt::format("{}: model type {} is not supported", printable(where),
                                    model_type.empty() ? "(missing)" : printable(model_type));
  if (!model_type.empty() && mapped != model_type)
    message += fmt::format(" (handled as {})", printable(mapped));
  if (!reason.empty()) message += fmt::format(": {}", reason);
  message += "; supported families are listed below";
  throw Error(ErrorCode::unsupported, message, families());
}

void unsupported_architecture(std::string_view where, std::string_view architecture) {
  std::string list = "supported GGUF architectures: ";
  bool first = true;
  for (const GgufArchitecture& a : gguf_architectures()) {
    list += fmt::format("{}{}", first ? "" : ", ", a.name);
    first = false;
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: GGUF architecture {} is not supported; supported ones are listed below",
                          printable(where), printable(architecture)),
              list);
}

Profile resolve_profile(const ModelConfig& config) {
  Profile profile;
  profile.loader = config.gguf ? "gguf" : "safetensors";
  if (is_minicpm5(config)) {
    profile.id = "minicpm5-dedicated";
    profile.graph = "minicpm5";
  } else if (config.model_type == "qwen3_moe") {
    profile.id = "qwen3-moe-dedicated";
    profile.graph = "qwen3-moe";
  } else if (config.model_type == "qwen3") {
    profile.id = "qwen3-dedicated";
    profile.graph = "qwen3";
  } else if (config.model_type == "gemma3_text") {
    profile.id = "gemma3-dedicated";
    profile.graph = "gemma3";
  } else {
    profile.id = "universal-dense";
    profile.graph = "universal-dense";
  }
  profile.implementation = profile.graph;
  return profile;
}

const Implementation& select_implementation(const Profile& profile) {
  const auto& list = registry();
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Implementation& i) { return i.id == profile.implementation; });
  if (found == list.end())
    throw_error(ErrorCode::unsupported,
                "profile {}: implementation {} is unavailable in this build; refusing to fall back",
                profile.id, profile.implementation);
  if (found->graph != profile.graph)
    throw_error(ErrorCode::unsupported,
                "profile {}: implementation {} is incompatible: graph {}, expected {}; refusing to fall back",
                profile.id, found->id, found->graph, profile.graph);
  return *found;
}

}  // namespace kvasir::models
