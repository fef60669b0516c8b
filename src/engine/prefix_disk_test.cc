// Where a prefix is taken from when memory and disk both have one. Rows whose bytes are a function of their
// tokens stand in for a model's.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/test_folder.h"
#include "engine/prefix_cache.h"
#include "kv/test_rows.h"

namespace kvasir::engine {
namespace {

using kv::testing::counting;
using kv::testing::difference;
using kv::testing::joined;
using kv::testing::TestLayout;
using kv::testing::TestRow;
using namespace std::chrono_literals;

struct Fixture {
  TestFolder folder{"prefix-disk"};
  kv::CacheShape shape = kv::testing::make_shape({.page = 4});
  kv::KvCache cache{shape, TestLayout::factory(), kv::testing::pages_each(shape, 64), nullptr, true};
  std::vector<std::string> warnings;
  std::unique_ptr<PrefixCache> prefixes;

  explicit Fixture(size_t cap = size_t{1} << 30) { open(cap); }
  ~Fixture() { prefixes.reset(); }
  // As another run of the program.
  void open(size_t cap) {
    prefixes.reset();
    kv::DiskStore::Options options;
    options.dir = folder.path();
    options.identity.scheme_key = "test";
    options.verify = true;
    options.warn = [this](const std::string& text) { warnings.push_back(text); };
    prefixes = std::make_unique<PrefixCache>(cache, "k", cap, 0, std::make_unique<kv::DiskStore>(options));
  }
  void finished(const std::vector<int32_t>& tokens) {
    TestRow row{cache.create(), {}};
    kv::testing::append(cache, row, tokens);
    std::vector<int32_t> stops;
    prefixes->stored(row.tokens, row.sequence, stops, PrefixCache::Stage::finished);
  }
  int32_t taken(const std::vector<int32_t>& prompt) {
    const auto sequence = prefixes->take(prompt, 0);
    if (!sequence) return 0;
    EXPECT_EQ(difference(*sequence, {prompt.data(), static_cast<size_t>(sequence->offset())}), "");
    return sequence->offset();
  }
  uint64_t restores() const { return prefixes->disk_stats()->restores; }
};

// P30
TEST(PrefixDisk, ServesOnlyWhatMemoryHasLessOf) {
  Fixture f;
  f.finished(counting(0, 30));
  EXPECT_TRUE(f.prefixes->flush(20s).durable);
  EXPECT_EQ(f.taken(joined(counting(0, 30), {-1})), 30);
  EXPECT_EQ(f.restores(), 0u);  // as long in memory
  f.open(size_t{1} << 30);
  f.finished(counting(0, 12));
  EXPECT_EQ(f.taken(joined(counting(0, 12), {-1})), 12);
  EXPECT_EQ(f.restores(), 0u);
  EXPECT_EQ(f.prefixes->peek(counting(0, 40)), 30);
  EXPECT_EQ(f.taken(counting(0, 40)), 30);
  EXPECT_EQ(f.restores(), 1u);
  EXPECT_EQ(f.taken(counting(0, 40)), 30);
  EXPECT_EQ(f.restores(), 1u);                                  // memory has it now
  EXPECT_EQ(f.prefixes->write_stats()->pending_snapshots, 1u);  // the twelve alone
  EXPECT_FALSE(f.prefixes->take(counting(0, 40), 30));          // nothing that the caller has not
  EXPECT_TRUE(f.warnings.empty());
}

// P30.
TEST(PrefixDisk, WhatCannotBeRestoredFallsBackToMemory) {
  Fixture f;
  f.finished(counting(0, 30));
  f.open(size_t{1} << 30);  // closing has written it
  f.finished(counting(0, 12));
  for (const auto& file : std::filesystem::recursive_directory_iterator(f.folder.path()))
    if (file.path().extension() == ".kvk") {
      std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      damaged.seekp(-3, std::ios::end);
      damaged.put('~');
    }
  EXPECT_EQ(f.taken(counting(0, 40)), 12);
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_EQ(f.restores(), 0u);
  EXPECT_EQ(f.prefixes->peek(counting(0, 40)), 12);  // the damaged file is gone
  EXPECT_EQ(f.taken(counting(0, 40)), 12);
  EXPECT_EQ(f.warnings.size(), 1u);
}

TEST(PrefixDisk, ASequenceThatMemoryCannotTakeIsWrittenAndNotKept) {
  Fixture f(4096);
  f.finished(counting(0, 100));
  EXPECT_EQ(f.prefixes->stats().entries, 0u);
  EXPECT_TRUE(f.prefixes->flush(20s).durable);
  EXPECT_EQ(f.prefixes->disk_stats()->longest_prefix, 100u);
  EXPECT_EQ(f.taken(counting(0, 101)), 100);
}

TEST(PrefixDisk, IdleMakesDurableWithoutAFlush) {
  Fixture f;
  f.finished(counting(0, 30));
  EXPECT_EQ(f.prefixes->disk_stats()->entries, 0u);  // not while rows run
  f.prefixes->idle();
  for (int i = 0; i < 2000 && f.prefixes->disk_stats()->stores == 0; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(f.prefixes->disk_stats()->longest_prefix, 30u);
  EXPECT_EQ(f.prefixes->demote_idle(0ms), 1u);  // leaves memory for the disk
  EXPECT_EQ(f.prefixes->stats().bytes, 0u);
  EXPECT_EQ(f.taken(counting(0, 31)), 30);
  EXPECT_EQ(f.prefixes->write_stats()->demotions, 1u);
  EXPECT_GT(f.prefixes->relieve_pressure(1), 0u);
}

}  // namespace
}  // namespace kvasir::engine
