// What a store is when disks are full, files damaged, writers killed, and several at work.
#include "kv/store.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/test_file_size.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::counting;
using testing::difference;
using testing::joined;
using testing::TestRow;
using Fixture = testing::StoreFixture;
using testing::flip_byte;

// P33.
TEST(DiskStore, CorruptEntriesAreDroppedAndNeverServed) {
  Fixture f;
  fs::path entry, saved;
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 40));
    store.put("", row.tokens, row.sequence);
    entry = store.entries()[0].path;
    TestRow other = f.computed(counting(50, 10));
    store.save("mine", "", other.tokens, other.sequence, "");
    for (const StoreEntry& e : store.entries())
      if (!e.name.empty()) saved = e.path;
  }
  flip_byte(entry, 5);  // in the last page: a verifying restore notices
  {
    auto options = f.options();
    options.verify = true;
    DiskStore store(options);
    const auto found = store.find("", counting(0, 45));
    ASSERT_TRUE(found);
    EXPECT_FALSE(store.restore(f.cache, found->entry, found->length));
    EXPECT_FALSE(fs::exists(entry));
    EXPECT_EQ(f.warnings.size(), 1u);
    EXPECT_NE(f.warnings[0].find("hash mismatch"), std::string::npos);
    EXPECT_FALSE(store.find("", counting(0, 45)));
  }
  // A damaged header, with an index that has been lost: a prefix is removed, a saved conversation is kept.
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 40));
    store.put("", row.tokens, row.sequence);
    entry = store.entries()[0].path == saved ? store.entries()[1].path : store.entries()[0].path;
  }
  for (const fs::path& path : {entry, saved}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('~');
  }
  fs::remove(f.dir / "index.sqlite3");
  f.warnings.clear();
  DiskStore store(f.options());
  EXPECT_EQ(f.warnings.size(), 2u);
  for (const std::string& warning : f.warnings) {  // the path once
    const size_t at = warning.find(f.dir.string());
    EXPECT_EQ(at, 0u) << warning;
    EXPECT_EQ(warning.find(f.dir.string(), at + 1), std::string::npos) << warning;
  }
  EXPECT_FALSE(fs::exists(entry));
  EXPECT_TRUE(fs::exists(saved));
  EXPECT_TRUE(store.entries().empty());
}

// Writers in one process share a store with whoever looks for prefixes.
TEST(DiskStore, ThreadsShareOneStore) {
  Fixture f({.page = 4});
  DiskStore store(f.options(30000));
  std::vector<TestRow> rows;
  for (int32_t i = 0; i < 12; ++i) rows.push_back(f.computed(counting(100 * i, 12)));
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int round = 0; round < 4; ++round)
      for (const TestRow& row : rows) EXPECT_TRUE(store.put("", row.tokens, row.sequence));
    stop = true;
  });
  size_t restored = 0;
  for (int32_t i = 0; !stop || i < 12; ++i) {
    const auto tokens = counting(100 * (i % 12), 12);
    const auto found = store.find("", joined(tokens, {-1}));
    if (!found) continue;
    // Superseded or evicted meanwhile: a miss. The reader's pages are its own.
    if (auto sequence = store.restore(f.cache, found->entry, found->length)) {
      EXPECT_EQ(difference(*sequence, tokens), "");
      ++restored;
    }
    EXPECT_LE(store.stats().entries, 12u);
  }
  writer.join();
  EXPECT_GT(restored, 0u);
  EXPECT_TRUE(f.warnings.empty());
  EXPECT_EQ(store.stats().stores, 48u);
}

TEST(DiskStore, AFullDiskIsAWarningAndNothingIsLost) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 9)), large = f.computed(counting(0, 200));
  ASSERT_TRUE(store.put("", row.tokens, row.sequence));
  bool stored = true;
  {
    const FileSizeLimit full(12000);
    stored = store.put("", large.tokens, large.sequence);
    EXPECT_THROW(store.save("x", "", large.tokens, large.sequence, ""), Error);
  }
  EXPECT_FALSE(stored);
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(f.files(".tmp"), 0u);
  EXPECT_TRUE(store.find("", joined(counting(0, 9), {1})));
  EXPECT_EQ(difference(large), "");
}

