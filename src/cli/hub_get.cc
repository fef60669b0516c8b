// Fetching from a Hugging Face hub: which files, whether they will run and fit, then the download.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "base/topology.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/get.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/remote_plan.h"
#include "formats/checkpoint.h"
#include "hub/local_stores.h"
#include "hub/select.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A message without the file's name before it.
std::string reason_of(const std::string& message) {
  const size_t colon = message.find(": ");
  return colon == std::string::npos ? message : message.substr(colon + 2);
}

// One line on stderr that does not run into a progress bar.
void say(const std::string& line) {
  std::fprintf(stderr, "%s%s\n", isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "", printable_lines(line).c_str());
}

// What was decided to fetch.
struct Choice {
  std::vector<hub::RemoteFile> weights;  // may be empty: a file that is no model
  std::vector<hub::RemoteFile> small;
  std::string quant;
  std::string reason;  // why this one, when there was a choice
  fs::path opens;      // relative to the snapshot: what a MODEL argument would open ("" for the folder)

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const hub::RemoteFile& file : weights) sum += file.size;
    for (const hub::RemoteFile& file : small) sum += file.size;
    return sum;
  }
  std::vector<hub::DownloadItem> items() const {
    std::vector<hub::DownloadItem> out;
    for (const hub::RemoteFile& file : small) out.push_back({file});
    for (const hub::RemoteFile& file : weights) out.push_back({file});
    return out;
  }
};

class HubGet {
 public:
  HubGet(hub::ModelReference reference, const GetFlags& flags, hub::HubSettings settings)
      : flags_(flags),
        reference_(std::move(reference)),
        cache_(settings.cache),
        client_(std::move(settings),
                {.retries = flags.retries, .cancelled = [] { return interrupted(); }, .note = say}) {
    download_.connections = flags.connections;
    options_.load.threads = 0;  // as many as a run would take, whose scratch is part of the plan
    options_.context_hint = flags.context;
    if (!flags.memory.empty()) options_.memory_budget = parse_size(flags.memory, "--memory");
  }

  int run();

 private:
  std::optional<fs::path> local() const;
  Choice choose();
  Choice choose_file();
  Choice choose_gguf(const std::vector<hub::GgufGroup>& groups);
  Choice choose_safetensors();
  void check_plan(const Choice& choice);
  engine::MemoryReport plan(const std::vector<hub::RemoteFile>& weights,
                            const std::vector<hub::RemoteFile>& small);
  void drop_prefixes(const std::vector<hub::RemoteFile>& files) const;
  int report(const fs::path& path, const Choice& choice, double seconds, uint64_t missing) const;
  void fetch(const std::vector<hub::DownloadItem>& items) {
    files_ += hub::download(client_, cache_, listing_, items, download_).files;
  }
  std::string needs(const engine::MemoryReport& report) const {
    return fmt::format("needs {} with {} tokens of context, {} available", size_text(report.total_bytes),
                       report.context, size_text(report.available_bytes));
  }

  const GetFlags& flags_;
  hub::ModelReference reference_;
  hub::HubCache cache_;
  hub::HubClient client_;
  hub::DownloadOptions download_;
  engine::EngineOptions options_;
  hub::Listing listing_;
  std::set<std::string> fresh_prefixes_;  // digests whose .incomplete this run made
  int files_ = 0;                         // that became whole
};

// The model as it is in the cache, whole.
std::optional<fs::path> HubGet::local() const {
  const std::optional<fs::path> snapshot = cache_.find_snapshot(reference_.repo, reference_.revision);
  if (!snapshot) return std::nullopt;
  if (!reference_.file.empty()) {
    std::error_code ignored;
    return fs::is_regular_file(*snapshot / reference_.file, ignored)
               ? std::optional(*snapshot / reference_.file)
               : std::nullopt;
  }
  const std::vector<hub::LocalModel> models =
      hub::scan_repository(cache_, reference_.repo, snapshot->filename().string());
  const hub::LocalModel* model = nullptr;
  if (!reference_.quant.empty()) {
    model = hub::choose(models, reference_);
  } else {
    for (const hub::LocalModel& one : models)
      if (model == nullptr && one.problem.empty()) model = &one;
  }
  if (model == nullptr || !model->problem.empty()) return std::nullopt;
  // Only as much of a safetensors model may be here as an interrupted download left: the index tells.
  if (model->path == *snapshot) {
    std::error_code ignored;
    if (fs::exists(*snapshot / hub::kSafetensorsIndex, ignored))
      for (const std::string& name :
           hub::files_of_index(read_file(*snapshot / hub::kSafetensorsIndex, size_t{64} << 20),
                               std::string(hub::kSafetensorsIndex)))
        if (!fs::exists(*snapshot / name, ignored)) return std::nullopt;
  }
  return model->path;
}

