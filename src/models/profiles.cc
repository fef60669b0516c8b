#include "models/profiles.h"

#include <algorithm>
#include <iterator>

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

constexpr std::string_view kGraphs[] = {"gemma3", "minicpm5", "qwen3", "qwen3-moe", "universal-dense"};

bool blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string join(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

// The family whose graph takes the configuration.
std::string_view graph_of(const ModelConfig& m) {
  if (is_minicpm5(m)) return "minicpm5";
  if (m.model_type == "qwen3_moe") return "qwen3-moe";
  if (m.model_type == "qwen3") return "qwen3";
  if (m.model_type == "gemma3_text") return "gemma3";
  return "universal-dense";
}

// A dedicated graph takes its own family; the universal one every row of the descriptor table.
bool graph_accepts(std::string_view graph, const ModelConfig& m) {
  return graph == graph_of(m) || (graph == "universal-dense" && find_descriptor(m.model_type) != nullptr);
}

[[noreturn]] void bad_profile(const Profile& profile, std::string_view rule) {
  throw_error(ErrorCode::invalid_input, "profile {}: {}", printable(profile.id), rule);
}

void validate(const Profile& p) {
  if (blank(p.id)) throw_error(ErrorCode::invalid_input, "profile: id must not be empty");
  if (p.artifact.has_value() != p.config_fingerprint.has_value())
    bad_profile(p, "artifact and config_fingerprint: expected both or neither");
  const Fidelity& f = p.fidelity;
  const bool first = f.tier == "L1" &&
                     (f.oracle == "transformers" || f.oracle == "mlx-lm" || f.oracle == "llama.cpp") &&
                     (f.claim == "bit-exact" || f.claim == "tolerance");
  const bool second = f.tier == "L2" && f.oracle == "mlx-optiq" && f.claim == "bit-exact";
  const bool third = f.tier == "L3" && f.oracle.empty() && f.claim == "measured";
  if (!first && !second && !third)
    bad_profile(p, fmt::format("fidelity ({}, {}, {}) is none of those that exist", printable(f.tier),
                               printable(f.oracle), printable(f.claim)));
  const Execution& e = p.execution;
  const auto one_of = [](std::string_view text, std::initializer_list<std::string_view> list) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (!one_of(e.loader, {"safetensors", "gguf", "colibri"}) ||
      !one_of(e.loop, {"autoregressive", "diffusion"}) ||
      !one_of(e.specialization, {"artifact", "dedicated", "generated", "generic"}) || blank(e.graph))
    bad_profile(p, "execution: unknown loader, loop, specialization or graph");
  if ((e.graph == "glm5.2") != (e.loader == "colibri"))
    bad_profile(p, "graph glm5.2 and loader colibri belong together");
  if ((e.graph == "diffusion-gemma") != (e.loop == "diffusion"))
    bad_profile(p, "graph diffusion-gemma and loop diffusion belong together");
  for (const std::string& implied : implied_capabilities(e))
    if (!p.required_capabilities.contains(implied))
      bad_profile(p, fmt::format("required_capabilities lack {}, which its execution implies", implied));
}

Profile family_profile(const ModelConfig& config) {
  Profile profile;
  Execution& execution = profile.execution;
  execution.graph = graph_of(config);
  execution.loader = config.gguf ? "gguf" : "safetensors";
  const bool universal = execution.graph == "universal-dense";
  execution.specialization = universal ? "generic" : "dedicated";
  profile.id = universal ? execution.graph : execution.graph + "-dedicated";
  profile.required_capabilities = implied_capabilities(execution);
  return profile;
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

std::set<std::string> implied_capabilities(const Execution& execution) {
  std::set<std::string> out = {execution.loader == "colibri" ? "colibri-container" : execution.loader,
                               execution.loop, execution.graph + "-graph"};
  if (execution.graph == "qwen3.5") out.insert("recurrent-state");
  if (execution.graph == "glm5.2") out.insert("streamed-experts");
  if (execution.specialization == "generated") out.insert("generated-graph");
  return out;
}

std::set<std::string> build_capabilities() {
  std::set<std::string> out = {"autoregressive", "safetensors", "gguf", "mixed-precision-kv"};
  for (const std::string_view graph : kGraphs) out.insert(std::string(graph) + "-graph");
  return out;
}

Resolved resolve_profile(const ModelConfig& config, const CanonicalRecord& record,
                         const ResolveOptions& options) {
  std::set<std::string> ids = {"universal-dense"};
  for (const std::string_view graph : kGraphs) ids.insert(std::string(graph) + "-dedicated");
  for (const Profile& profile : options.profiles) {
    validate(profile);
    if (!ids.insert(profile.id).second) bad_profile(profile, "id: a profile of this id exists");
  }
  Resolved out;
  out.artifact = options.artifact;
  out.config_fingerprint = config_fingerprint(record);
  std::vector<const Profile*> matches;
  if (options.artifact)
    for (const Profile& profile : options.profiles)
      if (profile.artifact == options.artifact) matches.push_back(&profile);
  if (matches.size() > 1) {
    std::string list;
    for (const Profile* profile : matches) list += (list.empty() ? "" : ", ") + printable(profile->id);
    throw_error(ErrorCode::invalid_input, "artifact {}: more than one exact profile: {}",
                printable(*options.artifact), list);
  }
  if (matches.empty()) {
    out.profile = family_profile(config);
  } else {
    out.profile = *matches.front();
    out.exact = true;
    if (out.profile.config_fingerprint != out.config_fingerprint)
      throw_error(ErrorCode::unsupported,
                  "profile {}: it is for configuration {}, the file has {}; refusing to fall back",
                  printable(out.profile.id), printable(*out.profile.config_fingerprint),
                  out.config_fingerprint);
  }
  const Execution& execution = out.profile.execution;
  std::set<std::string> missing;
  std::set_difference(out.profile.required_capabilities.begin(), out.profile.required_capabilities.end(),
                      options.capabilities.begin(), options.capabilities.end(),
                      std::inserter(missing, missing.begin()));
  if (!missing.empty())
    throw_error(ErrorCode::unsupported, "profile {}: this build lacks {}; refusing to fall back",
                printable(out.profile.id), join(missing));
  if (!graph_accepts(execution.graph, config))
    throw_error(ErrorCode::unsupported,
                "profile {}: graph {} does not take a {} model; refusing to fall back",
                printable(out.profile.id), printable(execution.graph), printable(config.model_type));
  if ((execution.loader == "gguf") != config.gguf)
    throw_error(ErrorCode::unsupported, "profile {}: its loader is {}, the file is {}; refusing to fall back",
                printable(out.profile.id), execution.loader, config.gguf ? "gguf" : "safetensors");
  return out;
}

void assert_resolved(const ModelConfig& config, const CanonicalRecord& record, const Resolved& resolved) {
  const std::string fingerprint = config_fingerprint(record);
  if (fingerprint != resolved.config_fingerprint)
    throw_error(ErrorCode::unsupported, "profile {}: resolved for configuration {}, used with {}",
                printable(resolved.profile.id), resolved.config_fingerprint, fingerprint);
  if (!graph_accepts(resolved.profile.execution.graph, config))
    throw_error(ErrorCode::unsupported, "profile {}: graph {} does not take a {} model",
                printable(resolved.profile.id), resolved.profile.execution.graph,
                printable(config.model_type));
  if (resolved.exact && resolved.profile.artifact != resolved.artifact)
    throw_error(ErrorCode::unsupported, "profile {}: it is of another artifact",
                printable(resolved.profile.id));
}

Registry::Registry(std::span<const Implementation> implementations) {
  for (const Implementation& entry : implementations) {
    if (blank(entry.id)) throw_error(ErrorCode::invalid_input, "implementation id must not be empty");
    for (const Implementation& other : list_)
      if (other.id == entry.id && other.loader == entry.loader)
        throw_error(ErrorCode::invalid_input, "duplicate implementation {} (loader {})", printable(entry.id),
                    printable(entry.loader));
    list_.push_back(entry);
  }
}

const Registry& Registry::built_in() {
  static const Registry kRegistry = [] {
    std::vector<Implementation> list;
    for (const std::string_view graph : kGraphs)
      for (const char* loader : {"safetensors", "gguf"})
        list.push_back({std::string(graph), std::string(graph), loader});
    return Registry(list);
  }();
  return kRegistry;
}

Registry Registry::with(std::span<const Implementation> implementations) const {
  std::vector<Implementation> all = list_;
  all.insert(all.end(), implementations.begin(), implementations.end());
  return Registry(all);
}

const Implementation& Registry::select(const Resolved& resolved) const {
  const Profile& profile = resolved.profile;
  const Execution& execution = profile.execution;
  const bool generated = execution.specialization == "generated";
  const std::string id = !execution.implementation.empty() ? execution.implementation
                         : generated                       ? execution.graph + "-generated"
                                                           : execution.graph;
  const Implementation* found = nullptr;  // of the wanted loader, else any of that id
  for (const Implementation& entry : list_)
    if (entry.id == id && (found == nullptr || entry.loader == execution.loader)) found = &entry;
  if (found == nullptr)
    throw_error(ErrorCode::unsupported,
                "profile {}: implementation {} is unavailable in this build{}; refusing to fall back",
                printable(profile.id), printable(id),
                generated ? fmt::format(" for configuration {}", resolved.config_fingerprint) : "");
  const auto must_equal = [&](std::string_view field, const std::string& expected, const std::string& got) {
    if (expected != got)
      throw_error(
          ErrorCode::unsupported,
          "profile {}: implementation {} is incompatible: {}: expected {}, got {}; refusing to fall back",
          printable(profile.id), printable(id), field, printable(expected), printable(got));
  };
  must_equal("graph", execution.graph, found->graph);
  must_equal("loader", execution.loader, found->loader);
  must_equal("loop", execution.loop, found->loop);
  return *found;
}

std::string_view support_tier(std::string_view model_type, std::string_view repository) {
  if (model_type.ends_with("_assistant")) return "none";
  const std::string mapped = remapped(model_type);
  if (std::find(std::begin(kTargeted), std::end(kTargeted), mapped) != std::end(kTargeted)) return "targeted";
  std::string lower(repository);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (model_type == "llama" && lower.find("minicpm5-1b-optiq-4bit") != lower.npos) return "targeted";
  return find_descriptor(mapped) != nullptr ? "generic" : "none";
}

bool is_supported(const nlohmann::json& config) {
  try {
    parse_config(config, nullptr, "config.json");
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace kvasir::models
