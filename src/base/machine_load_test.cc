// Texts as the kernel writes them (values by hand), and what counts as busy.
#include "base/machine_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/test_folder.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kStat[] =
    "cpu  100 20 30 4000 50 6 7 8 90 10\n"
    "cpu0 50 10 15 2000 25 3 4 4 45 5\n"
    "cpu1 50 10 15 2000 25 3 3 4 45 5\n"
    "intr 1 2 3\nctxt 93009811\nbtime 1796025183\nprocesses 1081610\nprocs_running 3\nprocs_blocked 0\n";

TEST(MachineLoad, ProcStat) {
  const auto stat = parse_proc_stat(kStat);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->busy_ticks, 100u + 20 + 30 + 6 + 7);  // not idle, not waiting for a disk, guests once
  EXPECT_EQ(stat->steal_ticks, 8u);
  EXPECT_EQ(stat->processors, 2);
  EXPECT_EQ(stat->running, 3);
  const auto old = parse_proc_stat("cpu 1 2 3 4\ncpu0 1 2 3 4\n");  // Linux 2.4
  ASSERT_TRUE(old);
  EXPECT_EQ(old->busy_ticks, 6u);
  EXPECT_EQ(old->running, std::nullopt);
  for (const char* bad : {"", "cpu", "cpu 1 2 3\ncpu0 1 2 3", "cpu 1 2 x 4\ncpu0 1 2 3 4", "cpu 1 2 3 4",
                          "cpu -1 2 3 4\ncpu0 1 2 3 4", "cpu 99999999999999999999 2 3 4\ncpu0 1 2 3 4"})
    EXPECT_FALSE(parse_proc_stat(bad)) << bad;
}

TEST(MachineLoad, OtherTexts) {
  // A name may look like fields.
  const std::string self =
      "42 (a) b (c 1 2) R 1 2 3 4 -1 4194304 100 0 0 0 11 22 33 44 20 0 1 0 6232359 3133440 385\n";
  EXPECT_EQ(parse_self_ticks(self), 110u);
  EXPECT_EQ(parse_self_ticks("42 (x) R 1 2 3 4 -1 4194304 100 0 0 0 11 22 33"), std::nullopt);
  EXPECT_EQ(parse_self_ticks(""), std::nullopt);
  EXPECT_EQ(parse_counter("pswpin 12\npswpout 34\n", "pswpout"), 34u);
  EXPECT_EQ(parse_counter("pswpin 12\npswpout_more 34\n", "pswpout"), std::nullopt);
  EXPECT_EQ(parse_counter("nr_periods 5\nnr_throttled 3\nthrottled_usec 99", "nr_throttled"), 3u);
  EXPECT_EQ(parse_counter("nr_throttled -3\n", "nr_throttled"), std::nullopt);
  EXPECT_EQ(parse_pressure_us("some avg10=0.00 avg60=0.00 avg300=0.00 total=117696639\n"
                              "full avg10=0.00 avg60=0.00 avg300=0.00 total=61010824\n"),
            117696639u);
  EXPECT_EQ(parse_pressure_us("full avg10=0.00 total=5\n"), std::nullopt);
  EXPECT_EQ(parse_load_average("0.52 0.58 0.59 1/1189 12345\n"), 0.52);
  EXPECT_EQ(parse_load_average("x\n"), std::nullopt);
}

MachineReading reading(double seconds, uint64_t busy, uint64_t own, int running) {
  MachineReading out;
  out.seconds = seconds;
  out.stat = ProcStat{.busy_ticks = busy, .steal_ticks = 0, .processors = 4, .running = running};
  out.own_ticks = own;
  out.swapped_pages = 1000;
  out.memory_stall_us = 5'000'000;
  out.throttled_periods = 7;
  out.thermal_throttles = 9;
  return out;
}

