#include "base/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace kvasir {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

long number_in(const std::string& path, long otherwise) {
  const std::string line = first_line(path);
  if (line.empty()) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(line.c_str(), &end, 10);
  return end == line.c_str() ? otherwise : value;
}

// The folders of this process's cgroup v2, from its own up to the root (limits of every ancestor apply).
std::vector<std::string> cgroup_folders() {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::filesystem::path path = line.substr(3);
    while (true) {
      folders.push_back("/sys/fs/cgroup" + (path == "/" ? std::string() : path.string()));
      if (path == path.root_path() || path.empty()) break;
      path = path.parent_path();
    }
  }
  if (folders.empty()) folders.push_back("/sys/fs/cgroup");
  return folders;
}

double cgroup_quota() {
  double quota = 0;
  auto lower = [&](double value) {
    if (value > 0 && (quota == 0 || value < quota)) quota = value;
  };
  for (const std::string& folder : cgroup_folders()) {
    std::istringstream text(first_line(folder + "/cpu.max"));
    std::string limit;
    double period = 0;
    if (text >> limit >> period && limit != "max" && period > 0) lower(std::atof(limit.c_str()) / period);
  }
  const long limit_v1 = number_in("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1);
  const long period_v1 = number_in("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0);
  if (limit_v1 > 0 && period_v1 > 0) lower(static_cast<double>(limit_v1) / static_cast<double>(period_v1));
  return quota;
}

size_t cgroup_memory_limit() {
  size_t limit = SIZE_MAX;
  for (const std::string& folder : cgroup_folders()) {
    const std::string line = first_line(folder + "/memory.max");
    if (!line.empty() && line != "max")
      limit = std::min<size_t>(limit, std::strtoull(line.c_str(), nullptr, 10));
  }
  const std::string v1 = first_line("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  if (!v1.empty()) limit = std::min<size_t>(limit, std::strtoull(v1.c_str(), nullptr, 10));
  return limit;
}

}  // namespace

void arrange_cpus(const std::vector<LogicalCpu>& found, Topology& topology) {
  struct Ranked {
    int cpu;
    int sibling;
    bool slow;
    int node;
  };
  long fastest = 0;
  for (const LogicalCpu& cpu : found) fastest = std::max(fastest, cpu.speed);
  std::map<std::pair<long, long>, int> siblings;
  std::set<int> nodes;
  std::vector<Ranked> ranked;
  topology.fast_cores = 0;
  for (const LogicalCpu& cpu : found) {
    const int sibling = siblings[{cpu.package, cpu.core}]++;
    const bool slow = cpu.speed > 0 && cpu.speed < fastest - fastest / 5;
    nodes.insert(cpu.node);
    ranked.push_back({cpu.cpu, sibling, slow, cpu.node});
    if (sibling == 0 && !slow) ++topology.fast_cores;
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::tuple(a.sibling, a.slow, a.node) < std::tuple(b.sibling, b.slow, b.node);
  });
  topology.cpus.clear();
  for (const Ranked& cpu : ranked) topology.cpus.push_back(cpu.cpu);
  topology.physical_cores = static_cast<int>(siblings.size());
  topology.numa_nodes = std::max<int>(1, static_cast<int>(nodes.size()));
}

Topology discover_topology() {
  Topology topology;
  // The affinity mask may be larger than cpu_set_t on big machines: grow until the kernel accepts it.
  std::vector<int> allowed;
  for (int count = 1024; count <= 1 << 16; count *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(count));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    CPU_ZERO_S(bytes, set);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok)
      for (int cpu = 0; cpu < count; ++cpu)
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) allowed.push_back(cpu);
    CPU_FREE(set);
    if (ok) break;
  }
  if (allowed.empty()) allowed.push_back(0);

  std::vector<LogicalCpu> found;
  for (int cpu : allowed) {
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    LogicalCpu facts;
    facts.cpu = cpu;
    facts.package = number_in(base + "/topology/physical_package_id", 0);
    facts.core = number_in(base + "/topology/core_id", cpu);
    facts.speed = number_in(base + "/cpufreq/cpuinfo_max_freq", 0);
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(base, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("node", 0) == 0) facts.node = std::atoi(name.c_str() + 4);
    }
    found.push_back(facts);
  }
  arrange_cpus(found, topology);
  topology.quota_cpus = cgroup_quota();

  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  size_t kib = 0;
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream text(line);
    text >> field >> kib;
    if (field == "MemTotal:") topology.memory_bytes = kib * 1024;
    if (field == "MemAvailable:") topology.available_bytes = kib * 1024;
  }
  topology.memory_bytes = std::min(topology.memory_bytes, cgroup_memory_limit());
  topology.available_bytes = std::min(topology.available_bytes, topology.memory_bytes);

  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0) {
      topology.processor = line.substr(std::min(line.size(), line.find(':') + 2));
      break;
    }
  return topology;
}

int default_threads(const Topology& topology) {
  int threads = topology.fast_cores > 0 ? topology.fast_cores : topology.physical_cores;
  if (topology.quota_cpus > 0)
    threads = std::min(threads, static_cast<int>(std::floor(topology.quota_cpus + 0.01)));
  return std::max(1, threads);
}

}  // namespace kvasir
