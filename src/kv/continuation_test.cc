// P37 of kv-cache.md: no interleaving of checkpoints, completions and failures brings a completed key back.
#include "kv/continuation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_folder.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::counting;
using testing::difference;
using testing::Held;
using testing::joined;
using testing::TestLayout;
using testing::TestRow;
using namespace std::chrono_literals;

struct Fixture {
  TestFolder folder{"continuation"};
  CacheShape shape = testing::make_shape({.page = 4, .window = 6, .state_bytes = 8});
  KvCache cache{shape, TestLayout::factory(), testing::pages_each(shape, 256, 64), nullptr, true};
  std::mutex mutex;
  std::vector<std::string> warnings;
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Continuations> continuations;

  Fixture() { open(); }
  void open(size_t pinned = SpillQueue::kDefaultCap) {
    continuations.reset();
    DiskStore::Options options;
    options.dir = folder.path();
    options.identity.scheme_key = "test";
    options.verify = true;
    store = std::make_unique<DiskStore>(options);
    continuations = std::make_unique<Continuations>(
        *store,
        [this](const std::string& text) {
          const std::lock_guard lock(mutex);
          warnings.push_back(text);
        },
        pinned);
  }
  // A generation of which `count` tokens were stored; `mark` is one of them, so that states can be told
  // apart.
  static Continuation state(int32_t mark, int32_t count = 5) {
    return {.ns = "lora",
            .original_prompt_tokens = counting(0, 9),
            .generated_tokens = joined({mark}, counting(100, count - 1)),
            .pending_token = 7,
            .seed = 0xFEDCBA9876543210u,
            .seed_was_explicit = true};
  }
  void save(std::string_view key, const Continuation& state) {
    const TestRow row =
        testing::computed(cache, joined(state.original_prompt_tokens, state.generated_tokens));
    continuations->save(key, state, row.sequence);
  }
  // Which of them is found; -1: none.
  int32_t found(std::string_view key) {
    const auto at = continuations->load(key, cache);
    if (!at) return -1;
    EXPECT_EQ(difference(at->sequence, joined(at->state.original_prompt_tokens, at->state.generated_tokens)),
              "");
    return at->state.generated_tokens.at(0);
  }
  bool drain() { return continuations->drain(SpillQueue::Clock::now() + 20s); }
  size_t held() const { return cache.used_bytes() - cache.states().stored_bytes(); }
};

TEST(Continuations, AnotherRunGoesOn) {
  Fixture f;
  f.save("job", f.state(3));
  EXPECT_TRUE(f.drain());
  f.open();
  const auto found = f.continuations->load("job", f.cache);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.ns, "lora");
  EXPECT_EQ(found->state.original_prompt_tokens, counting(0, 9));
  EXPECT_EQ(found->state.generated_tokens, joined({3}, counting(100, 4)));
  EXPECT_EQ(found->state.pending_token, 7);
  EXPECT_EQ(found->state.seed, 0xFEDCBA9876543210u);
  EXPECT_TRUE(found->state.seed_was_explicit);
  EXPECT_EQ(found->sequence.offset(), 14);
  EXPECT_EQ(f.found("other"), -1);
  EXPECT_THROW(f.save("", f.state(1)), Error);
  EXPECT_THROW(f.save(std::string(181, 'x'), f.state(1)), Error);
  EXPECT_THAT(f.warnings, ::testing::IsEmpty());
}

// Numbers that a conversion would bend into the right ones: 4294967303 is 7 in 32 bits.
TEST(Continuations, AStateWithWhatIsNoNumberOfItsKindIsNotGoneOnWith) {
  Fixture f;
  const Continuation state = f.state(3);
  const std::vector<int32_t> tokens = joined(state.original_prompt_tokens, state.generated_tokens);
  const TestRow row = testing::computed(f.cache, tokens);
  const nlohmann::json good = {{"key", "job"},
                               {"cache_ns", "lora"},
                               {"original_prompt_tokens", state.original_prompt_tokens},
                               {"generated_tokens", state.generated_tokens},
                               {"pending_token", 7},
                               {"seed", state.seed},
                               {"seed_was_explicit", true}};
  const auto pending = [&](const nlohmann::json& value) -> int32_t {
    nlohmann::json checkpoint = good;
    checkpoint.update(value);
    f.store->save("generation:job", "lora", tokens, row.sequence,
                  nlohmann::json{{"generation_checkpoint", checkpoint}}.dump());
    const auto found = f.continuations->load("job", f.cache);
    return found ? found->state.pending_token : -100;
  };
  EXPECT_EQ(pending(nlohmann::json::object()), 7);
  EXPECT_EQ(pending({{"pending_token", -1}}), -1);
  EXPECT_THAT(f.warnings, ::testing::IsEmpty());
  const nlohmann::json first_bent = [&] {
    nlohmann::json list = state.original_prompt_tokens;
    list[0] = list[0].get<int64_t>() + (int64_t{1} << 32);
    return list;
  }();
  nlohmann::json fraction = state.generated_tokens;
  fraction[0] = 3.25;
  const std::pair<nlohmann::json, const char*> bad[] = {
      {{{"pending_token", 4294967303}}, "4294967303"},
      {{{"pending_token", -2}}, "-2"},
      {{{"pending_token", 7.5}}, "7.5"},
      {{{"pending_token", true}}, "true"},
      {{{"pending_token", "7"}}, "7"},
      {{{"original_prompt_tokens", first_bent}}, "42949672"},
      {{{"generated_tokens", fraction}}, "3.25"},
      {{{"generated_tokens", 3}}, "list of token ids"},
      {{{"seed", -1}}, "a seed"},
      {{{"seed", 1.5}}, "a seed"}};
  for (const auto& [fields, word] : bad) {
    f.warnings.clear();
    EXPECT_EQ(pending(fields), -100) << fields;
    EXPECT_THAT(f.warnings, ::testing::ElementsAre(::testing::HasSubstr(word))) << fields;
  }
}

