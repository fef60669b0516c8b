// P35 of kv-cache.md: byte bound, victim order, release on all paths, controls survive.
#include "kv/spill_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <semaphore>

#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::append;
using testing::counting;
using testing::difference;
using testing::TestLayout;
using testing::TestRow;
using Outcome = SpillQueue::Outcome;
using namespace std::chrono_literals;

constexpr auto kSoon = [] { return SpillQueue::Clock::now() + 20s; };

struct Fixture {
  CacheShape shape;
  KvCache cache;
  size_t nothing;
  std::vector<std::string> outcomes;  // "key outcome", in the order of Done
  explicit Fixture(const testing::ShapeOptions& options = {.page = 4})
      : shape(testing::make_shape(options)),
        cache(shape, TestLayout::factory(), testing::pages_each(shape, 512, 256), nullptr, true),
        nothing(cache.used_bytes()) {}

  // A sequence of its own pages; two of equal length take equal bytes.
  Sequence computed(int32_t from, int32_t count) {
    TestRow row{cache.create(), {}};
    append(cache, row, counting(from, count));
    return std::move(row.sequence);
  }
  void push(SpillQueue& queue, const std::string& key, int32_t from, int32_t count = 8) {
    queue.push(key, counting(from, count), computed(from, count));
  }
  SpillQueue::Done done() {
    return [this](std::string_view key, std::span<const int32_t>, Outcome outcome) {
      constexpr const char* kNames[] = {"written", "failed", "dropped"};
      outcomes.push_back(fmt::format("{} {}", key, kNames[static_cast<int>(outcome)]));
    };
  }
  size_t held() const { return cache.used_bytes() - nothing; }
};

// A sink that says which snapshot it has begun with, and goes on when it is told to.
struct Gate {
  std::counting_semaphore<1000> begun{0}, go{0};
  std::mutex mutex;
  std::vector<std::string> written;
  void wait_begun() { ASSERT_TRUE(begun.try_acquire_for(20s)); }
  SpillQueue::Sink sink() {
    return [this](std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence,
                  const WriteWatch& watch) {
      begun.release();
      while (!go.try_acquire_for(1ms)) watch.step();
      const std::lock_guard lock(mutex);
      written.push_back(std::string(key) + difference(sequence, tokens));
      return true;
    };
  }
};

TEST(SpillQueue, WritesInOrderOnAThreadOfItsOwn) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 16});
  std::vector<std::string> written;
  std::thread::id writer;
  {
    SpillQueue queue(
        [&](std::string_view key, std::span<const int32_t> tokens, const Sequence& sequence,
            const WriteWatch&) {
          writer = std::this_thread::get_id();
          written.push_back(std::string(key) + difference(sequence, tokens));
          return true;
        },
        f.done());
    EXPECT_TRUE(queue.idle());
    for (int32_t i = 0; i < 6; ++i) f.push(queue, std::string(1, static_cast<char>('a' + i)), 100 * i, 5 + i);
    EXPECT_TRUE(queue.drain(kSoon()));
    EXPECT_TRUE(queue.idle());
    EXPECT_EQ(f.held(), 0u);
    const SpillQueue::Stats stats = queue.stats();
    EXPECT_EQ(stats.pushed, 6u);
    EXPECT_EQ(stats.written, 6u);
    EXPECT_EQ(stats.pending, 0u);
    EXPECT_EQ(stats.pending_bytes, 0u);
  }
  EXPECT_EQ(written, std::vector<std::string>({"a", "b", "c", "d", "e", "f"}));
  EXPECT_NE(writer, std::this_thread::get_id());
  EXPECT_EQ(f.outcomes, std::vector<std::string>(
                            {"a written", "b written", "c written", "d written", "e written", "f written"}));
}

