#include "hub/local_stores.h"

#include <algorithm>
#include <map>

#include "base/ascii.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/json.h"
#include "hub/headers.h"
#include "hub/select.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOllamaRegistry = "registry.ollama.ai";
constexpr std::string_view kOllamaModel = "application/vnd.ollama.image.model";
constexpr std::string_view kOllamaProjector = "application/vnd.ollama.image.projector";

struct Tree {
  std::vector<RemoteFile> files;    // paths relative to the folder, sorted; links followed
  std::vector<std::string> broken;  // links to nothing
};

// Files below a folder, links to files followed, links to folders not.
void walk(const fs::path& folder, const std::string& prefix, int depth, Tree* out) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = prefix + at->path().filename().string();
    std::error_code ignored;
    if (!at->is_symlink(ignored) && at->is_directory(ignored)) {
      if (depth > 0) walk(at->path(), name + "/", depth - 1, out);
    } else if (at->is_regular_file(ignored)) {
      RemoteFile file;
      file.path = name;
      file.size = at->file_size(ignored);
      out->files.push_back(std::move(file));
    } else if (at->is_symlink(ignored) && !fs::exists(at->path(), ignored)) {
      out->broken.push_back(name);
    }
  }
}

Tree files_below(const fs::path& folder) {
  Tree tree;
  walk(folder, "", kStoreDepth, &tree);
  std::sort(tree.files.begin(), tree.files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  std::sort(tree.broken.begin(), tree.broken.end());
  return tree;
}

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return path.ends_with(e); });
}

LocalModel gguf_model(const GgufGroup& group, const fs::path& folder) {
  LocalModel model;
  model.quant = group.quant;
  model.bytes = group.bytes;
  for (const RemoteFile& part : group.parts) model.files.push_back(folder / part.path);
  model.path = model.files.front();
  if (!group.complete) model.problem = "parts of the split model are missing";
  model.problem_by_name = !group.complete;
  return model;
}

// The models of one folder that holds a repository's files. Names are left to the caller.
std::vector<LocalModel> models_in(const fs::path& folder) {
  std::vector<LocalModel> out;
  const Tree tree = files_below(folder);
  LocalModel weights;
  bool has_safetensors = false, has_config = false, has_other = false;
  uint64_t bytes = 0;
  for (const RemoteFile& file : tree.files) {
    has_config |= file.path == "config.json";
    const bool root = file.path.find('/') == std::string::npos;
    has_safetensors |= root && file.path.ends_with(".safetensors");
    has_other |=
        ends_with_any(file.path, {".bin", ".pth", ".pt", ".onnx", ".h5", ".msgpack", ".npz", ".ckpt"});
    bytes += file.path.ends_with(".gguf") ? 0 : file.size;
  }
  std::string missing;
  for (const std::string& name : tree.broken)
    if (missing.empty() && (name.ends_with(".safetensors") || name.ends_with(".json"))) missing = name;
  if (has_safetensors || (has_other && has_config)) {
    weights.path = folder;
    weights.bytes = bytes;
    for (const RemoteFile& file : tree.files)
      if (!file.path.ends_with(".gguf")) weights.files.push_back(folder / file.path);
    for (const std::string& name : tree.broken) weights.files.push_back(folder / name);
    if (!has_safetensors) weights.problem = "no safetensors weights";
    if (!has_config) weights.problem = "no config.json";
    if (!missing.empty()) weights.problem = "incomplete: " + printable(missing) + " is missing";
    out.push_back(std::move(weights));
  }
  for (const GgufGroup& group : gguf_groups(tree.files)) out.push_back(gguf_model(group, folder));
  return out;
}

std::string stem_of(const fs::path& path) {
  std::string name = path.filename().string();
  std::string stem;
  uint32_t number = 0, count = 0;
  if (split_part(name, &stem, &number, &count)) return stem;
  return name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
}