TEST(Continuations, ANewerAttemptCancelsTheQueuedOnes) {
  Fixture f;
  {
    const Held held(f.folder.path());
    f.save("other", f.state(50));
    for (int32_t mark = 1; mark <= 5; ++mark) f.save("job", f.state(mark));
    EXPECT_LE(f.continuations->stats().pending, 3u);  // of job the last, and the first if it was begun with
  }
  EXPECT_TRUE(f.drain());
  EXPECT_EQ(f.found("job"), 5);
  EXPECT_EQ(f.found("other"), 50);
  EXPECT_EQ(f.continuations->stats().written, 2u);
  EXPECT_EQ(f.continuations->stats().dropped, 4u);
  EXPECT_EQ(f.held(), 0u);
}

// P37.
TEST(Continuations, CompletionTakesEffectAtOnceAndIsNotOvertaken) {
  Fixture f;
  f.save("job", f.state(1));
  EXPECT_TRUE(f.drain());
  {
    const Held held(f.folder.path());
    f.save("other", f.state(50));  // the writer hangs here
    f.save("job", f.state(2));
    f.continuations->complete("job");
    EXPECT_FALSE(f.continuations->eligible("job"));
    EXPECT_EQ(f.found("job"), -1);  // though its file is still there
    f.save("job", f.state(3));      // another generation of this name
    EXPECT_EQ(f.found("job"), -1);
  }
  EXPECT_TRUE(f.drain());
  EXPECT_EQ(f.found("job"), 3);
  f.continuations->complete("job");
  f.continuations.reset();  // what waits is given up, removals are not
  f.open();
  EXPECT_EQ(f.found("job"), -1);
  EXPECT_EQ(f.found("other"), 50);
}

TEST(Continuations, AFailedRemovalKeepsTheKeyIneligible) {
  Fixture f;
  f.save("job", f.state(1));
  EXPECT_TRUE(f.drain());
  // A folder in its place cannot be unlinked.
  const fs::path path = f.store->entries().at(0).path;
  fs::remove(path);
  fs::create_directories(path / "x");
  f.continuations->complete("job");
  EXPECT_TRUE(f.drain());
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_FALSE(f.continuations->eligible("job"));
  f.save("job", f.state(2));
  EXPECT_TRUE(f.drain());
  EXPECT_EQ(f.continuations->stats().written, 2u);
  EXPECT_FALSE(f.continuations->eligible("job"));
  EXPECT_EQ(f.found("job"), -1);  // a write does not lift it
  f.continuations->complete("job");
  EXPECT_TRUE(f.drain());
  EXPECT_TRUE(f.continuations->eligible("job"));
  EXPECT_EQ(f.found("job"), -1);
  f.save("job", f.state(3));
  EXPECT_TRUE(f.drain());
  EXPECT_EQ(f.found("job"), 3);
}

TEST(Continuations, ADamagedOneIsAWarning) {
  Fixture f;
  f.save("job", f.state(1));
  EXPECT_TRUE(f.drain());
  const fs::path path = f.store->entries().at(0).path;
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_EQ(f.found("job"), -1);
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_EQ(f.held(), 0u);
}

TEST(Continuations, WhatWasCompletedNeverComesBack) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Fixture f;
    f.open(seed % 3 == 0 ? 0 : SpillQueue::kDefaultCap);
    const std::string keys[] = {"a", "b"};
    int32_t clock = 0, saved[2] = {-1, -1}, completed[2] = {-1, -1};
    std::optional<Held> held;
    const auto check = [&](bool drained) {
      for (int k = 0; k < 2; ++k) {
        const int32_t at = f.found(keys[k]);
        EXPECT_TRUE(at < 0 || at > completed[k]) << at << " after " << completed[k];
        EXPECT_LE(at, saved[k]);
        // Everything of this key was written in order, so the newest is what is there.
        if (drained && (saved[k] <= completed[k] || seed % 3 != 0)) {
          EXPECT_EQ(at, saved[k] > completed[k] ? saved[k] : -1);
        }
      }
    };
    for (int step = 0; step < 50; ++step) {
      const int k = static_cast<int>(random() % 2);
      switch (random() % 6) {
        case 0:
          f.continuations->complete(keys[k]);
          completed[k] = ++clock;
          break;
        case 1:
          if (held)
            held.reset();
          else
            held.emplace(f.folder.path());
          break;
        case 2:
          if (!held) {
            EXPECT_TRUE(f.drain());
            check(true);
          }
          break;
        default:
          saved[k] = ++clock;
          f.save(keys[k], f.state(saved[k], 1 + static_cast<int32_t>(random() % 20)));
      }
      check(false);
    }
    held.reset();
    EXPECT_TRUE(f.drain());
    check(true);
    for (const std::string& key : keys) f.continuations->complete(key);
    f.continuations.reset();
    EXPECT_TRUE(f.store->entries().empty());
    f.open();
    for (const std::string& key : keys) EXPECT_EQ(f.found(key), -1);
    EXPECT_EQ(f.held(), 0u);
    EXPECT_THAT(f.warnings, ::testing::IsEmpty());
  }
}

}  // namespace
}  // namespace kvasir::kv
