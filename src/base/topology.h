// What of this machine the process may use.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvasir {

struct Topology {
  std::vector<int>
      cpus;  // logical processors in the affinity mask, in order of preference: one per physical core first
             // (fast cores of a hybrid processor before slow ones), SMT siblings after
  int physical_cores = 1;      // distinct cores among them
  double quota_cpus = 0;       // cgroup CPU quota in processors (0: none)
  size_t memory_bytes = 0;     // physical memory, or the cgroup's limit where that is lower
  size_t available_bytes = 0;  // of it, what could be had now
  int numa_nodes = 1;
  std::string processor;  // model name
};

Topology discover_topology();

// Threads to use when the user names none: one per physical core, no more than the quota allows, at least 1.
int default_threads(const Topology& topology);

}  // namespace kvasir
