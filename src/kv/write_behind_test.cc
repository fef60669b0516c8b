#include "kv/write_behind.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <thread>

#include "base/test_file_size.h"
#include "base/test_folder.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::append;
using testing::counting;
using testing::difference;
using testing::Held;
using testing::joined;
using testing::TestLayout;
using testing::TestRow;
using namespace std::chrono_literals;

constexpr size_t kUnlimited = size_t{1} << 40;

struct Settings {
  testing::ShapeOptions shape = {.page = 4};
  size_t tree_cap = kUnlimited;
  uint32_t pages = 256;
  uint64_t store_cap = uint64_t{1} << 30;
  WriteBehind::Options writing = {};
};

struct Fixture {
  TestFolder folder{"write-behind"};
  CacheShape shape;
  KvCache cache;
  std::mutex mutex;
  std::vector<std::string> warnings;  // the writer's thread adds some
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<PrefixTree> tree;
  std::unique_ptr<WriteBehind> writing;

  explicit Fixture(Settings settings = {})
      : shape(testing::make_shape(settings.shape)),
        cache(shape, TestLayout::factory(), testing::pages_each(shape, settings.pages, 256), nullptr, true) {
    store = std::make_unique<DiskStore>(options(settings.store_cap));
    tree = std::make_unique<PrefixTree>(cache, settings.tree_cap);
    settings.writing.ns = [](std::string_view key) { return std::string(key); };
    settings.writing.warn = [this](const std::string& text) { warn(text); };
    writing = std::make_unique<WriteBehind>(*store, *tree, settings.writing);
    cache.on_pressure([this] { return writing->relieve(); });
  }
  ~Fixture() { cache.on_pressure(nullptr); }
  DiskStore::Options options(uint64_t cap = uint64_t{1} << 30) {
    DiskStore::Options o;
    o.dir = folder.path();
    o.identity = testing::test_identity();
    o.cap_bytes = cap;
    o.verify = true;
    o.warn = [this](const std::string& text) { warn(text); };
    return o;
  }
  void warn(const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  }
  TestRow computed(const std::vector<int32_t>& tokens) { return testing::computed(cache, tokens); }
  // What an engine does with a finished row; its own references go.
  void turn(const std::vector<int32_t>& tokens, std::string_view key = "k") {
    const TestRow row = computed(tokens);
    ASSERT_TRUE(tree->put(key, row.tokens, row.sequence));
    writing->mark(key, row.tokens, row.sequence);
  }
  bool on_disk(const std::vector<int32_t>& tokens, std::string_view key = "k") {
    const auto found = store->find(key, joined(tokens, {-1}));
    if (!found || found->length != static_cast<int32_t>(tokens.size())) return false;
    auto sequence = store->restore(cache, found->entry, found->length);
    return sequence && difference(*sequence, tokens).empty();
  }
  size_t files(const char* suffix = ".kvk") const {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      count += entry.path().native().ends_with(suffix);
    return count;
  }
  // Where a namespace's folder would be lies a file, so nothing can be written there. Undone by remove.
  fs::path obstruct(const std::vector<int32_t>& tokens, std::string_view key) {
    turn(tokens, key);
    EXPECT_TRUE(writing->flush(10s).durable);
    const auto found = store->find(key, joined(tokens, {-1}));
    const fs::path place = found->entry.path.parent_path();
    fs::remove_all(place);
    EXPECT_FALSE(store->restore(cache, found->entry, found->length));  // gone from the index, too
    std::ofstream(place) << "in the way";
    return place;
  }
};

// P36
TEST(WriteBehind, ConversationsOfEqualLengthStayDistinct) {
  Fixture f;
  const auto a = counting(0, 9), b = joined(counting(0, 8), {77});
  f.turn(a);
  f.turn(b);
  f.turn(a, "lora");
  EXPECT_EQ(f.writing->stats().pending_snapshots, 3u);
  EXPECT_EQ(f.files(), 0u);
  const WriteBehind::Flushed flushed = f.writing->flush(20s);
  EXPECT_TRUE(flushed.durable);
  EXPECT_TRUE(flushed.in_time);
  EXPECT_EQ(flushed.entries, 3u);
  EXPECT_EQ(flushed.longest_durable_prefix_tokens, 9u);
  EXPECT_EQ(f.files(), 3u);
  EXPECT_TRUE(f.on_disk(a));
  EXPECT_TRUE(f.on_disk(b));
  EXPECT_TRUE(f.on_disk(a, "lora"));
  EXPECT_EQ(f.writing->stats().spills, 3u);
  EXPECT_EQ(f.writing->stats().pending_snapshots, 0u);
  EXPECT_TRUE(f.writing->flush(0s).durable);  // nothing is written twice
  EXPECT_EQ(f.store->stats().stores, 3u);
  f.turn(a);  // put again, as a turn that comes back does: the file is there
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_EQ(f.store->stats().stores, 3u);
}