// "org/name:QUANT" where that is one model, else "org/name/path".
void name_models(std::vector<LocalModel>* models, const std::string& repo, const std::string& suffix,
                 const fs::path& folder) {
  std::map<std::string, int> quants;
  for (const LocalModel& model : *models) ++quants[model.quant];
  for (LocalModel& model : *models) {
    model.repo = repo;
    if (model.path == folder)
      model.name = repo;
    else if (!model.quant.empty() && quants[model.quant] == 1)
      model.name = repo + ":" + model.quant;
    else
      model.name = repo + "/" + model.path.lexically_relative(folder).string();
    model.name += suffix;
  }
}

std::vector<fs::path> existing(std::initializer_list<fs::path> folders) {
  std::vector<fs::path> out;
  std::error_code ignored;
  for (const fs::path& folder : folders)
    if (fs::is_directory(folder, ignored)) out.push_back(folder);
  return out;
}

}  // namespace

std::string_view name(Store store) {
  switch (store) {
    case Store::kvasir:
      return "kvasir";
    case Store::huggingface:
      return "huggingface";
    case Store::lm_studio:
      return "lmstudio";
    case Store::ollama:
      return "ollama";
  }
  return "unknown";
}

std::vector<LocalModel> scan_repository(const HubCache& cache, const std::string& repo,
                                        const std::string& commit) {
  // Which refs name which commit.
  std::map<std::string, std::string> ref_of;
  const Tree refs = files_below(cache.repo_folder(repo) / "refs");
  for (const RemoteFile& file : refs.files)
    if (const auto named = cache.read_ref(repo, file.path))
      if (file.path == "main" || !ref_of.contains(*named)) ref_of[*named] = file.path;
  const bool has_main = cache.read_ref(repo, "main").has_value();
  std::vector<LocalModel> out;
  const std::vector<std::string> commits = cache.snapshots(repo);
  std::string canonical;  // the snapshot of main, else the newest, if it holds models
  for (const std::string& at : commits) {
    if (!commit.empty() && at != commit) continue;
    const auto ref = ref_of.find(at);
    const bool plain = has_main ? ref != ref_of.end() && ref->second == "main" : at == commits.front();
    const std::string suffix = plain ? std::string() : "@" + (ref != ref_of.end() ? ref->second : at);
    const fs::path folder = cache.snapshot(repo, at);
    std::vector<LocalModel> models = models_in(folder);
    name_models(&models, repo, suffix, folder);
    if (!models.empty() && (canonical.empty() || (plain && has_main))) canonical = at;
    for (LocalModel& model : models) {
      model.store = Store::huggingface;
      model.commit = at;
      out.push_back(std::move(model));
    }
  }
  for (LocalModel& model : out) model.canonical = model.commit == canonical;
  return out;
}

namespace {

// What a repository holds that is no model. Nothing: the repository's folders are empty, or all in them
// belongs to models.
std::optional<LocalModel> incomplete_download(const HubCache& cache, const std::string& repo,
                                              bool has_models) {
  LocalModel out;
  out.store = Store::huggingface;
  out.repo = repo;
  out.name = has_models ? repo + ":incomplete" : repo;
  out.path = cache.repo_folder(repo);
  out.incomplete = true;
  out.problem_code = ErrorCode::not_found;
  out.files = cache.incomplete_files(repo);
  const auto add_size = [&out](const fs::path& path) {
    std::error_code error;
    const uint64_t size = fs::file_size(path, error);
    if (!error) out.bytes += size;
  };
  const bool unfinished = !out.files.empty();
  if (has_models) {
    if (!unfinished) return std::nullopt;
    for (const fs::path& file : out.files) add_size(file);
  } else {
    for (const char* folder : {"blobs", "snapshots"})
      for (const RemoteFile& file : files_below(out.path / folder).files) {
        const fs::path path = out.path / folder / file.path;
        if (std::error_code ignored; fs::is_symlink(path, ignored)) continue;  // its blob counts
        out.bytes += file.size;
        if (!unfinished) out.files.push_back(path);
      }
    const std::vector<std::string> commits = cache.snapshots(repo);
    if (out.files.empty() && commits.empty()) return std::nullopt;
    if (commits.size() == 1) out.commit = commits.front();
  }
  out.problem = unfinished ? "incomplete: its download has not ended (`kvasir get` goes on with it)"
                           : "incomplete: its weights are not here (`kvasir get` fetches them)";
  return out;
}

}  // namespace