Choice HubGet::choose_file() {
  const hub::RemoteFile* file = listing_.find(reference_.file);
  if (file == nullptr) {
    std::string list;
    for (const hub::RemoteFile& other : listing_.files)
      if (list.size() < 4000) list += (list.empty() ? "" : "\n") + printable(other.path);
    throw Error(ErrorCode::not_found,
                fmt::format("{}: no such file at revision {}; there are:", printable(reference_.text()),
                            printable(listing_.revision)),
                std::move(list));
  }
  Choice choice;
  choice.opens = file->path;
  for (const hub::GgufGroup& group : hub::gguf_groups(listing_.files))
    for (const hub::RemoteFile& part : group.parts)
      if (part.path == file->path) {
        choice.weights = group.parts;
        choice.quant = group.quant;
        choice.opens = group.parts.front().path;
      }
  if (choice.weights.empty()) choice.small = {*file};
  return choice;
}

engine::MemoryReport HubGet::plan(const std::vector<hub::RemoteFile>& weights,
                                  const std::vector<hub::RemoteFile>& small) {
  std::error_code ignored;
  for (const hub::RemoteFile& file : weights)
    if (!fs::exists(cache_.incomplete(listing_.repo, file.digest), ignored) &&
        !fs::exists(cache_.blob(listing_.repo, file.digest), ignored))
      fresh_prefixes_.insert(file.digest);
  return plan_remote(client_, cache_, listing_, weights, small, download_, options_);
}

// What was fetched to look at and will not be used goes again.
void HubGet::drop_prefixes(const std::vector<hub::RemoteFile>& files) const {
  for (const hub::RemoteFile& file : files)
    if (fresh_prefixes_.contains(file.digest)) {
      hub::FileLock lock;
      if (lock.try_acquire(cache_.lock_file(listing_.repo, file.digest)))
        cache_.remove_incomplete(listing_.repo, file.digest);
    }
}

Choice HubGet::choose_gguf(const std::vector<hub::GgufGroup>& groups) {
  const auto as_choice = [](const hub::GgufGroup& group) {
    Choice choice;
    choice.weights = group.parts;
    choice.quant = group.quant;
    choice.opens = group.parts.front().path;
    return choice;
  };
  if (!reference_.quant.empty()) return as_choice(hub::find_quant(groups, reference_.quant, listing_.repo));
  std::vector<const hub::GgufGroup*> candidates;
  for (const hub::GgufGroup& group : groups)
    if (group.complete && !group.is_unquantized()) candidates.push_back(&group);
  const bool only_plain = candidates.empty();
  if (only_plain)
    for (const hub::GgufGroup& group : groups)
      if (group.complete) candidates.push_back(&group);
  if (candidates.empty())
    throw_error(ErrorCode::not_found, "{}: parts of its split GGUF files are missing", listing_.repo);
  if (candidates.size() == 1 || flags_.force) return as_choice(*candidates.front());

  // Largest first: the first that fits is the best. What is larger than the memory needs no look at its
  // headers.
  const uint64_t available =
      options_.memory_budget > 0 ? options_.memory_budget : discover_topology().available_bytes;
  std::string refused;
  std::optional<engine::MemoryReport> smallest;
  for (const hub::GgufGroup* group : candidates) {
    const bool last = group == candidates.back();
    if (group->bytes > available && !last) continue;
    try {
      const engine::MemoryReport report = plan(group->parts, {});
      if (report.fits) {
        Choice choice = as_choice(*group);
        choice.reason = fmt::format("the best of {}{} that fits: it {}", candidates.size(),
                                    only_plain ? "" : " quantizations", needs(report));
        return choice;
      }
      smallest = report;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      // Another quantization has the same family: only a storage format can make a difference.
      const std::string reason = reason_of(error.what());
      const bool again = reason == refused;
      refused = reason;
      say(fmt::format("{}: not {}: {}", listing_.repo, group->quant, refused));
      if (again) {
        drop_prefixes(group->parts);
        break;
      }
    }
    drop_prefixes(group->parts);
  }
  if (!smallest)
    throw_error(ErrorCode::unsupported, "{}: none of its {} GGUF models can run here: {}", listing_.repo,
                candidates.size(), refused);
  throw_error(ErrorCode::resource_exhausted,
              "{}: no quantization fits: the smallest, {} ({}), {} (--context N for less; {}:QUANT --force "
              "fetches it "
              "all the same)",
              listing_.repo, candidates.back()->quant, size_text(candidates.back()->bytes), needs(*smallest),
              listing_.repo);
}