// P36.
TEST(WriteBehind, FailedStoresAreRetried) {
  Fixture f;
  const fs::path place = f.obstruct(counting(900, 5), "k");
  const auto a = counting(0, 9), b = counting(100, 12);
  f.turn(a);
  f.turn(b, "lora");
  for (int i = 0; i < 2; ++i) {
    const WriteBehind::Flushed flushed = f.writing->flush(20s);
    EXPECT_FALSE(flushed.durable);
    EXPECT_EQ(flushed.failed, 1u);
    EXPECT_EQ(flushed.pending + flushed.dropped + flushed.missing, 0u);
    EXPECT_EQ(flushed.longest_durable_prefix_tokens, 12u);
    EXPECT_EQ(f.writing->stats().failed_spills, static_cast<uint64_t>(1 + i));
    EXPECT_EQ(f.warnings.size(), static_cast<size_t>(1 + i));
  }
  f.writing->idle();  // does not repeat what failed
  EXPECT_EQ(f.writing->stats().pending_spills, 0u);
  EXPECT_EQ(f.tree->peek("k", joined(a, {1})), 9);
  fs::remove(place);
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_TRUE(f.on_disk(a));
  EXPECT_TRUE(f.on_disk(b, "lora"));
}

TEST(WriteBehind, AFullDiskFailsAndIsTriedAgain) {
  Fixture f;
  f.turn(counting(0, 9));
  f.turn(counting(100, 200));
  WriteBehind::Flushed full;
  {
    const FileSizeLimit small(40000);
    full = f.writing->flush(20s);
  }
  EXPECT_FALSE(full.durable);
  EXPECT_EQ(full.failed, 1u);
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_TRUE(f.on_disk(counting(0, 9)));
  EXPECT_EQ(f.files(".tmp"), 0u);
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_TRUE(f.on_disk(counting(100, 200)));
}

TEST(WriteBehind, ALongerSequenceSaysWhatItsPrefixesSaid) {
  Fixture f;
  f.turn(counting(0, 8));
  f.turn(counting(0, 20));
  EXPECT_EQ(f.writing->stats().pending_snapshots, 1u);
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_EQ(f.files(), 1u);
  EXPECT_TRUE(f.on_disk(counting(0, 13)));
  // Where only points can be resumed, each is one.
  Fixture g({.shape = {.page = 4, .window = 6}});
  g.turn(counting(0, 8));
  g.turn(counting(0, 20));
  EXPECT_TRUE(g.writing->flush(20s).durable);
  EXPECT_EQ(g.files(), 2u);
  EXPECT_TRUE(g.on_disk(counting(0, 8)));
  EXPECT_TRUE(g.on_disk(counting(0, 20)));
}

TEST(WriteBehind, IdleWritesInTheBackground) {
  Fixture f;
  {
    const Held held(f.folder.path());
    f.turn(counting(0, 9));
    f.turn(counting(100, 9));
    f.writing->idle();
    EXPECT_EQ(f.writing->stats().pending_snapshots, 0u);
    EXPECT_EQ(f.writing->stats().pending_spills, 2u);
    EXPECT_GT(f.writing->stats().pending_spill_bytes, 0u);
    f.writing->idle();  // once each
    EXPECT_EQ(f.writing->stats().spills, 2u);
    EXPECT_EQ(f.files(), 0u);
    const WriteBehind::Flushed early = f.writing->flush(1ms);
    EXPECT_FALSE(early.in_time);
    EXPECT_FALSE(early.durable);
    EXPECT_EQ(early.pending, 2u);
  }
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_EQ(f.files(), 2u);
  // The last used is the last that the store would evict.
  EXPECT_EQ(f.store->entries().back().tokens, counting(100, 9));
}

