#include "cli/machine_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/printable.h"
#include "base/topology.h"

namespace kvasir::cli {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json shown(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// null: this kernel does not show it.
Json load_json(const MachineLoad& load) {
  return {{"seconds", load.seconds},
          {"other_cpus", shown(load.other_cpus)},
          {"other_tasks", shown(load.other_tasks)},
          {"swapped_pages", shown(load.swapped_pages)},
          {"memory_stall", shown(load.memory_stall)},
          {"throttled_periods", shown(load.throttled_periods)},
          {"thermal_throttles", shown(load.thermal_throttles)}};
}

// Counters since the machine started, and the average of the last minute.
Json reading_json(const MachineReading& reading) {
  return {{"load_average", shown(reading.load_average)},
          {"swapped_pages_total", shown(reading.swapped_pages)},
          {"memory_stall_us_total", shown(reading.memory_stall_us)},
          {"throttled_periods_total", shown(reading.throttled_periods)},
          {"thermal_throttles_total", shown(reading.thermal_throttles)}};
}

}  // namespace

MachineState::MachineState() : before_(sample_machine()), last_(before_.last), after_(before_.last) {
  busy_before_ = busy_reasons(before_.load);
}

void MachineState::begin() {
  last_ = after_ = read_machine();
}

void MachineState::after_run() {
  const MachineReading now = read_machine();
  const MachineLoad load = load_between(last_, now, 0);
  last_ = after_ = now;
  std::vector<std::string> reasons = busy_reasons(load);
  if (!reasons.empty()) ++busy_runs_;
  // More kinds of disturbance are worse; of as many, more time that others took.
  const bool worse = reasons.size() != busy_during_.size()
                         ? reasons.size() > busy_during_.size()
                         : load.other_cpus.value_or(0) > during_.other_cpus.value_or(0);
  if (runs_++ == 0 || worse) {
    during_ = load;
    busy_during_ = std::move(reasons);
  }
}

Json MachineState::json() const {
  Json before = load_json(before_.load), during = load_json(during_);
  before.update(reading_json(before_.last));
  during["runs"] = runs_;
  during["busy_runs"] = busy_runs_;
  const std::string governor = frequency_governor();
  return {{"processor", discover_topology().processor},
          {"processors", before_.load.processors},
          {"governor", governor.empty() ? Json() : Json(governor)},
          {"busy", !busy_before_.empty() || !busy_during_.empty()},
          {"busy_before", busy_before_},
          {"busy_during", busy_during_},
          {"before", before},
          {"during", during},
          {"after", reading_json(after_)}};
}

std::string MachineState::text() const {
  const std::string governor = frequency_governor();
  const auto others = [](const MachineLoad& load) {
    return load.other_cpus ? fmt::format("{:.2f}", *load.other_cpus) : std::string("an unknown number");
  };
  const std::string processor = printable(discover_topology().processor);
  std::string text =
      fmt::format("  machine  {}{}; others took {} processors before, {} at most in the {} runs\n",
                  processor.empty() ? "unknown processor" : processor,
                  governor.empty() ? "" : ", governor " + printable(governor), others(before_.load),
                  others(during_), runs_);
  if (!busy_before_.empty()) text += fmt::format("  BUSY     before: {}\n", fmt::join(busy_before_, "; "));
  if (!busy_during_.empty())
    text +=
        fmt::format("  BUSY     in {} of {} runs: {}\n", busy_runs_, runs_, fmt::join(busy_during_, "; "));
  return text;
}

}  // namespace kvasir::cli
