#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace kvasir {
namespace {

TEST(ThreadTeam, RunsEveryMemberOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    std::vector<int> calls(static_cast<size_t>(threads), 0);
    for (int round = 0; round < 100; ++round)
      team.run([&](int member) { ++calls[static_cast<size_t>(member)]; });
    for (int count : calls) EXPECT_EQ(count, 100);
  }
}

TEST(ThreadTeam, BarrierOrdersPhases) {
  // Each phase, every member adds its index to a plain counter slot; after the barrier all slots of that
  // phase must be visible.
  ThreadTeam team(4);
  constexpr int kPhases = 500;
  std::vector<int> slots(4, 0);
  std::atomic<int> wrong{0};
  team.run([&](int member) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      slots[static_cast<size_t>(member)] = phase;
      team.barrier();
      for (int slot : slots)
        if (slot != phase) ++wrong;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadTeam, RethrowsAWorkersException) {
  ThreadTeam team(3);
  EXPECT_THROW(team.run([](int member) {
    if (member == 2) throw std::runtime_error("x");
  }),
               std::runtime_error);
  int ran = 0;
  team.run([&](int member) {
    if (member == 0) ran = 1;
  });
  EXPECT_EQ(ran, 1);
}

TEST(SplitWork, CoversWithoutOverlap) {
  for (int64_t count : {0, 1, 7, 16, 100, 1001})
    for (int parts : {1, 2, 3, 16})
      for (int64_t grain : {1, 4, 16}) {
        int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const WorkRange range = split_work(count, parts, part, grain);
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.begin, range.end);
          if (range.end != count) {
            EXPECT_EQ(range.end % grain, 0);
          }
          next = range.end;
        }
        EXPECT_EQ(next, count);
      }
}

}  // namespace
}  // namespace kvasir