TEST(WriteBehind, ADroppedOneStaysMarked) {
  Fixture f;
  {
    const Held held(f.folder.path());
    f.turn(counting(0, 9));
    f.turn(counting(100, 9));
    f.writing->idle();
    f.writing->be_patient(false);
    // Everything the tree holds is the writer's, too: what frees pages is to give up snapshots.
    while (f.writing->stats().pending_spills > 1) ASSERT_TRUE(f.writing->relieve());
    EXPECT_EQ(f.writing->stats().dropped_spills, 1u);
    EXPECT_EQ(f.writing->stats().pending_snapshots, 1u);
  }
  EXPECT_TRUE(f.writing->flush(20s).durable);
  EXPECT_EQ(f.files(), 2u);
}

TEST(WriteBehind, EvictionForTheCapGoesThroughTheWriter) {
  for (const bool windowed : {false, true}) {
    Settings settings;
    if (windowed) settings.shape.window = 6;
    Fixture probe(settings);
    settings.tree_cap = probe.computed(counting(0, 12)).sequence.physical_bytes() * 5 / 2;
    Fixture f(settings);
    for (int32_t i = 0; i < 12; ++i) f.turn(counting(100 * i, 12));
    EXPECT_LE(f.tree->stats().bytes, settings.tree_cap);
    EXPECT_GE(f.writing->stats().spills, 10u);
    EXPECT_TRUE(f.writing->flush(20s).durable);
    EXPECT_EQ(f.files(), 12u);
    for (int32_t i = 0; i < 12; ++i) EXPECT_TRUE(f.on_disk(counting(100 * i, 12))) << i;
    EXPECT_EQ(f.cache.used_bytes(), f.tree->stats().bytes);  // nothing else holds a page
  }
}

TEST(WriteBehind, LiveRowsWaitForTheWriterWhileNobodyDecodes) {
  Fixture f({.pages = 8});
  for (int32_t i = 0; i < 10; ++i) {
    f.writing->be_patient(true);
    f.turn(counting(100 * i, 24));  // six of the eight pages
  }
  EXPECT_EQ(f.writing->stats().dropped_spills, 0u);
  EXPECT_TRUE(f.writing->flush(20s).durable);
  for (int32_t i = 0; i < 10; ++i) EXPECT_TRUE(f.on_disk(counting(100 * i, 24))) << i;
}

TEST(WriteBehind, ADecodingRowDoesNotWait) {
  Fixture f({.pages = 8});
  {
    const Held held(f.folder.path());  // nothing can be written
    f.writing->be_patient(false);
    for (int32_t i = 0; i < 10; ++i) f.turn(counting(100 * i, 24));
    EXPECT_EQ(f.writing->stats().dropped_spills, 9u);
    EXPECT_EQ(f.writing->stats().spills, 0u);
  }
  const WriteBehind::Flushed flushed = f.writing->flush(20s);
  EXPECT_FALSE(flushed.durable);
  EXPECT_EQ(flushed.missing, 9u);
  EXPECT_TRUE(f.on_disk(counting(900, 24)));
  EXPECT_FALSE(f.on_disk(counting(800, 24)));
  EXPECT_TRUE(f.writing->flush(20s).durable);  // told of once
  // What is stored is given up without a loss.
  f.turn(counting(2000, 24));
  EXPECT_EQ(f.writing->stats().dropped_spills, 9u);
}

TEST(WriteBehind, PatienceEnds) {
  Fixture f({.pages = 8, .writing = {.patience = 20ms}});
  std::thread later;
  {
    auto held = std::make_unique<Held>(f.folder.path());
    f.turn(counting(0, 24));
    f.writing->be_patient(true);
    later = std::thread([&held] {
      std::this_thread::sleep_for(200ms);
      held.reset();
    });
    // Its pages are with the writer, which hangs; given up as soon as it answers.
    f.turn(counting(100, 24));
    later.join();
  }
  EXPECT_EQ(f.writing->stats().dropped_spills, 1u);
  f.writing->flush(20s);
  EXPECT_TRUE(f.on_disk(counting(100, 24)));
  EXPECT_FALSE(f.on_disk(counting(0, 24)));
}

