// `kvasir gc`: of the Hugging Face cache, snapshots that no ref names and that hold nothing of their own, and
// content that no snapshot has.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/removal.h"
#include "hub/headers.h"
#include "hub/settings.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct GcFlags {
  bool yes = false;
  bool force = false;
  bool json = false;
};

// By what a file of a snapshot holds: the name of its blob. Something else than a link into blobs/ is only
// itself.
using Contents = std::map<std::string, fs::path>;  // with one of the files

struct Snapshot {
  std::string commit;
  std::vector<std::string> unique;  // files whose content no kept snapshot has
};

struct RepoPlan {
  std::string repo;
  std::string left_alone;  // why nothing of it is looked at
  std::vector<std::string> kept;
  std::vector<Snapshot> pruned, skipped;
  size_t blobs = 0;
  uint64_t bytes = 0;
  Removal removal;

  bool removes() const { return !pruned.empty() || blobs > 0; }
};

std::string content_of(const fs::path& file, const fs::path& target) {
  const std::string name = target.filename().string();
  return file != target && hub::is_digest(name) ? name : file.string();
}

// Commits that refs name. False: a file there names none.
bool read_refs(const hub::HubCache& cache, const std::string& repo, std::set<std::string>& commits) {
  const fs::path refs = cache.repo_folder(repo) / "refs";
  std::error_code error;
  fs::recursive_directory_iterator at(refs, error);
  if (error == std::errc::no_such_file_or_directory) return true;
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored)) continue;
    const auto commit = cache.read_ref(repo, at->path().lexically_relative(refs).string());
    if (!commit) return false;
    commits.insert(*commit);
  }
  return !error;
}

// Files in blobs/ that are called by a digest: not .incomplete, not .lock, not what others put there.
std::set<std::string> whole_blobs(const hub::HubCache& cache, const std::string& repo) {
  std::set<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(cache.repo_folder(repo) / "blobs", error), end; !error && at != end;
       at.increment(error))
    if (hub::is_digest(at->path().filename().string())) out.insert(at->path().filename().string());
  return out;
}

// The locks of `locks` are those of the repository's blobs as far as they have one: a download that is
// running holds one until its links are made, and a snapshot without its ref has files of its own or lacks
// nothing.
RepoPlan plan_repo(const hub::HubCache& cache, const std::string& repo, const CacheLinks& links, bool force,
                   std::vector<hub::FileLock>& locks) {
  RepoPlan plan;
  plan.repo = repo;
  std::set<std::string> refs;
  plan.left_alone = why_unclear(cache, repo);
  if (plan.left_alone.empty()) plan.left_alone = why_used_elsewhere(cache, repo, links);
  if (!plan.left_alone.empty()) return plan;
  if (!lock_blobs(cache, repo, locks)) {
    plan.left_alone = "it is being fetched right now";
    return plan;
  }
  if (!read_refs(cache, repo, refs)) {
    plan.left_alone = "a file in its refs names no commit";
    return plan;
  }
  if (refs.empty()) {
    plan.left_alone = "no ref names a snapshot of it";
    return plan;
  }
  std::map<std::string, Contents> snapshots;
  for (const std::string& commit : cache.snapshots(repo))
    for (const auto& [file, target] : links_below(cache.snapshot(repo, commit))) {
      std::error_code ignored;
      Contents& contents = snapshots[commit];
      if (fs::exists(file, ignored)) contents.emplace(content_of(file, target), file);
    }
  std::set<std::string> used;
  for (const std::string& commit : cache.snapshots(repo)) {
    if (!refs.contains(commit)) continue;
    plan.kept.push_back(commit);
    for (const auto& [content, file] : snapshots[commit]) used.insert(content);
  }
  const std::set<std::string> kept = used;
  for (const std::string& commit : cache.snapshots(repo)) {
    if (refs.contains(commit)) continue;
    Snapshot snapshot{commit, {}};
    const fs::path folder = cache.snapshot(repo, commit);
    for (const auto& [content, file] : snapshots[commit])
      if (!kept.contains(content)) snapshot.unique.push_back(file.lexically_relative(folder).string());
    if (snapshot.unique.empty() || force) {
      plan.removal.trees.push_back(folder);
      plan.pruned.push_back(std::move(snapshot));
      continue;
    }
    for (const auto& [content, file] : snapshots[commit]) used.insert(content);
    plan.skipped.push_back(std::move(snapshot));
  }
  for (const std::string& blob : whole_blobs(cache, repo))
    if (!used.contains(blob)) {
      plan.removal.files.push_back(cache.blob(repo, blob));
      ++plan.blobs;
    }
  plan.bytes = freed_bytes(plan.removal);
  return plan;
}

