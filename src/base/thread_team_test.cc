#include "base/thread_team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

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

TEST(ThreadTeam, MembersTakeNoSignalsOfTheProcess) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ThreadTeam team(3);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGCONT, SIGWINCH, SIGUSR1, SIGSEGV, SIGBUS, SIGPROF}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
    const bool own = signal == SIGSEGV || signal == SIGBUS || signal == SIGPROF;
    std::vector<int> blocked(3, -1);
    team.run([&](int member) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked[static_cast<size_t>(member)] = sigismember(&mask, signal);
    });
    EXPECT_EQ(blocked, (std::vector<int>{sigismember(&before, signal), own ? 0 : 1, own ? 0 : 1})) << signal;
  }
}

// The processors that the calling thread may run on.
std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(pthread_getaffinity_np(pthread_self(), sizeof set, &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

TEST(ThreadTeam, MembersSitOnTheirProcessors) {
  const std::vector<int> before = allowed();
  ThreadTeam free(2);
  std::vector<std::vector<int>> seen(2);
  free.run([&](int member) { seen[static_cast<size_t>(member)] = allowed(); });
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{before, before}));

  // In an order of their own, and fewer processors than members.
  std::vector<int> cpus(before.rbegin(), before.rend());
  if (cpus.size() > 3) cpus.resize(3);
  for (const int threads : {1, 2, 4}) {
    ThreadTeam team(threads, cpus);
    std::vector<std::vector<int>> expected, got(static_cast<size_t>(threads));
    for (size_t member = 0; member < got.size(); ++member) expected.push_back({cpus[member % cpus.size()]});
    for (int round = 0; round < 2; ++round) {
      team.run([&](int member) { got[static_cast<size_t>(member)] = allowed(); });
      EXPECT_EQ(got, expected);
      EXPECT_EQ(allowed(), before);  // the caller has its own back
    }
    EXPECT_THROW(team.run([](int) { throw std::runtime_error("x"); }), std::runtime_error);
    EXPECT_EQ(allowed(), before);
  }
}

// A processor that is not there is no error.
TEST(ThreadTeam, AProcessorThatIsNotThereCostsOnlySpeed) {
  const std::vector<int> before = allowed();
  for (const int cpu : {4095, 1 << 20}) {
    ThreadTeam team(2, {cpu});
    int ran = 0;
    team.run([&](int member) {
      if (member == 0) ++ran;
      EXPECT_EQ(allowed(), before);
    });
    EXPECT_EQ(ran, 1);
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

TEST(SharedWork, EveryUnitOnceWhoeverTakesIt) {
  for (int members : {1, 2, 3, 8})
    for (int64_t count : {0, 1, 7, 100, 1001})
      for (int64_t grain : {1, 4, 64}) {
        ThreadTeam team(members);
        SharedWork work(members);
        std::vector<std::atomic<int>> taken(static_cast<size_t>(count));
        for (int round = 1; round <= 3; ++round) {
          team.run([&](int member) {
            work.restart(member);
            team.barrier();
            WorkRange piece{};
            while (work.take(member, count, grain, piece)) {
              EXPECT_LE(piece.end - piece.begin, grain);
              for (int64_t i = piece.begin; i < piece.end; ++i) ++taken[static_cast<size_t>(i)];
            }
            team.barrier();
          });
          for (const std::atomic<int>& times : taken)
            ASSERT_EQ(times.load(), round) << count << " by " << grain;
        }
      }
}

TEST(SharedWork, OneComesLastAndSeesWhatTheOthersWrote) {
  for (int members : {1, 2, 3, 8}) {
    ThreadTeam team(members);
    SharedWork work(members);
    std::vector<int> written(static_cast<size_t>(members));  // plain: arriving is all that orders them
    for (int round = 1; round <= 200; ++round) {
      std::atomic<int> lasts{0};
      const int owner = round % members;
      team.run([&](int member) {
        work.restart(member);
        team.barrier();
        written[static_cast<size_t>(member)] = round;
        if (work.arrive(owner) + 1 < members) return;
        ++lasts;
        for (int other = 0; other < members; ++other) EXPECT_EQ(written[static_cast<size_t>(other)], round);
      });
      ASSERT_EQ(lasts.load(), 1) << members << " " << round;
    }
  }
}

TEST(SharedWork, OwnPartInOrderThenTheOthers) {
  // Nobody else works: member 1 of 3 takes its own part [4, 8) of 12 first, then member 2's, then member 0's.
  SharedWork work(3);
  std::vector<int64_t> begins;
  WorkRange piece{};
  while (work.take(1, 12, 2, piece)) begins.push_back(piece.begin);
  EXPECT_EQ(begins, (std::vector<int64_t>{4, 6, 8, 10, 0, 2}));
  EXPECT_FALSE(work.take(0, 12, 2, piece));
  work.restart(0);
  ASSERT_TRUE(work.take(2, 12, 2, piece));  // only member 0's part has begun again
  EXPECT_EQ(piece.begin, 0);
  EXPECT_EQ(piece.end, 2);
}

}  // namespace
}  // namespace kvasir