TEST(SpillQueue, OverTheCapTheOldestThatWaitsIsDropped) {
  Fixture f;
  const size_t each = f.computed(0, 8).physical_bytes();
  Gate gate;
  SpillQueue queue(gate.sink(), f.done(), 3 * each);
  f.push(queue, "a", 0);
  gate.wait_begun();
  f.push(queue, "b", 100);
  f.push(queue, "c", 200);
  EXPECT_EQ(queue.stats().pending_bytes, 3 * each);
  EXPECT_EQ(f.held(), 3 * each);
  EXPECT_TRUE(f.outcomes.empty());
  f.push(queue, "d", 300);  // a is being written
  EXPECT_EQ(f.outcomes, std::vector<std::string>({"b dropped"}));
  EXPECT_EQ(f.held(), 3 * each);
  f.push(queue, "e", 400, 16);  // twice the bytes
  EXPECT_EQ(f.outcomes, std::vector<std::string>({"b dropped", "c dropped", "d dropped"}));
  EXPECT_EQ(queue.stats().pending_bytes, 3 * each);
  f.push(queue, "f", 500,
         40);  // alone more than the cap: never the one just added, nor the one being written
  EXPECT_EQ(f.outcomes.back(), "e dropped");
  EXPECT_EQ(queue.stats().pending_bytes, each + 5 * each);
  gate.go.release(2);
  EXPECT_TRUE(queue.drain(kSoon()));
  EXPECT_EQ(gate.written, std::vector<std::string>({"a", "f"}));
  EXPECT_EQ(queue.stats().dropped, 4u);
  EXPECT_EQ(queue.stats().written, 2u);
  EXPECT_EQ(f.held(), 0u);
}

TEST(SpillQueue, ACapOfNothingKeepsTheNewestAndTheOneBeingWritten) {
  Fixture f;
  Gate gate;
  SpillQueue queue(gate.sink(), f.done(), 0);
  f.push(queue, "a", 0);
  gate.wait_begun();
  for (const char* key : {"b", "c", "d"}) f.push(queue, key, 100);
  EXPECT_EQ(queue.stats().pending, 2u);
  gate.go.release(2);
  EXPECT_TRUE(queue.drain(kSoon()));
  EXPECT_EQ(gate.written, std::vector<std::string>({"a", "d"}));
  EXPECT_EQ(f.held(), 0u);
}

TEST(SpillQueue, ControlsKeepTheirPlaceAndAreNeverDropped) {
  Fixture f;
  Gate gate;
  const auto note = [&](const char* text) {
    return [&gate, text] {
      const std::lock_guard lock(gate.mutex);
      gate.written.push_back(text);
    };
  };
  {
    SpillQueue queue(gate.sink(), f.done(), 0);
    f.push(queue, "a", 0);
    gate.wait_begun();
    queue.control(note("1"));
    f.push(queue, "b", 100);
    queue.control(note("2"));
    f.push(queue, "c", 200);
    queue.control(note("3"));
    while (queue.drop_oldest()) {
    }
    gate.go.release(1);
    f.push(queue, "d", 300);
    queue.control(note("4"));
    EXPECT_TRUE(queue.drain(kSoon()));
    EXPECT_EQ(gate.written, std::vector<std::string>({"1", "2", "3", "d", "4"}));
    f.push(queue, "e", 400);
    gate.wait_begun();  // d's
    gate.wait_begun();
    queue.control(note("5"));
  }  // e is given up; what must happen does
  EXPECT_EQ(gate.written.back(), "5");
  EXPECT_EQ(f.outcomes,
            std::vector<std::string>({"b dropped", "c dropped", "a dropped", "d written", "e dropped"}));
  EXPECT_EQ(f.held(), 0u);
}

