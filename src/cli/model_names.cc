#include "cli/model_names.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <optional>

#include "base/ascii.h"
#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/starter_models.h"
#include "hub/settings.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

// "org/name:tag@rev" -> "name:tag@rev".
std::string_view last_part(std::string_view name) {
  const size_t end = name.find_first_of(":@");
  const size_t slash = name.substr(0, end).rfind('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

std::string_view without_tag(std::string_view name) {
  return name.substr(0, name.find(':'));
}

std::vector<hub::LocalModel> own_models() {
  std::vector<hub::LocalModel> out = hub::scan_folder(models_folder());
  for (hub::LocalModel& model : out)
    for (const StarterModel& starter : starter_models())
      if (model.path.filename() == starter.file_name) model.name = std::string(starter.short_name);
  return out;
}

// A reference to a repository: the cache, then LM Studio.
std::optional<fs::path> resolve_reference(const hub::ModelReference& reference) {
  const hub::HubCache cache(hub::cache_folder());
  if (const auto snapshot = cache.find_snapshot(reference.repo, reference.revision)) {
    const auto models = hub::scan_repository(cache, reference.repo, snapshot->filename().string());
    if (const hub::LocalModel* model = hub::choose(models, reference)) return model->path;
  }
  if (!reference.revision.empty()) return std::nullopt;
  for (const fs::path& folder : hub::lm_studio_folders()) {
    std::vector<hub::LocalModel> models;
    for (hub::LocalModel& model : hub::scan_lm_studio(folder))
      if (equal_ignoring_case(model.repo, reference.repo)) models.push_back(std::move(model));
    if (const hub::LocalModel* model = hub::choose(models, reference)) return model->path;
  }
  return std::nullopt;
}

// Names that hold the text somewhere, for messages.
std::string similar_names(const std::vector<hub::LocalModel>& models, std::string_view text) {
  const std::string wanted = ascii_lower(last_part(without_tag(text)));
  std::string list;
  int count = 0;
  for (const hub::LocalModel& model : models)
    if (wanted.size() >= 3 && ascii_lower(model.name).find(wanted) != std::string::npos && ++count <= 8)
      list += "\n  " + model.name;
  return list.empty() ? list : "Here are:" + list;
}

}  // namespace

std::vector<hub::LocalModel> local_models() {
  std::vector<hub::LocalModel> out = own_models();
  const auto add = [&out](std::vector<hub::LocalModel> models) {
    for (hub::LocalModel& model : models) out.push_back(std::move(model));
  };
  add(hub::scan_huggingface(hub::HubCache(hub::cache_folder())));
  for (const fs::path& folder : hub::lm_studio_folders()) add(hub::scan_lm_studio(folder));
  for (const fs::path& folder : hub::ollama_folders()) add(hub::scan_ollama(folder));
  return out;
}

std::vector<const hub::LocalModel*> models_called(const std::vector<hub::LocalModel>& models,
                                                  std::string_view text) {
  const std::string wanted = ascii_lower(text);
  std::vector<const hub::LocalModel*> full, partial;
  for (const hub::LocalModel& model : models) {
    const std::string name = ascii_lower(model.name);
    // Ollama's tag is "latest" when none is written.
    if (name == wanted || (model.store == hub::Store::ollama && name == wanted + ":latest"))
      full.push_back(&model);
    const std::string_view part = last_part(name);
    if (part == wanted || without_tag(part) == wanted) partial.push_back(&model);
  }
  return full.empty() ? partial : full;
}

fs::path resolve_model(const std::string& model) {
  if (model.empty())
    throw_error(
        ErrorCode::invalid_input,
        "MODEL is missing: give a GGUF file, a model folder or a short name (`kvasir ls` lists them)");
  std::error_code ignored;
  // A path that exists wins.
  if (fs::exists(model, ignored)) return model;
  if (const StarterModel* starter = find_starter(model)) {
    const fs::path file = models_folder() / starter->file_name;
    if (fs::exists(file, ignored)) return file;
    throw_error(ErrorCode::not_found, "model {} has not been fetched: run `kvasir get {}` ({} MB)", model,
                model, starter->bytes / 1000000);
  }
  std::optional<hub::ModelReference> reference;
  const bool looks_like_path = model.front() == '/' || model.front() == '.' || model.front() == '~';
  if (!looks_like_path) reference = hub::parse_reference(model);
  if (reference)
    if (const std::optional<fs::path> path = resolve_reference(*reference)) return *path;
  std::vector<hub::LocalModel> models;
  if (!looks_like_path) {
    models = local_models();
    std::vector<const hub::LocalModel*> found = models_called(models, model);
    // What is here as a whole comes before what is not.
    const auto whole = [](const hub::LocalModel* one) { return !one->incomplete; };
    if (std::any_of(found.begin(), found.end(), whole))
      std::erase_if(found, [&](const hub::LocalModel* one) { return !whole(one); });
    if (found.size() == 1 || (!found.empty() && found.front()->path == found.back()->path)) {
      const bool ollama = found.front()->store == hub::Store::ollama;
      if (found.front()->incomplete)
        throw_error(ErrorCode::not_found, "{}: is not here as a whole: run `kvasir get {}`, which goes on",
                    printable(model), printable(found.front()->repo));
      if (ollama && !found.front()->problem.empty())
        throw_error(found.front()->problem_code, "{}: {}", printable(model), found.front()->problem);
      return found.front()->path;
    }
    if (!found.empty()) {
      std::string list;
      for (const hub::LocalModel* one : found)
        list += fmt::format("{}  {}  {}", list.empty() ? "" : "\n", one->name, one->path.string());
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: {} models have this name: give the full name or the path",
                              printable(model), found.size()),
                  std::move(list));
    }
  }
  if (reference) {
    const std::string name = reference->is_link ? reference->text() : model;
    throw Error(ErrorCode::not_found,
                model.ends_with(".gguf") && !reference->is_link
                    ? fmt::format("{}: no such file (one of a repository on the hub: `kvasir get {}`)",
                                  printable(model), printable(name))
                    : fmt::format("model {} is not on this machine: run `kvasir get {}`", printable(model),
                                  printable(name)),
                similar_names(models, model));
  }
  std::vector<std::string> names = starter_names();
  const std::string known = fmt::format("{}", fmt::join(names, ", "));
  for (const hub::LocalModel& one : models) names.push_back(one.name);
  throw Error(
      ErrorCode::not_found,
      fmt::format("{}: no such file, folder or model{} (short names: {}; `kvasir ls` lists what is here)",
                  printable(model), did_you_mean(nearest_name(model, names)), known),
      similar_names(models, model));
}

}  // namespace kvasir::cli