// P31
TEST(WriteBehind, PressureReliefStopsAtTheFirstFailedStore) {
  Fixture f;
  const fs::path place = f.obstruct(counting(900, 5), "bad");
  f.tree->clear();
  const size_t page = f.cache.pool(0, true).page_bytes();
  f.turn(counting(0, 8));
  f.turn(counting(100, 8));
  f.turn(counting(200, 8), "bad");
  f.turn(counting(300, 8));
  EXPECT_EQ(f.writing->relieve_pressure(page), page);  // as much as asked for, of the least recently used
  EXPECT_EQ(f.writing->stats().demotions, 1u);
  EXPECT_TRUE(f.on_disk(counting(0, 8)));
  EXPECT_FALSE(f.on_disk(counting(100, 8)));
  EXPECT_EQ(f.writing->relieve_pressure(kUnlimited), 3 * page);
  EXPECT_EQ(f.writing->stats().demotions, 2u);
  EXPECT_EQ(f.writing->stats().failed_spills, 1u);
  EXPECT_TRUE(f.on_disk(counting(100, 8)));
  EXPECT_EQ(f.tree->peek("k", counting(100, 9)), 0);
  EXPECT_EQ(f.tree->peek("bad", counting(200, 9)), 8);  // what could not be stored is there
  EXPECT_EQ(f.tree->peek("k", counting(300, 9)), 8);    // and so is what is more recent
  fs::remove(place);
  EXPECT_EQ(f.writing->relieve_pressure(kUnlimited), 4 * page);
  EXPECT_EQ(f.cache.used_bytes(), 0u);
  EXPECT_TRUE(f.on_disk(counting(200, 8), "bad"));
  EXPECT_TRUE(f.on_disk(counting(300, 8)));
}

TEST(WriteBehind, DemoteIdleMovesWhatWasNotUsed) {
  Fixture f;
  const fs::path place = f.obstruct(counting(900, 5), "bad");
  f.tree->clear();
  f.turn(counting(0, 8));
  f.turn(counting(100, 8));
  f.turn(counting(200, 8));
  EXPECT_EQ(f.writing->demote_idle(1h), 0u);
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(f.tree->take("k", counting(100, 9)).offset(), 8);  // used
  EXPECT_EQ(f.writing->demote_idle(20ms), 2u);
  EXPECT_EQ(f.writing->stats().demotions, 2u);
  EXPECT_EQ(f.tree->stats().entries, 1u);
  EXPECT_EQ(f.tree->peek("k", counting(100, 9)), 8);
  EXPECT_TRUE(f.on_disk(counting(0, 8)));
  EXPECT_FALSE(f.on_disk(counting(100, 8)));
  EXPECT_TRUE(f.on_disk(counting(200, 8)));
  f.turn(counting(300, 8), "bad");
  f.turn(counting(400, 8));
  EXPECT_EQ(f.writing->demote_idle(0ms), 1u);  // stops where a store fails
  EXPECT_EQ(f.tree->peek("bad", counting(300, 9)), 8);
  EXPECT_EQ(f.tree->peek("k", counting(400, 9)), 8);
  fs::remove(place);
}

TEST(WriteBehind, ClosingWritesWhatIsLeftAndEndsInTime) {
  {
    Fixture f;
    f.turn(counting(0, 9));
    f.turn(counting(100, 9));
    f.writing.reset();
    EXPECT_EQ(f.files(), 2u);
    EXPECT_TRUE(f.on_disk(counting(0, 9)));
    EXPECT_EQ(f.tree->stats().spills, 0u);
  }
  Fixture f({.writing = {.closing = 0ms}});
  for (int32_t i = 0; i < 30; ++i) f.turn(counting(1000 * i, 100));
  f.writing->idle();
  f.writing.reset();
  EXPECT_LT(f.files(), 30u);
  EXPECT_EQ(f.files(".tmp"), 0u);
  EXPECT_EQ(f.warnings.size(), 1u);
  for (const StoredFile& file : verify_store(f.folder.path())) EXPECT_EQ(file.error, "");
  f.tree->clear();
  EXPECT_EQ(f.cache.used_bytes(), 0u);
}