std::vector<LocalModel> scan_huggingface(const HubCache& cache) {
  std::vector<LocalModel> out;
  for (const std::string& repo : cache.repos()) {
    std::vector<LocalModel> models = scan_repository(cache, repo, {});
    std::optional<LocalModel> incomplete = incomplete_download(cache, repo, !models.empty());
    for (LocalModel& model : models) out.push_back(std::move(model));
    if (incomplete) out.push_back(std::move(*incomplete));
  }
  return out;
}

std::vector<LocalModel> scan_lm_studio(const fs::path& folder) {
  std::vector<LocalModel> out;
  std::error_code error;
  for (fs::directory_iterator publisher(folder, error), end; !error && publisher != end;
       publisher.increment(error)) {
    std::error_code inner;
    for (fs::directory_iterator at(publisher->path(), inner), last; !inner && at != last;
         at.increment(inner)) {
      std::error_code ignored;
      if (!at->is_directory(ignored)) continue;
      const std::string repo = publisher->path().filename().string() + "/" + at->path().filename().string();
      std::vector<LocalModel> models = models_in(at->path());
      name_models(&models, repo, {}, at->path());
      for (LocalModel& model : models) {
        model.store = Store::lm_studio;
        out.push_back(std::move(model));
      }
    }
  }
  std::sort(out.begin(), out.end(), [](const LocalModel& a, const LocalModel& b) { return a.name < b.name; });
  return out;
}

OllamaBlobs parse_ollama_manifest(std::string_view json, const std::string& where) {
  const nlohmann::json manifest = formats::parse_json(json, where);
  const auto layers = manifest.is_object() ? manifest.find("layers") : manifest.end();
  if (!manifest.is_object() || layers == manifest.end() || !layers->is_array())
    throw_error(ErrorCode::corrupt_file, "{}: no manifest: \"layers\" is missing", printable(where));
  OllamaBlobs found;
  for (const nlohmann::json& layer : *layers) {
    const nlohmann::json kind =
        layer.is_object() ? layer.value("mediaType", nlohmann::json()) : nlohmann::json();
    if (kind != kOllamaModel && kind != kOllamaProjector) continue;
    const auto digest = layer.find("digest");
    constexpr std::string_view kAlgorithm = "sha256:";
    if (digest == layer.end() || !digest->is_string() ||
        !digest->get_ref<const std::string&>().starts_with(kAlgorithm) ||
        !is_digest(digest->get_ref<const std::string&>().substr(kAlgorithm.size())))
      throw_error(ErrorCode::corrupt_file, "{}: a layer without a SHA-256 digest", printable(where));
    const std::string blob = "sha256-" + digest->get_ref<const std::string&>().substr(kAlgorithm.size());
    if (kind == kOllamaProjector) {
      found.projector = blob;
      continue;
    }
    if (!found.model.empty())
      throw_error(ErrorCode::unsupported, "{}: a model of several files", printable(where));
    found.model = blob;
  }
  if (found.model.empty())
    throw_error(ErrorCode::unsupported, "{}: no GGUF model among its layers", printable(where));
  return found;
}

