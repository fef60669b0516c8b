// `kvasir rm`: removes a model's files, and of the Hugging Face cache what no other snapshot uses.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "cli/command.h"
#include "cli/model_names.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/removal.h"
#include "hub/settings.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

struct RmFlags {
  std::string model;
  bool yes = false;
  bool force = false;
  bool dry_run = false;
  bool json = false;
};

// Of a repository of the cache: the files of `models`, snapshots that hold nothing else, and the blobs that
// nothing else links to. With all that ls lists of it, the repository goes whole, snapshots without weights
// included.
Removal from_cache(const hub::HubCache& cache, const std::vector<hub::LocalModel>& all,
                   const std::vector<const hub::LocalModel*>& models) {
  const std::string& name = models.front()->repo;
  const fs::path repo = cache.repo_folder(name), snapshots = repo / "snapshots";
  std::map<std::string, size_t> left;  // models by commit that stay
  for (const hub::LocalModel& model : all)
    if (model.store == hub::Store::huggingface && model.repo == name) ++left[model.commit];
  for (const hub::LocalModel* model : models) --left[model->commit];
  Removal removal;
  if (std::all_of(left.begin(), left.end(), [](const auto& entry) { return entry.second == 0; })) {
    // What ls could not read is not of what it lists.
    if (const std::string unread = why_unread(repo); !unread.empty())
      throw_error(ErrorCode::invalid_input, "{}: nothing is removed: {}", name, unread);
    removal.trees = {repo, cache.lock_file(name, "x").parent_path()};
    return removal;
  }
  if (const std::string unclear = why_unclear(cache, name); !unclear.empty())
    throw_error(ErrorCode::invalid_input, "{}: it cannot be told what else uses its blobs: {}", name,
                unclear);
  const std::map<fs::path, fs::path> links = links_below(snapshots);
  std::set<fs::path> gone;
  for (const hub::LocalModel* model : models) gone.insert(model->files.begin(), model->files.end());
  for (const auto& [commit, count] : left) {
    if (count > 0 || commit.empty()) continue;  // none: of a download that has not ended
    const std::string inside = cache.snapshot(name, commit).string() + "/";
    for (const auto& [link, blob] : links)
      if (link.string().starts_with(inside)) gone.insert(link);
    removal.commits.insert(commit);
  }
  std::set<fs::path> kept, blobs;
  for (const auto& [link, blob] : links)
    if (!gone.contains(link)) kept.insert(blob);
  for (const fs::path& link : gone) {
    removal.files.push_back(link);
    for (fs::path folder = link.parent_path(); folder.string().size() > snapshots.string().size();
         folder = folder.parent_path())
      removal.folders.push_back(folder);
    const auto at = links.find(link);
    if (at == links.end() || at->second == link) continue;
    if (kept.contains(at->second))
      removal.shared.insert(at->second);
    else if (at->second.parent_path() == repo / "blobs")
      blobs.insert(at->second);
  }
  removal.files.insert(removal.files.end(), blobs.begin(), blobs.end());
  removal.refs = repo / "refs";
  return removal;
}

Removal from_folder(const std::vector<hub::LocalModel>& all,
                    const std::vector<const hub::LocalModel*>& models, const fs::path& root) {
  Removal removal;
  for (const hub::LocalModel* model : models) {
    std::error_code ignored;
    if (fs::is_directory(model->path, ignored)) {
      const std::string inside = model->path.string() + "/";
      for (const hub::LocalModel& other : all)
        if (other.path.string().starts_with(inside) &&
            std::find(models.begin(), models.end(), &other) == models.end())
          throw_error(ErrorCode::invalid_input, "{}: {} lies in its folder: remove or move that first",
                      printable(model->name), printable(other.name));
      removal.trees.push_back(model->path);
      continue;
    }
    for (const fs::path& file : model->files) removal.files.push_back(file);
    for (fs::path folder = model->path.parent_path();
         folder != root && folder.string().size() > root.string().size(); folder = folder.parent_path())
      removal.folders.push_back(folder);
  }
  return removal;
}

// Ollama: the manifest, and the blob when no other manifest names it. Its small layers (template, licence)
// stay: `ollama` prunes them itself.
Removal from_ollama(const std::vector<hub::LocalModel>& all, const hub::LocalModel& model) {
  Removal removal;
  removal.files.push_back(model.files.front());
  const bool shared = std::any_of(all.begin(), all.end(), [&](const hub::LocalModel& other) {
    return &other != &model && other.store == hub::Store::ollama && other.path == model.path;
  });
  if (shared)
    removal.shared.insert(model.path);
  else if (model.path != model.files.front())
    removal.files.push_back(model.path);
  return removal;
}