// Beyond the store's cap the last used are kept, and nothing is written to be evicted at once.
TEST(WriteBehind, ClosingKeepsWithinTheStoresCap) {
  Fixture probe;
  const TestRow row = probe.computed(counting(0, 100));
  ASSERT_TRUE(probe.store->put("", row.tokens, row.sequence));
  const uint64_t each = fs::file_size(probe.store->entries()[0].path);
  Fixture f({.store_cap = 3 * each + each / 2});
  for (int32_t i = 0; i < 8; ++i) f.turn(counting(1000 * i, 100));
  const WriteBehind::Flushed flushed = f.writing->flush(20s);
  EXPECT_FALSE(flushed.durable);
  EXPECT_EQ(flushed.pending, 5u);
  EXPECT_EQ(f.store->stats().stores, 3u);
  EXPECT_TRUE(f.on_disk(counting(7000, 100)));
}

// Turns at random with a store that fails now and then: what memory or disk gives back is right, every page
// is accounted for, and what a flush calls durable is found by another run.
TEST(WriteBehind, RandomTurns) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Settings settings;
    settings.pages = 60;
    if (seed % 2 == 0) settings.shape.window = 6;
    if (seed % 5 == 0) settings.shape.state_bytes = 8;
    settings.writing.pinned_bytes = seed % 3 == 0 ? 0 : seed % 3 * 8000;
    settings.writing.patience = 200ms;
    Fixture f(settings);
    const fs::path place = f.obstruct(counting(90000, 5), "bad");
    std::vector<std::vector<int32_t>> pasts;
    for (int turn = 0; turn < 60; ++turn) {
      f.writing->be_patient(random() % 3 != 0);
      switch (random() % 8) {
        case 0:
          f.writing->idle();
          break;
        case 1:
          f.writing->flush(20s);
          break;
        case 2:
          f.writing->demote_idle(std::chrono::milliseconds(random() % 3));
          break;
        case 3:
          f.writing->relieve_pressure(random() % 8000);
          break;
        case 4:
          if (turn > 20 && fs::is_regular_file(place)) fs::remove(place);
          break;
        default: {
          std::vector<int32_t> prompt;
          if (!pasts.empty() && random() % 3 != 0) prompt = pasts[random() % pasts.size()];
          if (prompt.size() > 80) prompt.resize(20);
          prompt = joined(prompt, testing::random_tokens(random, 1 + random() % 30, 3));
          const std::string key = random() % 3 == 0 ? "bad" : "k";
          TestRow row{f.tree->take(key, prompt), {}};
          if (const auto found = f.store->find(key, prompt); found && found->length > row.sequence.offset())
            if (auto restored = f.store->restore(f.cache, found->entry, found->length))
              row.sequence = std::move(*restored);
          row.tokens.assign(prompt.begin(), prompt.begin() + row.sequence.offset());
          ASSERT_EQ(difference(row), "");
          append(f.cache, row, std::span(prompt).subspan(row.tokens.size()));
          ASSERT_EQ(difference(row), "");
          if (f.tree->put(key, row.tokens, row.sequence)) f.writing->mark(key, row.tokens, row.sequence);
          pasts.push_back(prompt);
        }
      }
    }
    if (fs::is_regular_file(place)) fs::remove(place);
    f.writing->flush(20s);  // tells of what was lost
    EXPECT_TRUE(f.writing->flush(20s).durable);
    std::vector<std::pair<std::string, std::vector<int32_t>>> held;
    f.tree->each_point([&](std::string_view key, std::span<const int32_t> tokens, const Sequence&) {
      held.emplace_back(key, std::vector<int32_t>(tokens.begin(), tokens.end()));
      return true;
    });
    for (const auto& [key, tokens] : held) EXPECT_TRUE(f.on_disk(tokens, key));
    const size_t initial = f.shape.state_bytes > 0 ? f.cache.states().stored_bytes() : 0;
    EXPECT_EQ(f.cache.used_bytes() - initial, f.tree->stats().bytes);
    f.writing.reset();
    f.tree->clear();
    EXPECT_EQ(f.cache.used_bytes(), initial);
    for (const StoredFile& file : verify_store(f.folder.path())) EXPECT_EQ(file.error, "");
    EXPECT_EQ(f.files(".tmp"), 0u);
  }
}

}  // namespace
}  // namespace kvasir::kv
