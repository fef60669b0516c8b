// What else happens on this machine while something is measured: who takes processor time, whether pages are
// swapped, whether a limit or heat slows the processors. Read from /proc and /sys; what a kernel (or a
// container) does not show is nothing, not zero.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// The first line of /proc/stat: time that all processors spent, in clock ticks, since the start
// (https://man7.org/linux/man-pages/man5/proc_stat.5.html), and the tasks that want to run now.
struct ProcStat {
  uint64_t busy_ticks = 0;   // user, nice, system, irq, softirq; guests' time is part of the first two
  uint64_t steal_ticks = 0;  // that a hypervisor gave to others
  int processors = 0;        // that are on line
  std::optional<int> running = {};
};

// Parsers of the kernel's texts. Nothing: not of that form.
std::optional<ProcStat> parse_proc_stat(std::string_view text);
// /proc/self/stat: ticks of this process and of the children that it waited for.
std::optional<uint64_t> parse_self_ticks(std::string_view text);
// "key number" lines, as of /proc/vmstat and a control group's cpu.stat.
std::optional<uint64_t> parse_counter(std::string_view text, std::string_view key);
// /proc/pressure/*: microseconds for which some task stood still
// (https://docs.kernel.org/accounting/psi.html).
std::optional<uint64_t> parse_pressure_us(std::string_view text);
// The first number of /proc/loadavg.
std::optional<double> parse_load_average(std::string_view text);

// Counters at one moment.
struct MachineReading {
  double seconds = 0;  // of a steady clock
  double ticks_per_second = 100;
  std::optional<ProcStat> stat;
  std::optional<uint64_t> own_ticks;
  std::optional<uint64_t> swapped_pages;      // in and out
  std::optional<uint64_t> memory_stall_us;    // memory pressure
  std::optional<uint64_t> throttled_periods;  // of our control groups: their quota was used up
  std::optional<uint64_t> thermal_throttles;  // of all processors
  std::optional<double> load_average;         // of the last minute: stored, not judged (our own runs count)
};

// `root`: where /proc and /sys are, for tests.
MachineReading read_machine(const std::filesystem::path& root = "/");

// What happened between two readings, or around several of them.
struct MachineLoad {
  double seconds = 0;
  int processors = 0;
  std::optional<double> other_cpus =
      {};  // processors' worth of time that others took, a hypervisor's included
  std::optional<double> other_tasks = {};  // that wanted to run beside us, the mean of the moments looked at
  std::optional<uint64_t> swapped_pages = {}, throttled_periods = {}, thermal_throttles = {};
  std::optional<double> memory_stall = {};  // share of the time for which some task waited for memory
};

// `own_running`: tasks of this process that run while a reading is taken (the reader alone: 1); 0: unknown,
// as while others of its threads compute, and then other_tasks is nothing.
MachineLoad load_between(const MachineReading& before, const MachineReading& after, int own_running);
// Readings over some `seconds`, this process waiting in between. Holds for the first and the last of them.
struct MachineSample {
  MachineReading first, last;
  MachineLoad load;
};
MachineSample sample_machine(double seconds = 0.3);

// Why numbers measured under this load would say little, a phrase each; empty: they are fine. Busy is
// - others took more than 0.2 processors' worth of time, or a twentieth of all processors where that is more;
// - of tasks that want to run there are, beside us, more than half as many as processors (at least 1);
// - 16 pages were swapped in or out; - tasks waited for memory for more than a hundredth of the time;
// - a control group's quota, or heat, held processors back.
std::vector<std::string> busy_reasons(const MachineLoad& load);

// "performance", "powersave", ... of the first processor; empty: not shown.
std::string frequency_governor(const std::filesystem::path& root = "/");

}  // namespace kvasir
