// What of this machine the process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvasir {

struct Topology {
  // Logical processors in the affinity mask, in order of preference: one per physical core first (fast cores
  // of a hybrid processor before slow ones, and those of a memory node together), SMT siblings after.
  std::vector<int> cpus;
  int physical_cores = 1;      // distinct cores among them
  int fast_cores = 0;          // those within a fifth of the fastest one's frequency; 0: all
  double quota_cpus = 0;       // cgroup CPU quota in processors (0: none)
  size_t memory_bytes = 0;     // physical memory, or the cgroup's limit where that is lower
  size_t available_bytes = 0;  // of it, what could be had now
  int numa_nodes = 1;
  std::string processor;  // model name
};

Topology discover_topology();

// Threads to use when the user names none: one per fast physical core (many short ops of a step are shared
// in equal parts, so a slow core would make the others wait), no more than the quota allows, at least 1.
int default_threads(const Topology& topology);

// What the control groups of this process, versions 1 and 2, and all groups around them allow.
struct CgroupLimits {
  double cpus = 0;                 // processors' worth of time; 0: no limit
  size_t memory_bytes = SIZE_MAX;  // SIZE_MAX: no limit
};
// `root`: where /proc and /sys are, for tests.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");
// Where those groups keep what the kernel says of their processor time, each once.
std::vector<std::string> cgroup_cpu_folders(const std::filesystem::path& root = "/");

// What discover_topology finds out about one logical processor, and the order it makes of them: for tests.
struct LogicalCpu {
  int cpu = 0;
  long package = 0;
  long core = 0;   // in its package
  int node = 0;    // of memory
  long speed = 0;  // highest frequency; 0: unknown
};
void arrange_cpus(const std::vector<LogicalCpu>& found, Topology& topology);

}  // namespace kvasir
