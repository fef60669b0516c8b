#include "cli/image_input.h"

#include "base/ascii.h"
#include "base/error.h"
#include "cli/starter_models.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "hub/cache.h"
#include "hub/select.h"
#include "hub/settings.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfig = size_t{64} << 20;

std::optional<std::string> of_config(const fs::path& file) {
  const nlohmann::json config = formats::read_json_file(file, kMostConfig);
  const auto vision = config.is_object() ? config.find("vision_config") : config.end();
  if (!config.is_object() || vision == config.end() || !vision->is_object()) return std::nullopt;
  const auto type = vision->find("model_type");
  return type != vision->end() && type->is_string() ? type->get<std::string>() : std::string();
}

// A file of architecture "clip": of images unless it says that it has only ears.
std::optional<std::string> of_projector(const fs::path& file) {
  const formats::GgufFile gguf = formats::GgufFile::open(file);
  if (gguf.find_string("general.architecture") != "clip") return std::nullopt;
  if (!gguf.find_bool("clip.has_vision_encoder").value_or(!gguf.find_bool("clip.has_audio_encoder")))
    return std::nullopt;
  for (const char* key : {"clip.vision.projector_type", "clip.projector_type"})
    if (const auto type = gguf.find_string(key)) return std::string(*type);
  return std::string();
}

std::optional<std::string> of_gguf(const fs::path& file) {
  if (const auto projector = of_projector(file)) return projector;  // the model is one itself
  const formats::GgufFile gguf = formats::GgufFile::open(file);
  const std::string architecture(gguf.find_string("general.architecture").value_or(""));
  if (gguf.find(architecture + ".vision.block_count") == nullptr) return std::nullopt;
  return std::string();
}

template <typename Reader>
std::optional<std::string> readable(const Reader& reader, const fs::path& file) {
  try {
    return reader(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// "gemma-3-4b-it" of "gemma-3-4b-it-Q4_K_M.gguf".
std::string bare_name(const fs::path& file, const std::string& quant) {
  std::string name = ascii_lower(file.stem().string());
  if (const size_t at = quant.empty() ? std::string::npos : name.rfind(ascii_lower(quant));
      at != std::string::npos)
    name.resize(at);
  while (!name.empty() && (name.back() == '-' || name.back() == '.' || name.back() == '_')) name.pop_back();
  return name;
}

std::optional<std::string> beside(const hub::LocalModel& model, const fs::path& folder) {
  const bool mixed = model.store == hub::Store::kvasir && folder == models_folder();
  const std::string name = bare_name(model.path, model.quant);
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string file = ascii_lower(at->path().filename().string());
    if (!file.ends_with(".gguf") || file.find("mmproj") == std::string::npos) continue;
    if (mixed && (name.empty() || file.find(name) == std::string::npos)) continue;
    if (const auto found = readable(of_projector, at->path())) return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> image_input(const hub::LocalModel& model) {
  const bool folder = model.files.empty() || model.files.front() != model.path;
  if (!model.projector.empty())
    if (const auto found = readable(of_projector, model.projector)) return found;
  if (folder && model.store != hub::Store::ollama) return readable(of_config, model.path / "config.json");
  if (const auto found = readable(of_gguf, model.path)) return found;
  if (model.store == hub::Store::ollama) return std::nullopt;
  const fs::path parent = model.path.parent_path();
  if (const auto found = beside(model, parent)) return found;
  if (model.store != hub::Store::huggingface) return std::nullopt;
  const fs::path top = hub::HubCache(hub::cache_folder()).snapshot(model.repo, model.commit);
  return top == parent ? std::nullopt : beside(model, top);
}

}  // namespace kvasir::cli