std::vector<LocalModel> scan_ollama(const fs::path& folder) {
  std::vector<LocalModel> out;
  const fs::path manifests = folder / "manifests";
  for (const RemoteFile& file : files_below(manifests).files) {
    // registry / namespace / model / tag
    const fs::path relative = file.path;
    std::vector<std::string> parts;
    for (const fs::path& part : relative) parts.push_back(part.string());
    if (parts.size() < 3) continue;
    const std::string tag = parts.back();
    std::string name;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (i == 0 && parts[0] == kOllamaRegistry) continue;
      if (i == 1 && parts[0] == kOllamaRegistry && parts[1] == "library") continue;
      name += (name.empty() ? "" : "/") + parts[i];
    }
    LocalModel model;
    model.store = Store::ollama;
    model.name = name + ":" + tag;
    model.quant = quant_in_name(tag);
    try {
      const OllamaBlobs blobs = parse_ollama_manifest(read_file(manifests / relative, kManifestLimit),
                                                      (manifests / relative).string());
      model.path = folder / "blobs" / blobs.model;
      if (!blobs.projector.empty()) model.projector = folder / "blobs" / blobs.projector;
      std::error_code error;
      model.bytes = fs::file_size(model.path, error);
      if (error) {
        model.bytes = 0;
        model.problem = "its blob is missing";
        model.problem_code = ErrorCode::not_found;
      }
    } catch (const Error& error) {
      model.path = manifests / relative;
      model.problem =
          error.code() == ErrorCode::unsupported ? "not one GGUF model" : "its manifest cannot be read";
      model.problem_code = error.code();
    }
    model.files = {manifests / relative, model.path};
    out.push_back(std::move(model));
  }
  return out;
}

std::vector<LocalModel> scan_folder(const fs::path& folder) {
  std::vector<LocalModel> out;
  std::vector<RemoteFile> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (at->is_directory(ignored)) {
      for (LocalModel& model : models_in(at->path())) {
        model.name =
            model.path == at->path() ? name : name + "/" + model.path.lexically_relative(at->path()).string();
        out.push_back(std::move(model));
      }
    } else if (at->is_regular_file(ignored)) {
      RemoteFile file;
      file.path = name;
      file.size = at->file_size(ignored);
      files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  for (const GgufGroup& group : gguf_groups(files)) {
    out.push_back(gguf_model(group, folder));
    out.back().name = stem_of(out.back().path);
  }
  std::sort(out.begin(), out.end(), [](const LocalModel& a, const LocalModel& b) { return a.name < b.name; });
  return out;
}

std::vector<fs::path> ollama_folders() {
  if (const std::string folder = environment("OLLAMA_MODELS"); !folder.empty())
    return existing({expand_home(folder)});
  return existing({home_folder() / ".ollama" / "models", "/usr/share/ollama/.ollama/models"});
}

std::vector<fs::path> lm_studio_folders() {
  return existing(
      {home_folder() / ".lmstudio" / "models", home_folder() / ".cache" / "lm-studio" / "models"});
}

const LocalModel* choose(std::span<const LocalModel> models, const ModelReference& reference) {
  std::vector<const LocalModel*> found;
  for (const LocalModel& model : models) {
    if (!reference.file.empty()) {
      // A part of a split model names the model.
      for (const fs::path& file : model.files)
        if (file.string().ends_with("/" + reference.file) && model.path.string().ends_with(".gguf"))
          found.push_back(&model);
    } else if (!reference.quant.empty()) {
      if (equal_ignoring_case(model.quant, reference.quant) ||
          equal_ignoring_case(stem_of(model.path), reference.quant))
        found.push_back(&model);
    } else {
      found.push_back(&model);
    }
  }
  if (found.empty()) return nullptr;
  // Without a quantization, safetensors weights are what the repository's plain name means.
  if (found.size() > 1 && reference.quant.empty() && reference.file.empty())
    for (const LocalModel* model : found)
      if (model->files.front() != model->path && model->problem.empty()) return model;
  if (found.size() == 1) return found.front();
  std::string list;
  for (const LocalModel* model : found) list += (list.empty() ? "" : "\n") + model->name;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("{}: {} models are here: name one of them", printable(reference.text()), found.size()),
      std::move(list));
}

}  // namespace kvasir::hub
