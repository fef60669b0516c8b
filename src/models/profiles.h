// Which implementation a configuration gets, decided before any weight is opened (model-selection.md 4, 5,
// 10). Everything here is a value: a change means a new one, and what was built keeps what it was built with.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/identity.h"

namespace kvasir::models {

// Error{unsupported}: names the type, the supported families, and the reason when one is known.
[[noreturn]] void unsupported_model(std::string_view where, std::string_view model_type,
                                    std::string_view reason);
[[noreturn]] void unsupported_architecture(std::string_view where, std::string_view architecture);

// How sure the parity of a profile is, and against whom.
struct Fidelity {
  std::string tier = "L1";              // L1, L2, L3
  std::string oracle = "transformers";  // L1: transformers, mlx-lm or llama.cpp; L2: mlx-optiq; L3: none ("")
  std::string claim = "tolerance";      // L1: bit-exact or tolerance; L2: bit-exact; L3: measured
};

struct Execution {
  std::string loader = "safetensors";        // "safetensors", "gguf", "colibri" (streamed experts)
  std::string graph;                         // "qwen3", "gemma3", "minicpm5", "universal-dense", ...
  std::string loop = "autoregressive";       // or "diffusion"
  std::string specialization = "dedicated";  // "artifact", "dedicated", "generated", "generic"
  std::string
      implementation;  // registry id; empty: `<graph>-generated` for "generated", else the graph's name
};

struct Profile {
  std::string id;
  // Both or neither: a profile of exactly one artifact, whose configuration must have this fingerprint.
  std::optional<std::string> artifact, config_fingerprint;
  Fidelity fidelity;
  std::set<std::string> required_capabilities;  // at least the implied ones (implied_capabilities)
  Execution execution;
};

std::set<std::string> implied_capabilities(const Execution& execution);
std::set<std::string> build_capabilities();  // what this build offers

struct ResolveOptions {
  std::vector<Profile> profiles;        // beside the built-in families; matched by artifact
  std::optional<std::string> artifact;  // artifact_identity() or what the caller knows
  std::set<std::string> capabilities = build_capabilities();
};

struct Resolved {
  Profile profile;
  std::optional<std::string> artifact;
  std::string config_fingerprint;
  bool exact = false;
};

// The exact profile of the artifact, else the first family of the ladder that takes the configuration. Throws
// Error{invalid_input} for a malformed profile, Error{unsupported} for one that cannot be honoured: an exact
// profile is never replaced by a family's.
Resolved resolve_profile(const ModelConfig& config, const CanonicalRecord& record,
                         const ResolveOptions& options = {});
// Throws Error{unsupported} when `resolved` is of another configuration or artifact.
void assert_resolved(const ModelConfig& config, const CanonicalRecord& record, const Resolved& resolved);

struct Implementation {
  std::string id, graph, loader, loop = "autoregressive";
};

class Registry {
 public:
  // Throws Error{invalid_input} for an empty id, or one that is there already for the same loader.
  explicit Registry(std::span<const Implementation> implementations);
  static const Registry& built_in();
  Registry with(std::span<const Implementation> implementations) const;  // this one stays as it is

  // Throws Error{unsupported} naming profile and implementation when it is not registered or of another
  // graph, loader or loop. The reference lives as long as the registry.
  const Implementation& select(const Resolved& resolved) const;

 private:
  std::vector<Implementation> list_;
};

// "targeted", "generic" or "none" by name alone (10.1); never throws.
std::string_view support_tier(std::string_view model_type, std::string_view repository);
// Whether a configuration can be opened; never throws.
bool is_supported(const nlohmann::json& config);

}  // namespace kvasir::models