TEST(SpillQueue, WhatASinkThrowsIsAFailureAndNothingElse) {
  Fixture f;
  SpillQueue queue(
      [](std::string_view key, std::span<const int32_t>, const Sequence&, const WriteWatch& watch) -> bool {
        if (key == "false") return false;
        if (key == "error") throw Error(ErrorCode::resource_exhausted, "disk full");
        if (key == "memory") throw std::bad_alloc();
        if (key == "other") throw 7;
        if (key == "late") {
          watch.read();
          throw Error(ErrorCode::corrupt_file, "not synced");
        }
        return true;
      },
      f.done());
  for (const char* key : {"false", "error", "memory", "other", "late", "good"}) f.push(queue, key, 0);
  EXPECT_TRUE(queue.drain(kSoon()));
  EXPECT_EQ(f.outcomes, std::vector<std::string>({"false failed", "error failed", "memory failed",
                                                  "other failed", "late failed", "good written"}));
  EXPECT_EQ(queue.stats().failed, 5u);
  EXPECT_EQ(queue.stats().written, 1u);
  EXPECT_EQ(f.held(), 0u);
}

TEST(SpillQueue, PagesAreReleasedWhenTheyHaveBeenRead) {
  Fixture f;
  Gate gate;
  std::counting_semaphore<> sync{0};
  SpillQueue queue(
      [&](std::string_view, std::span<const int32_t>, const Sequence&, const WriteWatch& watch) {
        gate.begun.release();
        gate.go.acquire();
        watch.read();
        sync.acquire();
        return true;
      },
      f.done());
  f.push(queue, "a", 0);
  gate.wait_begun();
  EXPECT_FALSE(queue.wait_read(SpillQueue::Clock::now() + 5ms));
  EXPECT_GT(f.held(), 0u);
  gate.go.release();
  EXPECT_TRUE(queue.wait_read(kSoon()));
  EXPECT_EQ(f.held(), 0u);
  EXPECT_EQ(queue.stats().pending, 1u);
  EXPECT_EQ(queue.stats().pending_bytes, 0u);
  EXPECT_FALSE(queue.idle());
  EXPECT_FALSE(queue.wait_read(kSoon()));  // there is nothing more to wait for
  EXPECT_FALSE(queue.drop_oldest());
  EXPECT_TRUE(f.outcomes.empty());
  sync.release();
  EXPECT_TRUE(queue.drain(kSoon()));
  EXPECT_EQ(f.outcomes, std::vector<std::string>({"a written"}));
}

TEST(SpillQueue, TheOneBeingWrittenIsGivenUpLast) {
  Fixture f;
  Gate gate;
  SpillQueue queue(gate.sink(), f.done());
  f.push(queue, "a", 0);
  gate.wait_begun();
  f.push(queue, "b", 100);
  EXPECT_TRUE(queue.drop_oldest());
  EXPECT_TRUE(queue.drop_oldest());
  EXPECT_EQ(f.outcomes, std::vector<std::string>({"b dropped", "a dropped"}));
  EXPECT_EQ(f.held(), 0u);
  EXPECT_FALSE(queue.drop_oldest());
  f.push(queue, "c", 200);  // the writer goes on
  gate.go.release();
  EXPECT_TRUE(queue.drain(kSoon()));
  EXPECT_EQ(f.outcomes.back(), "c written");
}

TEST(SpillQueue, ASlowSinkHoldsNobodyUp) {
  Fixture f;
  Gate gate;
  const auto begin = SpillQueue::Clock::now();
  {
    SpillQueue queue(gate.sink(), f.done());
    for (int32_t i = 0; i < 20; ++i) f.push(queue, "x", 100 * i);
    EXPECT_FALSE(queue.drain(SpillQueue::Clock::now() + 20ms));
    EXPECT_EQ(queue.stats().pending, 20u);
  }
  EXPECT_LT(SpillQueue::Clock::now() - begin, 10s);
  EXPECT_EQ(f.outcomes, std::vector<std::string>(20, "x dropped"));
  EXPECT_EQ(f.held(), 0u);
}