// The models that NAME means: one, or all of a repository (a revision of it) that is named without more.
std::vector<const hub::LocalModel*> find(const std::vector<hub::LocalModel>& all, const std::string& name) {
  std::vector<const hub::LocalModel*> found = models_called(all, name);
  const std::optional<hub::ModelReference> reference = hub::parse_reference(name);
  if (reference && reference->quant.empty() && reference->file.empty() && reference->revision.empty()) {
    std::vector<const hub::LocalModel*> repo;
    for (const hub::LocalModel& model : all)
      if (model.repo == reference->repo) repo.push_back(&model);
    if (!repo.empty()) found = repo;
  } else if (reference && !reference->revision.empty() && reference->quant.empty() &&
             reference->file.empty()) {
    const hub::HubCache cache(hub::cache_folder());
    const auto snapshot = cache.find_snapshot(reference->repo, reference->revision);
    found.clear();
    for (const hub::LocalModel& model : all)
      if (snapshot && model.repo == reference->repo && model.commit == snapshot->filename())
        found.push_back(&model);
  } else if (reference && found.empty()) {
    // A link, or a name in other letters than ls prints.
    const std::string text = reference->text();
    found = models_called(all, text);
  }
  if (found.empty())
    throw_error(ErrorCode::not_found, "{}: no such model here (`kvasir ls` lists them)", printable(name));
  std::set<std::string> repos;
  for (const hub::LocalModel* model : found)
    repos.insert(
        fmt::format("{} {}", hub::name(model->store), model->repo.empty() ? model->name : model->repo));
  if (repos.size() > 1) {
    std::string list;
    for (const hub::LocalModel* model : found)
      list += fmt::format("{}  {}  {}", list.empty() ? "" : "\n", model->name, model->path.string());
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: {} models have this name: give the full name", printable(name), found.size()),
        std::move(list));
  }
  return found;
}

int rm(const RmFlags& flags) {
  const std::vector<hub::LocalModel> all = local_models();
  const std::vector<const hub::LocalModel*> found = find(all, flags.model);
  const hub::Store store = found.front()->store;
  const hub::HubCache cache(hub::cache_folder());
  Removal removal;
  std::vector<hub::FileLock> locks;
  if (store == hub::Store::huggingface) {
    if (!lock_blobs(cache, found.front()->repo, locks))
      throw_error(ErrorCode::invalid_input, "{}: is being fetched right now: wait, or stop the other process",
                  found.front()->repo);
    const std::string used = why_used_elsewhere(cache, found.front()->repo, cache_links(cache));
    if (!used.empty())
      throw_error(ErrorCode::invalid_input, "{}: nothing is removed: {}", found.front()->repo, used);
    removal = from_cache(cache, all, found);
  } else if (store == hub::Store::ollama) {
    removal = from_ollama(all, *found.front());
  } else {
    const fs::path model = found.front()->path;
    removal = from_folder(all, found,
                          store == hub::Store::lm_studio ? model.parent_path().parent_path().parent_path()
                                                         : model.parent_path());
  }
  const uint64_t bytes = freed_bytes(removal), shared = bytes_of(removal.shared);
  const bool foreign = store == hub::Store::ollama || store == hub::Store::lm_studio;
  if (foreign && !flags.force)
    throw_error(ErrorCode::invalid_input, "{}: these files are {}'s ({}): remove them there, or with --force",
                printable(flags.model), store == hub::Store::ollama ? "Ollama" : "LM Studio",
                printable(found.front()->path.string()));
  std::vector<std::string> names;
  for (const hub::LocalModel* model : found) names.push_back(printable(model->name));
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  const std::string what = fmt::format(
      "{} ({}{})", list, size_text(bytes),
      shared > 0 ? fmt::format("; {} more stay: another model uses them", size_text(shared)) : "");
  if (!flags.yes || flags.dry_run) {
    if (flags.json)
      print_json({{"removed", false}, {"models", names}, {"freed_bytes", bytes}});
    else
      std::printf("would remove %s\n", what.c_str());
    if (!flags.dry_run) std::fprintf(stderr, "kvasir: nothing was removed: --yes does it\n");
    return kExitDone;
  }
  carry_out(removal);
  if (flags.json)
    print_json({{"removed", true}, {"models", names}, {"freed_bytes", bytes}});
  else
    std::printf("removed %s: %s freed\n", list.c_str(), size_text(bytes).c_str());
  return kExitDone;
}

}  // namespace

void add_rm(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<RmFlags>();
  CLI::App* command = app.add_subcommand("rm", "Remove a model from this machine");
  add_text(*command, "NAME", flags->model, kModelValue,
           "As `kvasir ls` prints it; org/name alone means all of the repository")
      ->required();
  CLI::Option* yes = command->add_flag("--yes,-y", flags->yes, "Do it; without this, only say what would go");
  command->add_flag("--force", flags->force, "Also files that belong to Ollama or LM Studio");
  command->add_flag("--dry-run", flags->dry_run, "Only say what would be freed, on purpose")->excludes(yes);
  add_json(*command, flags->json);
  command->footer(
      "Examples:\n"
      "  kvasir rm unsloth/Qwen3-4B-GGUF:Q8_0  one quantization\n"
      "  kvasir rm org/name --yes              a repository with all its revisions\n"
      "Content that another revision uses stays.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return rm(*flags); }; });
}

}  // namespace kvasir::cli
