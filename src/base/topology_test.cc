#include "base/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/test_folder.h"

namespace kvasir {
namespace {

TEST(Topology, HonoursTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const Topology all = discover_topology();
  EXPECT_EQ(all.cpus.size(), static_cast<size_t>(CPU_COUNT(&before)));
  EXPECT_EQ(std::set<int>(all.cpus.begin(), all.cpus.end()).size(), all.cpus.size());
  EXPECT_GE(all.physical_cores, 1);
  EXPECT_LE(all.physical_cores, static_cast<int>(all.cpus.size()));

  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(all.cpus.back()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Topology limited = discover_topology();
  sched_setaffinity(0, sizeof before, &before);
  EXPECT_EQ(limited.cpus, std::vector<int>{all.cpus.back()});
  EXPECT_EQ(default_threads(limited), 1);
}

TEST(Topology, ThreadsStayWithinTheQuota) {
  Topology topology;
  topology.physical_cores = 8;
  EXPECT_EQ(default_threads(topology), 8);
  topology.quota_cpus = 2.5;
  EXPECT_EQ(default_threads(topology), 2);
  topology.quota_cpus = 0.5;
  EXPECT_EQ(default_threads(topology), 1);
}

TEST(Topology, OneThreadAFastCoreNodeByNodeSiblingsLast) {
  // Two nodes of two cores with two threads each, numbered across nodes as processors often are.
  Topology topology;
  arrange_cpus({{0, 0, 0, 0, 0},
                {1, 1, 0, 1, 0},
                {2, 0, 1, 0, 0},
                {3, 1, 1, 1, 0},
                {4, 0, 0, 0, 0},
                {5, 1, 0, 1, 0},
                {6, 0, 1, 0, 0},
                {7, 1, 1, 1, 0}},
               topology);
  EXPECT_EQ(topology.cpus, (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(topology.physical_cores, 4);
  EXPECT_EQ(topology.numa_nodes, 2);
  EXPECT_EQ(default_threads(topology), 4);
}

TEST(Topology, SlowCoresOfAHybridProcessorAreNotWaitedFor) {
  Topology topology;
  // Two fast cores with two threads each, one of them a little faster; three slow ones.
  arrange_cpus({{0, 0, 0, 0, 5600},
                {1, 0, 0, 0, 5600},
                {2, 0, 1, 0, 5400},
                {3, 0, 1, 0, 5400},
                {4, 0, 2, 0, 4200},
                {5, 0, 3, 0, 4200},
                {6, 0, 4, 0, 4200}},
               topology);
  EXPECT_EQ(topology.cpus, (std::vector<int>{0, 2, 4, 5, 6, 1, 3}));
  EXPECT_EQ(topology.physical_cores, 5);
  EXPECT_EQ(topology.fast_cores, 2);
  EXPECT_EQ(default_threads(topology), 2);
  topology.quota_cpus = 1.5;
  EXPECT_EQ(default_threads(topology), 1);
}

// A tree of files as the kernel shows them.
class Cgroups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  CgroupLimits limits() const { return cgroup_limits(root_.path()); }
  void expect(double cpus, size_t memory) const {
    EXPECT_EQ(limits().cpus, cpus);
    EXPECT_EQ(limits().memory_bytes, memory);
  }

 private:
  const TestFolder root_{"cgroups"};
};

TEST_F(Cgroups, NoneIsNoLimit) {
  expect(0, SIZE_MAX);
  write("proc/self/cgroup", "0::/");
  expect(0, SIZE_MAX);
  write("proc/self/cgroup", "nonsense\n1:\n::\n0::/../../elsewhere");
  expect(0, SIZE_MAX);
}

TEST_F(Cgroups, Version2LimitsOfAllGroupsAroundApply) {
  write("proc/self/cgroup", "0::/a/b/c");
  write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000");
  write("sys/fs/cgroup/a/b/c/memory.max", "max");
  expect(0, SIZE_MAX);
  write("sys/fs/cgroup/a/cpu.max", "150000 100000");
  write("sys/fs/cgroup/a/memory.max", "5000000");
  expect(1.5, 5000000);
  write("sys/fs/cgroup/a/b/c/cpu.max", "400000 100000");
  write("sys/fs/cgroup/a/b/c/memory.max", "3000000");
  expect(1.5, 3000000);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 200000");
  expect(0.25, 3000000);
  write("sys/fs/cgroup/a/b/other/memory.max", "1");  // another's
  expect(0.25, 3000000);
}

TEST_F(Cgroups, Version1TheProcesssOwnGroupCounts) {
  write("proc/self/cgroup",
        "12:memory:/user/job\n5:cpu,cpuacct:/user/job\n3:cpuset:/\n1:name=systemd:/user\n0::/user");
  const std::string cpu = "sys/fs/cgroup/cpu,cpuacct/", memory = "sys/fs/cgroup/memory/";
  write(cpu + "cpu.cfs_quota_us", "-1");
  write(cpu + "cpu.cfs_period_us", "100000");
  write(memory + "memory.limit_in_bytes", "9223372036854771712");
  expect(0, 9223372036854771712u);
  write(cpu + "user/job/cpu.cfs_quota_us", "250000");
  write(cpu + "user/job/cpu.cfs_period_us", "100000");
  write(memory + "user/job/memory.limit_in_bytes", "2000000");
  expect(2.5, 2000000);
  write(cpu + "user/cpu.cfs_quota_us", "100000");
  write(cpu + "user/cpu.cfs_period_us", "100000");
  write(memory + "user/memory.limit_in_bytes", "1000000");
  expect(1, 1000000);
}

// A hierarchy may also be mounted under its controller's own name, and in a container its root is the group.
TEST_F(Cgroups, Version1InAContainer) {
  write("proc/self/cgroup", "4:memory:/docker/0123\n3:cpuacct,cpu:/docker/0123");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096");
  expect(0.5, 4096);
  write("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_quota_us", "20000");
  write("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_period_us", "100000");
  expect(0.2, 4096);
}

TEST(Topology, KnowsTheMemory) {
  const Topology topology = discover_topology();
  EXPECT_GT(topology.memory_bytes, size_t{1} << 28);
  EXPECT_LE(topology.available_bytes, topology.memory_bytes);
}

}  // namespace
}  // namespace kvasir