// Rows go on while the writer reads what they have shared with it.
TEST(SpillQueue, SnapshotsDoNotChange) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 16});
  std::atomic<int> wrong = 0, seen = 0;
  {
    SpillQueue queue([&](std::string_view, std::span<const int32_t> tokens, const Sequence& sequence,
                         const WriteWatch& watch) {
      for (int i = 0; i < 5; ++i) {
        watch.step();
        wrong += !difference(sequence, tokens).empty();
        ++seen;
      }
      return true;
    });
    TestRow row{f.cache.create(), {}};
    for (int32_t turn = 0; turn < 60; ++turn) {
      append(f.cache, row, counting(1000 * turn, 1 + turn % 3));
      queue.push("x", row.tokens, row.sequence.fork());
      if (turn % 20 == 19) {
        row.sequence.truncate(0);
        row.tokens.clear();
      }
    }
    EXPECT_TRUE(queue.drain(kSoon()));
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(seen, 300);
  EXPECT_EQ(f.held(), 0u);
}

// P35.
TEST(SpillQueue, RandomPrograms) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Fixture f({.page = 4, .window = seed % 2 == 0 ? std::optional<int>(6) : std::nullopt});
    const size_t each = f.computed(0, 8).physical_bytes();
    const size_t cap = random() % 5 * each;
    std::mutex mutex;
    std::mt19937 choices(seed + 1000);
    std::vector<int> controls;
    std::atomic<int> wrong = 0;
    std::map<std::string, int> pushed, told;
    uint64_t drops = 0;
    {
      SpillQueue queue(
          [&](std::string_view, std::span<const int32_t> tokens, const Sequence& sequence,
              const WriteWatch& watch) -> bool {
            uint32_t choice;
            {
              const std::lock_guard lock(mutex);
              choice = static_cast<uint32_t>(choices());
            }
            if (choice % 5 == 0) std::this_thread::sleep_for(200us);
            watch.step();
            wrong += !difference(sequence, tokens).empty();
            if (choice % 3 == 0) watch.read();
            if (choice % 7 == 0) throw Error(ErrorCode::internal, "no");
            watch.step();
            return choice % 11 != 0;
          },
          [&](std::string_view key, std::span<const int32_t> tokens, Outcome outcome) {
            EXPECT_EQ(std::to_string(tokens[0]), key);
            ++told[std::string(key)];
            drops += outcome == Outcome::dropped;
          },
          cap);
      int next_control = 0;
      for (int32_t i = 0; i < 60; ++i) {
        switch (random() % 6) {
          case 0:
            queue.reap();
            break;
          case 1:
            queue.control([&controls, &mutex, n = next_control++] {
              const std::lock_guard lock(mutex);
              controls.push_back(n);
            });
            break;
          case 2:
            if (random() % 4 == 0) queue.drop_oldest();
            if (random() % 4 == 0) queue.cancel(std::to_string(1000 * (random() % 60)));
            break;
          case 3:
            if (random() % 4 == 0) {
              EXPECT_TRUE(queue.drain(kSoon()));
            }
            break;
          default: {
            const std::string key = std::to_string(1000 * i);
            const int32_t count = 1 + static_cast<int32_t>(random() % 20);
            Sequence snapshot = f.computed(1000 * i, count);
            ++pushed[key];
            const bool before = told.contains(key);
            queue.push(key, counting(1000 * i, count), std::move(snapshot));
            EXPECT_FALSE(before);
            const SpillQueue::Stats stats = queue.stats();
            // The newest and the one being written may be there beyond the cap, nothing else may.
            EXPECT_TRUE(stats.pending_bytes <= cap || stats.pending <= 2);
          }
        }
      }
      if (seed % 2 == 0) {
        EXPECT_TRUE(queue.drain(kSoon()));
        EXPECT_EQ(controls.size(), static_cast<size_t>(next_control));
      }
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(pushed, told);  // each exactly once
    EXPECT_TRUE(std::is_sorted(controls.begin(), controls.end()));
    EXPECT_EQ(f.held(), 0u);
  }
}

}  // namespace
}  // namespace kvasir::kv