Choice HubGet::choose_safetensors() {
  Choice choice;
  for (const hub::RemoteFile& file : listing_.files)
    if (hub::is_text_side(file.path)) choice.small.push_back(file);
  // The small files first: the index says which weights there are, the configuration whether they can run.
  if (!flags_.dry_run || listing_.find(hub::kSafetensorsIndex) != nullptr) {
    std::vector<hub::DownloadItem> items;
    for (const hub::RemoteFile& file : choice.small)
      if (!flags_.dry_run || file.path == hub::kSafetensorsIndex) items.push_back({file});
    fetch(items);
  }
  std::vector<std::string> names;
  if (const hub::RemoteFile* index = listing_.find(hub::kSafetensorsIndex))
    names = hub::files_of_index(read_file(cache_.blob(listing_.repo, index->digest), size_t{64} << 20),
                                listing_.repo + "/" + index->path);
  choice.weights = hub::safetensors_weights(listing_, names);
  if (choice.weights.empty())
    throw_error(ErrorCode::unsupported, "{}: no model*.safetensors in its top folder: name a file of it",
                listing_.repo);
  return choice;
}

Choice HubGet::choose() {
  if (!reference_.file.empty()) return choose_file();
  const std::vector<hub::GgufGroup> groups = hub::gguf_groups(listing_.files);
  bool safetensors = false;
  std::string other;
  for (const hub::RemoteFile& file : listing_.files) {
    const bool root = file.path.find('/') == std::string::npos;
    safetensors |= root && file.path.starts_with("model") && file.path.ends_with(".safetensors");
    for (const char* ending :
         {".bin", ".pth", ".pt", ".onnx", ".h5", ".msgpack", ".npz", ".ckpt", ".safetensors"})
      if (other.empty() && file.path.ends_with(ending)) other = file.path;
  }
  safetensors = safetensors && listing_.find("config.json") != nullptr;
  if (safetensors && reference_.quant.empty()) return choose_safetensors();
  if (!groups.empty()) return choose_gguf(groups);
  if (safetensors)
    throw_error(ErrorCode::not_found,
                "{}: no quantization '{}': it holds safetensors, which are fetched without :QUANT",
                listing_.repo, printable(reference_.quant));
  throw_error(ErrorCode::unsupported,
              "{}: no weights that can run here: expected a .gguf file, or config.json with "
              "model*.safetensors{}",
              listing_.repo, other.empty() ? std::string() : fmt::format(", found {}", printable(other)));
}

// Refuses what cannot run or does not fit before its weights are fetched.
void HubGet::check_plan(const Choice& choice) {
  if (choice.weights.empty() || flags_.force || !choice.reason.empty()) return;
  try {
    if (choice.opens.empty() && listing_.find("tokenizer.json") == nullptr) {
      formats::AuxiliaryFiles there;
      for (const hub::RemoteFile& file : listing_.files)
        if (file.path == "tokenizer.model" || file.path.ends_with(".tiktoken"))
          there.foreign_tokenizer = file.name();
      throw_error(ErrorCode::unsupported, "{}: {}", reference_.text(), there.text_problem());
    }
    const engine::MemoryReport report = plan(choice.weights, choice.small);
    if (report.fits) return;
    drop_prefixes(choice.weights);
    throw_error(ErrorCode::resource_exhausted,
                "{}: does not fit: it {} (--context N for less; --force fetches it all the same)",
                reference_.text(), needs(report));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::corrupt_file) throw;
    drop_prefixes(choice.weights);
    throw Error(error.code(), fmt::format("{} (--force fetches it all the same)", error.what()),
                error.details());
  }
}

