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

// A group's folder under `mount`, and those of the groups around it up to the root: limits of all of them
// apply. In a container `path` may be the host's name of what is mounted as the root: then only that is
// there.
std::vector<std::string> folders_up(const std::string& mount, std::filesystem::path path) {
  std::vector<std::string> folders;
  while (path.has_relative_path()) {
    folders.push_back(mount + path.string());
    path = path.parent_path();
  }
  folders.push_back(mount);
  return folders;
}

// The controllers and the group of each line of /proc/self/cgroup, "hierarchy:controllers:group"; version 2
// has hierarchy 0 and names no controllers (https://man7.org/linux/man-pages/man7/cgroups.7.html).
std::vector<std::pair<std::string, std::string>> own_groups(const std::filesystem::path& root) {
  std::vector<std::pair<std::string, std::string>> out;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    out.emplace_back(line.substr(first + 1, second - first - 1), line.substr(second + 1));
  }
  return out;
}

}  // namespace

std::vector<std::string> cgroup_cpu_folders(const std::filesystem::path& root) {
  const std::string groups = (root / "sys/fs/cgroup").string();
  std::set<std::string> folders = {groups, groups + "/cpu"};
  for (const auto& [controllers, group] : own_groups(root)) {
    if (controllers.empty())
      for (const std::string& folder : folders_up(groups, group)) folders.insert(folder);
    std::istringstream list(controllers);
    for (std::string controller; std::getline(list, controller, ',');)
      if (controller == "cpu")
        for (const std::string& folder : folders_up(groups + "/cpu", group)) folders.insert(folder);
  }
  return {folders.begin(), folders.end()};
}

CgroupLimits cgroup_limits(const std::filesystem::path& root) {
  CgroupLimits limits;
  const std::string groups = (root / "sys/fs/cgroup").string();
  const auto lower_cpus = [&](double cpus) {
    if (cpus > 0 && (limits.cpus == 0 || cpus < limits.cpus)) limits.cpus = cpus;
  };
  const auto lower_memory = [&](const std::string& line) {
    char* end = nullptr;
    const unsigned long long bytes = std::strtoull(line.c_str(), &end, 10);
    if (end != line.c_str()) limits.memory_bytes = std::min<size_t>(limits.memory_bytes, bytes);  // not "max"
  };
  const auto version2 = [&](const std::string& folder) {
    std::istringstream text(first_line(folder + "/cpu.max"));
    std::string limit;
    double period = 0;
    if (text >> limit >> period && limit != "max" && period > 0)
      lower_cpus(std::atof(limit.c_str()) / period);
    lower_memory(first_line(folder + "/memory.max"));
  };
  const auto version1_cpu = [&](const std::string& folder) {
    const long quota = number_in(folder + "/cpu.cfs_quota_us", -1);
    const long period = number_in(folder + "/cpu.cfs_period_us", 0);
    if (quota > 0 && period > 0) lower_cpus(static_cast<double>(quota) / static_cast<double>(period));
  };
  for (const auto& [controllers, group] : own_groups(root)) {
    if (controllers.empty())
      for (const std::string& folder : folders_up(groups, group)) version2(folder);
    std::istringstream list(controllers);
    for (std::string controller; std::getline(list, controller, ',');)
      // Mounted under all the names of the hierarchy together, with links of one name each.
      for (const std::string& mount : {groups + "/" + controllers, groups + "/" + controller})
        for (const std::string& folder : folders_up(mount, group)) {
          if (controller == "cpu") version1_cpu(folder);
          if (controller == "memory") lower_memory(first_line(folder + "/memory.limit_in_bytes"));
        }
  }
  // What is mounted at the usual places counts, whatever the process is told of its groups.
  version2(groups);
  version1_cpu(groups + "/cpu");
  lower_memory(first_line(groups + "/memory/memory.limit_in_bytes"));
  return limits;
}

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
  const CgroupLimits limits = cgroup_limits();
  topology.quota_cpus = limits.cpus;

  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  size_t kib = 0;
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream text(line);
    text >> field >> kib;
    if (field == "MemTotal:") topology.memory_bytes = kib * 1024;
    if (field == "MemAvailable:") topology.available_bytes = kib * 1024;
  }
  topology.memory_bytes = std::min(topology.memory_bytes, limits.memory_bytes);
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
