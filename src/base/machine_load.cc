#include "base/machine_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/topology.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr double kOtherCpus = 0.2, kOtherShare = 0.05;  // of one processor; of all
constexpr uint64_t kSwappedPages = 16;
constexpr double kMemoryStall = 0.01;

// Empty where the file is not there: no text of it parses.
std::string text_of(const fs::path& path) {
  constexpr size_t kMost = size_t{4} << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[4096];
  while (text.size() < kMost && (file.read(buffer, sizeof buffer), file.gcount() > 0))
    text.append(buffer, static_cast<size_t>(file.gcount()));
  return text;
}

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> out;
  while (!line.empty()) {
    const size_t begin = line.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(" \t\r\n", begin), line.size());
    out.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
  return out;
}

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The sum of what is there; nothing where none is.
std::optional<uint64_t> sum(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  if (!a) return b;
  return b ? *a + *b : *a;
}

std::optional<uint64_t> thermal_throttles(const fs::path& root) {
  std::optional<uint64_t> total;
  std::error_code error;
  for (fs::directory_iterator at(root / "sys/devices/system/cpu", error), end; !error && at != end;
       at.increment(error)) {
    if (!at->path().filename().string().starts_with("cpu")) continue;
    for (const char* file : {"core_throttle_count", "package_throttle_count"}) {
      const std::string text = text_of(at->path() / "thermal_throttle" / file);
      const std::vector<std::string_view> line = words(text);
      if (!line.empty()) total = sum(total, number<uint64_t>(line.front()));
    }
  }
  return total;
}

// Of all control groups that this process is in, versions 1 and 2.
std::optional<uint64_t> throttled_periods(const fs::path& root) {
  std::optional<uint64_t> total;
  for (const std::string& folder : cgroup_cpu_folders(root))
    total = sum(total, parse_counter(text_of(fs::path(folder) / "cpu.stat"), "nr_throttled"));
  return total;
}

template <typename T>
std::optional<T> grown(const std::optional<T>& before, const std::optional<T>& after) {
  if (!before || !after) return std::nullopt;
  return *after > *before ? *after - *before : T{0};
}

}  // namespace

std::optional<ProcStat> parse_proc_stat(std::string_view text) {
  ProcStat stat;
  bool whole = false;
  for_each_line(text, [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    if (fields.empty()) return;
    if (fields[0] == "cpu") {
      // user nice system idle iowait irq softirq steal guest guest_nice; old kernels have fewer.
      constexpr size_t kIdle = 4, kIoWait = 5, kSteal = 8;
      if (fields.size() <= kIdle) return;
      whole = true;
      for (size_t i = 1; i < std::min(fields.size(), kSteal + 1); ++i) {
        const auto ticks = number<uint64_t>(fields[i]);
        if (!ticks) whole = false;
        if (i == kSteal)
          stat.steal_ticks = ticks.value_or(0);
        else if (i != kIdle && i != kIoWait)
          stat.busy_ticks += ticks.value_or(0);
      }
    } else if (fields[0].starts_with("cpu") && number<int>(fields[0].substr(3))) {
      ++stat.processors;
    } else if (fields[0] == "procs_running" && fields.size() > 1) {
      stat.running = number<int>(fields[1]);
    }
  });
  return whole && stat.processors > 0 ? std::optional(stat) : std::nullopt;
}

std::optional<uint64_t> parse_self_ticks(std::string_view text) {
  // The name, in parentheses, may hold anything. Fields are counted from 1; the third follows the name.
  const size_t name = text.rfind(')');
  if (name == std::string_view::npos) return std::nullopt;
  const std::vector<std::string_view> fields = words(text.substr(name + 1));
  constexpr size_t kUser = 14 - 3;  // utime stime cutime cstime
  if (fields.size() < kUser + 4) return std::nullopt;
  uint64_t total = 0;
  for (size_t i = kUser; i < kUser + 4; ++i) {
    const auto ticks = number<uint64_t>(fields[i]);
    if (!ticks) return std::nullopt;
    total += *ticks;
  }
  return total;
}

std::optional<uint64_t> parse_counter(std::string_view text, std::string_view key) {
  std::optional<uint64_t> value;
  for_each_line(text, [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    if (fields.size() == 2 && fields[0] == key) value = number<uint64_t>(fields[1]);
  });
  return value;
}

std::optional<uint64_t> parse_pressure_us(std::string_view text) {
  std::optional<uint64_t> total;
  for_each_line(text, [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    if (fields.empty() || fields[0] != "some") return;
    constexpr std::string_view kTotal = "total=";
    for (const std::string_view field : fields)
      if (field.starts_with(kTotal)) total = number<uint64_t>(field.substr(kTotal.size()));
  });
  return total;
}

