// `kvasir version` and `kvasir doctor`: what this build is, what this machine offers, what is missing.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/topology.h"
#include "cli/command.h"
#include "cli/config_file.h"
#include "cli/defaults.h"
#include "cli/limits_report.h"
#include "cli/model_names.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "cli/version.h"
#include "hub/settings.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "gcc " __VERSION__;
#endif

constexpr const char* kBuildType =
#if defined(NDEBUG)
    "release";
#else
    "debug";
#endif

Json version_json() {
  Json levels = Json::array();
  for (IsaLevel level : compiled_isa_levels()) levels.push_back(name(level));
  return {{"version", kVersion},
          {"compiler", kCompiler},
          {"build", kBuildType},
          {"isa_levels", levels},
          {"devices", {"cpu"}}};
}

int version(bool json) {
  if (json) {
    print_json(version_json());
    return kExitDone;
  }
  std::printf("kvasir %s (%s, %s build; device: cpu)\n", kVersion, kCompiler, kBuildType);
  return kExitDone;
}

// The configuration file and the hub's settings: which are in use, and what is wrong with them.
void report_settings(CLI::App& app, Json* out, Json* problems) {
  const std::filesystem::path path = config_path();
  std::error_code ignored;
  (*out)["config_file"] = path.string();
  (*out)["config_file_exists"] = std::filesystem::exists(path, ignored);
  Json values = Json::object();
  try {
    const std::vector<ConfigEntry> entries = read_config();
    check_config(app, entries, path.string());
    for (const ConfigEntry& entry : entries)
      values[(entry.section.empty() ? "" : entry.section + ".") + entry.key] =
          entry.is_list ? Json(entry.values) : Json(entry.values.front());
  } catch (const Error& error) {
    problems->push_back(error.what());
  }
  (*out)["config"] = values;
  try {
    const hub::HubSettings hub = hub::settings_from_environment();
    (*out)["hub"] = {{"endpoint", hub.endpoint},
                     {"cache", hub.cache.string()},
                     {"token_from", hub.token.empty() ? Json() : Json(hub.token_source)},
                     {"offline", hub.offline}};
    if (local_models().empty())
      problems->push_back("no model is here: `kvasir get smollm2` fetches a small one");
  } catch (const Error& error) {
    problems->push_back(error.what());
  }
}

int doctor(CLI::App& app, bool json, bool quick) {
  const Topology topology = discover_topology();
  Json out = version_json();
  out["processor"] = topology.processor;
  out["cores"] = topology.physical_cores;
  out["logical_cpus"] = topology.cpus.size();
  out["cpu_quota"] = topology.quota_cpus;
  out["threads"] = default_threads(topology);
  out["numa_nodes"] = topology.numa_nodes;
  out["memory_bytes"] = topology.memory_bytes;
  out["available_bytes"] = topology.available_bytes;
  out["isa"] = name(best_isa_level());
  Json available = Json::array();
  for (IsaLevel level : compiled_isa_levels())
    if (machine_has(level)) available.push_back(name(level));
  out["isa_available"] = available;
  out["models_folder"] = models_folder().string();
  Json problems = Json::array();
  if (std::string_view(kBuildType) == "debug")
    problems.push_back("this is a debug build: it is many times slower than a release build");
  if (best_isa_level() == IsaLevel::generic)
    problems.push_back("this processor has none of the fast instruction-set levels");
  if (topology.available_bytes < size_t{1} << 30) problems.push_back("less than 1 GB of memory is available");
  report_settings(app, &out, &problems);
  out["problems"] = problems;
  if (!quick) out["limits"] = measured_limits(default_threads(topology));
  if (json) {
    print_json(out, 1);
    return kExitDone;
  }
  std::printf("kvasir %s, %s, %s build\n", kVersion, kCompiler, kBuildType);
  std::printf("processor   %s\n", topology.processor.c_str());
  std::printf("cores       %d physical, %zu logical in the affinity mask", topology.physical_cores,
              topology.cpus.size());
  if (topology.quota_cpus > 0) std::printf(", cgroup quota %.2f", topology.quota_cpus);
  std::printf("; %d threads by default\n", default_threads(topology));
  std::printf("level       %s (available:", std::string(name(best_isa_level())).c_str());
  for (const auto& level : available) std::printf(" %s", level.get<std::string>().c_str());
  std::printf(")\n");
  std::printf("memory      %.1f GB, %.1f GB available\n", static_cast<double>(topology.memory_bytes) / 1e9,
              static_cast<double>(topology.available_bytes) / 1e9);
  if (!quick)
    for (const auto& [key, value] : out["limits"].items())
      std::printf("%-11s %-14s %8.1f\n", "measured", key.c_str(), value.get<double>());
  std::printf("models      %s\n", printable_lines(models_folder().string()).c_str());
  if (out.contains("hub"))
    std::printf("hub         %s, cache %s, %s%s\n", out["hub"]["endpoint"].get<std::string>().c_str(),
                out["hub"]["cache"].get<std::string>().c_str(),
                out["hub"]["token_from"].is_null()
                    ? "no token"
                    : ("token from " + out["hub"]["token_from"].get<std::string>()).c_str(),
                out["hub"]["offline"].get<bool>() ? ", offline" : "");
  std::printf("config      %s%s\n", printable_lines(config_path().string()).c_str(),
              out["config_file_exists"].get<bool>() ? "" : " (none there)");
  for (const auto& [key, value] : out["config"].items())
    std::printf("            %s = %s\n", key.c_str(), json_text(value).c_str());
  for (const auto& problem : problems)
    std::printf("note        %s\n", printable_lines(problem.get<std::string>()).c_str());
  return kExitDone;
}

}  // namespace

void add_version(CLI::App& app, Invocation& invocation) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("version", "Version and build")->group(kMinorGroup);
  add_json(*command, *json);
  command->footer("Example: kvasir version --json");
  command->callback([json, &invocation] { invocation.work = [json] { return version(*json); }; });
}

void add_doctor(CLI::App& app, Invocation& invocation) {
  auto json = std::make_shared<bool>(false);
  auto quick = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "What this machine offers, its limits, what is missing");
  add_json(*command, *json);
  command->add_flag("--quick", *quick, "Measure nothing");
  command->footer("Example: kvasir doctor --json > machine.json");
  command->callback([json, quick, &app, &invocation] {
    invocation.work = [json, quick, &app] { return doctor(app, *json, *quick); };
  });
}

}  // namespace kvasir::cli