// `missing`: bytes that a dry run leaves to fetch.
int HubGet::report(const fs::path& path, const Choice& choice, double seconds, uint64_t missing) const {
  const uint64_t fetched = client_.received_bytes();
  if (flags_.json) {
    Json out = {{"repo", listing_.repo},    {"revision", listing_.revision}, {"commit", listing_.commit},
                {"quant", choice.quant},    {"reason", choice.reason},       {"bytes", choice.bytes()},
                {"fetched_bytes", fetched}, {"missing_bytes", missing},      {"seconds", seconds},
                {"files", Json::array()}};
    for (const hub::DownloadItem& item : choice.items())
      out["files"].push_back(
          {{"path", item.file.path}, {"bytes", item.file.size}, {"digest", item.file.digest}});
    report_fetch(flags_, path, !flags_.dry_run && files_ > 0, "", out);
  } else if (flags_.dry_run) {
    for (const hub::DownloadItem& item : choice.items())
      std::printf("%10s  %s\n", size_text(item.file.size).c_str(), printable(item.file.path).c_str());
    std::printf("%10s  to fetch, %s in all\n", size_text(missing).c_str(), size_text(choice.bytes()).c_str());
  } else if (files_ == 0) {
    std::printf("%s: already here (%s)\n", printable_lines(path.string()).c_str(),
                size_text(choice.bytes()).c_str());
  } else {
    std::printf("%s: fetched and verified (%s in %.1f s", printable_lines(path.string()).c_str(),
                size_text(fetched).c_str(), seconds);
    if (fetched < choice.bytes()) std::printf("; %s were here", size_text(choice.bytes() - fetched).c_str());
    std::printf(")\n");
  }
  return kExitDone;
}

int HubGet::run() {
  const hub::HubSettings& settings = client_.settings();
  if (flags_.if_missing || settings.offline) {
    const std::optional<fs::path> here = local();
    if (here) {
      report_fetch(flags_, *here, false,
                   flags_.if_missing
                       ? std::string()
                       : here->string() + ": already here (offline: not compared with the hub)");
      return kExitDone;
    }
    if (settings.offline)
      throw_error(ErrorCode::not_found, "offline: {} is not in the cache {}", reference_.text(),
                  printable(settings.cache.string()));
  }
  const auto begin = std::chrono::steady_clock::now();
  listing_ = client_.list(reference_.repo, reference_.revision_or_main());
  const Choice choice = choose();
  if (!choice.reason.empty())
    say(fmt::format("{}: {} ({}), {}", listing_.repo, choice.quant,
                    size_text(choice.weights.empty() ? 0 : choice.bytes()), choice.reason));
  const fs::path snapshot = cache_.snapshot(listing_.repo, listing_.commit);
  const fs::path path = choice.opens.empty() ? snapshot : snapshot / choice.opens;
  if (flags_.dry_run) {
    drop_prefixes(choice.weights);
    return report(path, choice, 0, hub::missing_bytes(cache_, listing_.repo, choice.items()));
  }
  check_plan(choice);
  Progress bar("fetching " + listing_.repo);
  download_.progress = [&bar](const hub::DownloadProgress& progress) {
    bar.update(static_cast<double>(progress.done), static_cast<double>(progress.total),
               fmt::format("{} of {}", size_text(progress.done), size_text(progress.total)));
  };
  fetch(choice.items());
  bar.done();
  cache_.write_ref(listing_.repo, listing_.revision, listing_.commit);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report(path, choice, seconds, 0);
}

}  // namespace

int get_from_hub(hub::ModelReference reference, const GetFlags& flags) {
  const auto merge = [&](std::string* field, const std::string& flag, const char* what) {
    if (flag.empty()) return;
    if (!field->empty() && *field != flag)
      throw_error(ErrorCode::invalid_input, "two {} at once: '{}' and '{}'", what, printable(*field),
                  printable(flag));
    *field = flag;
  };
  merge(&reference.revision, flags.revision, "revisions");
  merge(&reference.quant, flags.quant, "quantizations");
  if (!reference.revision.empty() && !hub::is_safe_path(reference.revision))
    throw_error(ErrorCode::invalid_input, "--revision: '{}' is no revision", printable(reference.revision));
  if (!reference.file.empty() && !reference.quant.empty())
    throw_error(ErrorCode::invalid_input, "{}: a file and a quantization at once", printable(reference.file));
  hub::HubSettings settings = hub::settings_from_environment();
  settings.offline |= flags.offline;
  // A limit on file sizes is then an error of write(), as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  install_interrupt_handler();
  return HubGet(std::move(reference), flags, std::move(settings)).run();
}

}  // namespace kvasir::cli