std::optional<double> parse_load_average(std::string_view text) {
  const std::vector<std::string_view> fields = words(text);
  return fields.empty() ? std::nullopt : number<double>(fields.front());
}

MachineReading read_machine(const fs::path& root) {
  MachineReading reading;
  reading.ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  // Ours first: what we take in between then counts for us later, not for others.
  reading.own_ticks = parse_self_ticks(text_of(root / "proc/self/stat"));
  reading.stat = parse_proc_stat(text_of(root / "proc/stat"));
  reading.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::string vmstat = text_of(root / "proc/vmstat");
  reading.swapped_pages = sum(parse_counter(vmstat, "pswpin"), parse_counter(vmstat, "pswpout"));
  reading.memory_stall_us = parse_pressure_us(text_of(root / "proc/pressure/memory"));
  reading.throttled_periods = throttled_periods(root);
  reading.thermal_throttles = thermal_throttles(root);
  reading.load_average = parse_load_average(text_of(root / "proc/loadavg"));
  return reading;
}

MachineLoad load_between(const MachineReading& before, const MachineReading& after, int own_running) {
  MachineLoad load;
  load.seconds = after.seconds - before.seconds;
  if (before.stat && after.stat) {
    load.processors = after.stat->processors;
    if (const auto own = grown(before.own_ticks, after.own_ticks); own && load.seconds > 0) {
      const auto total = [](const ProcStat& stat) {
        return static_cast<double>(stat.busy_ticks) + static_cast<double>(stat.steal_ticks);
      };
      const double others = total(*after.stat) - total(*before.stat) - static_cast<double>(*own);
      load.other_cpus = std::max(0.0, others / after.ticks_per_second / load.seconds);
    }
    if (own_running > 0 && before.stat->running && after.stat->running)
      load.other_tasks = std::max(0.0, (*before.stat->running + *after.stat->running) / 2.0 - own_running);
  }
  load.swapped_pages = grown(before.swapped_pages, after.swapped_pages);
  load.throttled_periods = grown(before.throttled_periods, after.throttled_periods);
  load.thermal_throttles = grown(before.thermal_throttles, after.thermal_throttles);
  if (const auto stall = grown(before.memory_stall_us, after.memory_stall_us); stall && load.seconds > 0)
    load.memory_stall = static_cast<double>(*stall) / 1e6 / load.seconds;
  return load;
}

MachineSample sample_machine(double seconds) {
  constexpr int kMoments = 6;
  MachineSample sample;
  sample.first = sample.last = read_machine();
  double tasks = 0;
  int seen = 0;
  for (int i = 0; i < kMoments; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / kMoments));
    sample.last = read_machine();
    if (!sample.last.stat || !sample.last.stat->running) continue;
    tasks += std::max(0, *sample.last.stat->running - 1);  // the one that reads
    ++seen;
  }
  sample.load = load_between(sample.first, sample.last, 1);
  if (seen > 0) sample.load.other_tasks = tasks / seen;
  return sample;
}

std::vector<std::string> busy_reasons(const MachineLoad& load) {
  std::vector<std::string> reasons;
  if (load.other_cpus && *load.other_cpus > std::max(kOtherCpus, kOtherShare * load.processors))
    reasons.push_back(fmt::format("others take {:.2f} of {} processors", *load.other_cpus, load.processors));
  if (load.other_tasks && *load.other_tasks > std::max(1.0, load.processors / 2.0))
    reasons.push_back(fmt::format("{:.1f} tasks wait for {} processors", *load.other_tasks, load.processors));
  if (load.swapped_pages && *load.swapped_pages >= kSwappedPages)
    reasons.push_back(fmt::format("{} pages were swapped", *load.swapped_pages));
  if (load.memory_stall && *load.memory_stall > kMemoryStall)
    reasons.push_back(fmt::format("tasks wait for memory {:.0f}% of the time", *load.memory_stall * 100));
  if (load.throttled_periods && *load.throttled_periods > 0)
    reasons.push_back(fmt::format("a control group's quota held us back {} times", *load.throttled_periods));
  if (load.thermal_throttles && *load.thermal_throttles > 0)
    reasons.push_back(fmt::format("heat slowed the processors {} times", *load.thermal_throttles));
  return reasons;
}

std::string frequency_governor(const fs::path& root) {
  const std::string text = text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  const std::vector<std::string_view> line = words(text);
  return line.empty() ? std::string() : std::string(line.front());
}

}  // namespace kvasir