TEST(MachineLoad, TimeOfOthersIsWhatIsNotOurs) {
  // Two seconds of 100 ticks: 500 busy, 380 of them ours: others had 120, 0.6 processors.
  MachineReading before = reading(10, 1000, 100, 1), after = reading(12, 1500, 480, 2);
  MachineLoad load = load_between(before, after, 1);
  EXPECT_DOUBLE_EQ(*load.other_cpus, 0.6);
  EXPECT_DOUBLE_EQ(*load.other_tasks, 0.5);
  EXPECT_EQ(load.processors, 4);
  EXPECT_EQ(load.swapped_pages, 0u);
  EXPECT_EQ(load.memory_stall, 0.0);
  EXPECT_EQ(load_between(before, after, 0).other_tasks, std::nullopt);  // our threads run, too
  after.stat->steal_ticks = 40;
  EXPECT_DOUBLE_EQ(*load_between(before, after, 1).other_cpus, 0.8);
  // A tick of rounding is nobody's.
  EXPECT_EQ(load_between(reading(0, 100, 100, 1), reading(1, 200, 201, 1), 1).other_cpus, 0.0);
  after.memory_stall_us = 5'050'000;
  after.swapped_pages = 1040;
  after.throttled_periods = 8;
  after.thermal_throttles = 11;
  load = load_between(before, after, 1);
  EXPECT_DOUBLE_EQ(*load.memory_stall, 0.025);
  EXPECT_EQ(load.swapped_pages, 40u);
  EXPECT_EQ(load.throttled_periods, 1u);
  EXPECT_EQ(load.thermal_throttles, 2u);
  after.own_ticks.reset();
  after.swapped_pages.reset();
  load = load_between(before, after, 1);
  EXPECT_EQ(load.other_cpus, std::nullopt);
  EXPECT_EQ(load.swapped_pages, std::nullopt);
}

TEST(MachineLoad, WhatIsBusy) {
  const MachineLoad idle{.seconds = 0.3,
                         .processors = 4,
                         .other_cpus = 0.2,
                         .other_tasks = 2,
                         .swapped_pages = 15,
                         .throttled_periods = 0,
                         .thermal_throttles = 0,
                         .memory_stall = 0.01};
  EXPECT_THAT(busy_reasons(idle), IsEmpty());
  EXPECT_THAT(busy_reasons({}), IsEmpty());  // nothing can be seen
  const auto with = [&](auto change) {
    MachineLoad load = idle;
    change(load);
    return busy_reasons(load);
  };
  EXPECT_THAT(with([](auto& l) { l.other_cpus = 0.21; }), ElementsAre("others take 0.21 of 4 processors"));
  EXPECT_THAT(with([](auto& l) { l.other_tasks = 2.5; }), ElementsAre("2.5 tasks wait for 4 processors"));
  EXPECT_THAT(with([](auto& l) { l.swapped_pages = 16; }), ElementsAre(HasSubstr("16 pages were swapped")));
  EXPECT_THAT(with([](auto& l) { l.memory_stall = 0.02; }), ElementsAre(HasSubstr("2% of the time")));
  EXPECT_THAT(with([](auto& l) { l.throttled_periods = 1; }), ElementsAre(HasSubstr("quota")));
  EXPECT_THAT(with([](auto& l) { l.thermal_throttles = 3; }), ElementsAre(HasSubstr("heat")));
  // Of many processors a twentieth.
  MachineLoad large{.processors = 64, .other_cpus = 3.1, .other_tasks = 30};
  EXPECT_THAT(busy_reasons(large), IsEmpty());
  large.other_cpus = 3.3;
  EXPECT_THAT(busy_reasons(large), ElementsAre("others take 3.30 of 64 processors"));
  // Of one or two, one task beside us does not wait.
  EXPECT_THAT(busy_reasons({.processors = 1, .other_tasks = 1}), IsEmpty());
  EXPECT_THAT(busy_reasons({.processors = 1, .other_tasks = 2}), ElementsAre(HasSubstr("2.0 tasks")));
}

TEST(MachineLoad, FilesOfAMachine) {
  const TestFolder folder("machine");
  const auto write = [&](const char* name, const std::string& text) {
    fs::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.path() / name, std::ios::binary) << text;
  };
  const MachineReading nothing = read_machine(folder.path());
  EXPECT_FALSE(nothing.stat || nothing.own_ticks || nothing.swapped_pages || nothing.memory_stall_us ||
               nothing.throttled_periods || nothing.thermal_throttles || nothing.load_average);
  EXPECT_EQ(frequency_governor(folder.path()), "");
  write("proc/stat", kStat);
  write("proc/vmstat", "nr_free_pages 5\npswpin 12\npswpout 34\n");
  write("proc/self/cgroup", "0::/outer/inner\n4:memory:/elsewhere\n");
  write("sys/fs/cgroup/outer/inner/cpu.stat", "nr_throttled 3\n");
  write("sys/fs/cgroup/outer/cpu.stat", "usage_usec 77\nnr_throttled 4\n");
  write("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "2\n");
  write("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "3\n");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  const MachineReading read = read_machine(folder.path());
  EXPECT_EQ(read.stat->busy_ticks, 163u);
  EXPECT_EQ(read.swapped_pages, 46u);
  EXPECT_EQ(read.throttled_periods, 7u);
  EXPECT_EQ(read.thermal_throttles, 5u);
  EXPECT_EQ(frequency_governor(folder.path()), "powersave");
}

}  // namespace
}  // namespace kvasir