// The same on a file system that has no room left, in a mount of a process of its own.
TEST(DiskStore, AFileSystemThatRunsFull) {
  Fixture f;
  const fs::path small = f.dir / "small";
  fs::create_directories(small);
  constexpr int kNoMount = 77;
  const auto use = [&]() -> int {
    const int spaces = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS;
    if (::unshare(spaces) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", small.c_str(), "tmpfs", 0, "size=160k") != 0)
      return kNoMount;
    Fixture g({.page = 4}, small);
    DiskStore store(g.options());
    TestRow row = g.computed(counting(0, 9)), large = g.computed(counting(0, 200));
    if (!store.put("", row.tokens, row.sequence)) return 1;
    if (store.put("", large.tokens, large.sequence) || g.warnings.size() != 1) return 2;
    if (g.warnings[0].find("No space left") == std::string::npos) return 3;
    try {
      store.save("x", "", large.tokens, large.sequence, "");
      return 4;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::resource_exhausted) return 5;
    }
    if (g.files() != 1 || g.files(".tmp") != 0) return 6;
    const auto found = store.find("", joined(counting(0, 9), {1}));
    if (!found || !store.restore(g.cache, found->entry, found->length)) return 7;
    if (!difference(large).empty()) return 8;
    store.save("kept", "", row.tokens, row.sequence, "m");
    // Not a byte left, for the index neither: what is there is read all the same, and stays.
    {
      std::ofstream filler(small / "filler", std::ios::binary);
      while (filler.put('x').flush()) {
      }
    }
    for (DiskStore* one : {&store, std::make_unique<DiskStore>(g.options()).release()}) {
      const auto kept = one->find("", joined(counting(0, 9), {1}));
      if (!kept || !one->restore(g.cache, kept->entry, kept->length)) return 11;
      if (one->load("kept", "", g.cache).tokens != row.tokens || !one->stats().index_in_memory) return 12;
      if (g.files() != 2) return 13;
      if (one != &store) delete one;
    }
    fs::remove(small / "filler");
    if (!store.remove_named("kept", "")) return 14;
    DiskStore again(g.options());  // opens, and has room for what is small
    TestRow other = g.computed(counting(500, 9));
    return again.entries().size() == 1 && again.put("", other.tokens, other.sequence) ? 0 : 9;
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int code = 10;
    try {
      code = use();
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount)
    GTEST_SKIP() << "this user may mount nothing, not in a namespace of its own either; "
                    "AFullDiskIsAWarningAndNothingIsLost meets the same errors by a limit on file sizes";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// P33: writers of one store in a process of their own, killed at any moment.
TEST(DiskStore, KilledWritersLeaveOnlyWholeEntries) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 8});
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        DiskStore store(f.options());
        std::mt19937 random(static_cast<uint32_t>(round));
        for (;;) {
          TestRow row = f.computed(testing::random_tokens(random, 1 + random() % 60, 3));
          if (random() % 4 == 0) {
            store.save("talk", "", row.tokens, row.sequence, "m");
          } else {
            store.put(random() % 2 == 0 ? "" : "lora", row.tokens, row.sequence);
          }
        }
      } catch (...) {
        ::_exit(3);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 2711 * round % 40000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    for (const StoredFile& file : verify_store(f.dir)) ASSERT_EQ(file.error, "") << file.path;
    DiskStore store(f.options());
    EXPECT_EQ(f.files(".tmp"), 0u);
    EXPECT_EQ(store.entries().size(), f.files());
    for (const StoreEntry& entry : store.entries()) {
      if (!entry.name.empty()) continue;
      auto sequence = store.restore(f.cache, entry, static_cast<int32_t>(entry.tokens.size()));
      ASSERT_TRUE(sequence);
      TestRow row{std::move(*sequence), entry.tokens};
      ASSERT_EQ(difference(row), "");
    }
  }
  EXPECT_TRUE(f.warnings.empty()) << f.warnings[0];
}

