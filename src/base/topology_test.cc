#include "base/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>

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

TEST(Topology, KnowsTheMemory) {
  const Topology topology = discover_topology();
  EXPECT_GT(topology.memory_bytes, size_t{1} << 28);
  EXPECT_LE(topology.available_bytes, topology.memory_bytes);
}

}  // namespace
}  // namespace kvasir