// A download that begins now takes the lock of a blob before it uses it: with all of them held, what is
// planned once more stays true.
RepoPlan plan_and_hold(const hub::HubCache& cache, const std::string& repo, const CacheLinks& links,
                       bool force, std::vector<hub::FileLock>& locks) {
  const RepoPlan first = plan_repo(cache, repo, links, force, locks);
  if (!first.removes()) return first;
  locks.clear();
  hub::make_folder(cache.lock_file(repo, "x").parent_path());
  for (const fs::path& blob : first.removal.files) {
    // Made, where it was not there, so that lock_blobs() finds it.
    hub::FileLock lock;
    if (!lock.try_acquire(cache.lock_file(repo, blob.filename().string()))) break;
  }
  return plan_repo(cache, repo, links, force, locks);
}

Json plan_json(const RepoPlan& plan) {
  const auto snapshots = [](const std::vector<Snapshot>& of) {
    Json list = Json::array();
    for (const Snapshot& snapshot : of)
      list.push_back({{"commit", snapshot.commit}, {"unique_files", snapshot.unique}});
    return list;
  };
  Json out = {{"repo", plan.repo}};
  if (!plan.left_alone.empty()) {
    out["left_alone"] = plan.left_alone;
    return out;
  }
  out.update({{"kept", plan.kept},
              {"pruned", snapshots(plan.pruned)},
              {"skipped", snapshots(plan.skipped)},
              {"blobs", plan.blobs},
              {"freed_bytes", plan.bytes}});
  return out;
}

void print_plan(const RepoPlan& plan) {
  const std::string repo = printable(plan.repo);
  if (!plan.left_alone.empty()) {
    std::printf("%s: left alone: %s\n", repo.c_str(), plan.left_alone.c_str());
    return;
  }
  if (plan.removes())
    std::printf("%s: %s in %zu snapshots without a ref, %zu blobs\n", repo.c_str(),
                size_text(plan.bytes).c_str(), plan.pruned.size(), plan.blobs);
  for (const Snapshot& snapshot : plan.skipped)
    std::printf(
        "%s: snapshot %s stays: %s%s %s nowhere else (--force removes it)\n", repo.c_str(),
        snapshot.commit.substr(0, 12).c_str(), printable(snapshot.unique.front()).c_str(),
        snapshot.unique.size() > 1 ? fmt::format(" and {} more", snapshot.unique.size() - 1).c_str() : "",
        snapshot.unique.size() > 1 ? "are" : "is");
}

int gc(const GcFlags& flags) {
  const hub::HubCache cache(hub::cache_folder());
  const CacheLinks links = cache_links(cache);
  uint64_t bytes = 0;
  Json repos = Json::array();
  bool any = false;
  for (const std::string& repo : cache.repos()) {
    std::vector<hub::FileLock> locks;
    const RepoPlan plan = flags.yes ? plan_and_hold(cache, repo, links, flags.force, locks)
                                    : plan_repo(cache, repo, links, flags.force, locks);
    if (flags.yes && plan.removes()) carry_out(plan.removal);
    bytes += plan.bytes;
    any = any || plan.removes();
    if (flags.json)
      repos.push_back(plan_json(plan));
    else
      print_plan(plan);
  }
  if (flags.json) {
    print_json({{"removed", flags.yes && any}, {"freed_bytes", bytes}, {"repos", repos}}, 1);
    return kExitDone;
  }
  if (!any)
    std::printf("nothing to remove in %s\n", printable(cache.root().string()).c_str());
  else
    std::printf("%s %s\n", flags.yes ? "freed" : "would free", size_text(bytes).c_str());
  if (any && !flags.yes) std::fprintf(stderr, "kvasir: nothing was removed: --yes does it\n");
  return kExitDone;
}

}  // namespace

void add_gc(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<GcFlags>();
  CLI::App* command =
      app.add_subcommand("gc", "Remove old revisions from the Hugging Face cache")->group(kMinorGroup);
  command->add_flag("--yes,-y", flags->yes, "Do it; without this, only say what would go");
  command->add_flag("--force", flags->force, "Also snapshots with files that are nowhere else");
  add_json(*command, flags->json);
  command->footer(
      "Example: kvasir gc --yes\n"
      "Snapshots that a ref names stay. Of the others those go whose files these have,\n"
      "and content that no snapshot has. A repository without refs is left alone.");
  command->callback([flags, &invocation] { invocation.work = [flags] { return gc(*flags); }; });
}

}  // namespace kvasir::cli