// P33: whatever the step at which a writer fails or its process ends, no entry is seen and what was there
// stays.
TEST(DiskStore, ACrashAtAnyStepOfAWriteLeavesNoEntry) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 8});
  TestRow row = f.computed(counting(0, 21)), other = f.computed(counting(500, 9));
  DiskStore store(f.options());
  ASSERT_TRUE(store.put("", other.tokens, other.sequence));
  int steps = 0, reads = 0, step_of_read = 0;
  {
    TestFolder elsewhere("store");
    auto options = f.options();
    options.dir = elsewhere.path();
    DiskStore whole(options);
    EXPECT_TRUE(whole.put("", row.tokens, row.sequence,
                          {.step = [&] { ++steps; }, .read = [&] { ++reads, step_of_read = steps; }}));
  }
  // Six pages of all tokens, the three that the window of 6 still needs (15 to 20 lie in 3, 4, 5), the state,
  // then header, sync and rename.
  EXPECT_EQ(steps, 6 + 3 + 1 + 3);
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(step_of_read, 6 + 3 + 1);
  for (int at = 0; at < steps; ++at) {
    SCOPED_TRACE(at);
    int n = 0;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        DiskStore mine(f.options());
        mine.put("", row.tokens, row.sequence, {.step = [&] {
                   if (n++ == at) ::_exit(42);
                 }});
      } catch (...) {
      }
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    EXPECT_EQ(f.files(), 1u);
    EXPECT_EQ(f.files(".tmp"), 1u);
    DiskStore again(f.options());
    EXPECT_EQ(f.files(".tmp"), 0u);
    EXPECT_EQ(again.entries().size(), 1u);

    f.warnings.clear();
    n = 0;
    EXPECT_FALSE(again.put("", row.tokens, row.sequence, {.step = [&] {
                             if (n++ == at) throw Error(ErrorCode::resource_exhausted, "no room");
                           }}));
    EXPECT_EQ(f.warnings, std::vector<std::string>({"no room"}));
    n = 0;
    EXPECT_THROW(again.put("", row.tokens, row.sequence,
                           {.step =
                                [&] {
                                  if (n++ == at) throw Error(ErrorCode::cancelled, "given up");
                                }}),
                 Error);
    EXPECT_EQ(f.warnings.size(), 1u);
    EXPECT_EQ(again.stats().failed_stores, 1u);
    EXPECT_EQ(f.files(), 1u);
    EXPECT_EQ(f.files(".tmp"), 0u);
  }
  EXPECT_TRUE(store.find("", joined(counting(500, 9), {1})));
  EXPECT_EQ(difference(row), "");
}

// As two processes would: each store has an index connection of its own. Both new files are there before
// either takes the place of others.
TEST(DiskStore, OfTwoThatSaveOneNameAtOnceOneIsKept) {
  Fixture f({.page = 4});
  const TestRow old = f.computed(counting(50, 5));
  const TestRow rows[2] = {f.computed(counting(0, 5)), f.computed(counting(100, 5))};
  DiskStore stores[2] = {DiskStore(f.options()), DiskStore(f.options())};
  stores[0].save("talk", "", old.tokens, old.sequence, "");
  std::vector<std::thread> writers;
  {
    const testing::Held held(f.dir, ".replace.lock");
    for (int i = 0; i < 2; ++i)
      writers.emplace_back([&, i] { stores[i].save("talk", "", rows[i].tokens, rows[i].sequence, ""); });
    for (int i = 0; i < 2000 && f.files() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(f.files(), 3u);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(f.files(), 1u);
  for (DiskStore& store : stores) {
    const auto tokens = store.load("talk", "", f.cache).tokens;
    EXPECT_TRUE(tokens == rows[0].tokens || tokens == rows[1].tokens);
  }
}

TEST(DiskStore, TwoProcessesShareOneStore) {
  Fixture f({.page = 4});
  const auto tokens_of = [](int writer, int i) { return counting(10000 * writer + 100 * i, 12); };
  const auto use = [&](int writer) {
    DiskStore store(f.options(40000));  // a few entries: both also evict what the other wrote
    for (int i = 0; i < 30; ++i) {
      TestRow row = f.computed(tokens_of(writer, i));
      if (!store.put("", row.tokens, row.sequence)) return 1;
      const auto found = store.find("", joined(tokens_of(1 - writer, i), {1}));
      if (!found) continue;
      auto sequence = store.restore(f.cache, found->entry, found->length);
      if (!sequence) continue;  // evicted by the other meanwhile
      TestRow other{std::move(*sequence),
                    {found->entry.tokens.begin(), found->entry.tokens.begin() + found->length}};
      if (!difference(other).empty()) return 2;
    }
    return 0;
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int code = 3;
    try {
      code = use(1);
    } catch (...) {
    }
    ::_exit(code);
  }
  EXPECT_EQ(use(0), 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const StoredFile& file : verify_store(f.dir)) EXPECT_EQ(file.error, "");
  DiskStore store(f.options(40000));
  EXPECT_EQ(store.entries().size(), f.files());
}

}  // namespace
}  // namespace kvasir::kv
