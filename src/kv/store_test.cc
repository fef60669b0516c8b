#include "kv/store.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/test_folder.h"
#include "kv/row.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::append;
using testing::counting;
using testing::difference;
using testing::joined;
using testing::TestLayout;
using testing::TestRow;

struct Fixture {
  std::optional<TestFolder> own;
  fs::path dir;
  CacheShape shape;
  KvCache cache;
  std::vector<std::string> warnings;
  explicit Fixture(const testing::ShapeOptions& options = {.page = 4}, const fs::path& existing = {})
      : shape(testing::make_shape(options)),
        cache(shape, TestLayout::factory(), testing::pages_each(shape, 256), nullptr, true) {
    if (existing.empty()) own.emplace("store");
    dir = own ? own->path() : existing;
  }
  DiskStore::Options options(uint64_t cap = uint64_t{1} << 30) {
    DiskStore::Options o;
    o.dir = dir;
    o.identity = testing::test_identity();
    o.cap_bytes = cap;
    o.warn = [this](const std::string& text) { warnings.push_back(text); };
    return o;
  }
  TestRow computed(const std::vector<int32_t>& tokens) { return testing::computed(cache, tokens); }
  size_t files(const char* suffix = ".kvk") const {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
      count += entry.path().native().ends_with(suffix);
    return count;
  }
};

void flip_byte(const fs::path& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const int value = file.get();
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(value ^ 1));
}

TEST(DiskStore, AnotherProcessFindsAndRestores) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 8});
  const auto tokens = counting(0, 21);
  {
    DiskStore store(f.options());
    TestRow row = f.computed(tokens);
    EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  }
  DiskStore store(f.options());
  EXPECT_FALSE(store.find("", tokens));  // one token must be left
  EXPECT_FALSE(store.find("adapter", joined(tokens, {1})));
  EXPECT_FALSE(store.find("", joined(counting(0, 20), {7, 8})));  // cannot be trimmed
  const auto found = store.find("", joined(tokens, {1, 2}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, 21);
  auto sequence = store.restore(f.cache, found->entry, found->length);
  ASSERT_TRUE(sequence);
  TestRow row{std::move(*sequence), tokens};
  EXPECT_EQ(difference(row), "");
  append(f.cache, row, counting(500, 9));
  EXPECT_EQ(difference(row), "");
  EXPECT_TRUE(f.warnings.empty());
}

TEST(DiskStore, TrimmableEntriesServeAnyPrefixAndReplaceTheirAncestors) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 10));
  EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  EXPECT_EQ(f.files(), 1u);
  append(f.cache, row, counting(10, 10));
  EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  EXPECT_TRUE(store.put("lora", row.tokens, row.sequence));
  EXPECT_EQ(f.files(), 2u);
  const auto found = store.find("", joined(counting(0, 13), {99}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->length, 13);
  TestRow part{*store.restore(f.cache, found->entry, 13), counting(0, 13)};
  EXPECT_EQ(difference(part), "");
}

TEST(DiskStore, UntrimmableEntriesKeepTheirAncestors) {
  Fixture f({.page = 4, .window = 6});
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 10));
  store.put("", row.tokens, row.sequence);
  append(f.cache, row, counting(10, 10));
  store.put("", row.tokens, row.sequence);
  EXPECT_EQ(f.files(), 2u);
  EXPECT_EQ(store.find("", joined(counting(0, 12), {99}))->length, 10);
}

TEST(DiskStore, EvictsTheLeastRecentlyUsed) {
  Fixture f;
  uint64_t bytes = 0;
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 10));
    store.put("", row.tokens, row.sequence);
    bytes = store.stats().bytes;
    store.save("kept", "", row.tokens, row.sequence, "{}");
  }
  DiskStore store(f.options(bytes * 4));
  const auto stored = [&](int32_t from) {
    return store.find("", joined(counting(from, 10), {1})).has_value();
  };
  for (const int32_t from : {100, 200}) {
    TestRow row = f.computed(counting(from, 10));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto first = store.find("", joined(counting(0, 10), {1}));
  ASSERT_TRUE(first && first->entry.name.empty());
  ASSERT_TRUE(store.restore(f.cache, first->entry, 10));  // used again
  TestRow row = f.computed(counting(300, 10));
  EXPECT_TRUE(store.put("", row.tokens, row.sequence));
  EXPECT_TRUE(stored(0));
  EXPECT_FALSE(stored(100));
  EXPECT_TRUE(stored(200));
  EXPECT_TRUE(stored(300));
  EXPECT_EQ(store.stats().evictions, 1u);
  EXPECT_EQ(store.load("kept", f.cache).tokens, counting(0, 10));
  TestRow large = f.computed(counting(1000, 200));
  DiskStore tiny(f.options(4000));
  EXPECT_FALSE(tiny.put("", large.tokens, large.sequence));
  EXPECT_EQ(f.warnings.size(), 1u);
}

TEST(DiskStore, Conversations) {
  Fixture f({.page = 4, .window = 6});
  auto options = f.options();
  options.numerics = "kernels=1\nactivations=int8\nweights=abc\nisa=avx2\n";
  DiskStore store(options);
  TestRow row = f.computed(counting(0, 12));
  store.save("trip", "", row.tokens, row.sequence, R"({"messages":["hello"]})");
  append(f.cache, row, counting(12, 3));
  store.save("trip", "", row.tokens, row.sequence, R"({"messages":["hello","bye"]})");
  EXPECT_EQ(f.files(), 1u);
  auto conversation = store.load("trip", f.cache);
  EXPECT_EQ(conversation.metadata, R"({"messages":["hello","bye"]})");
  TestRow back{std::move(conversation.sequence), conversation.tokens};
  EXPECT_EQ(difference(back), "");
  EXPECT_THROW(store.load("other", f.cache), Error);
  EXPECT_THROW(store.save("", "", row.tokens, row.sequence, ""), Error);
  options.identity.numerics_id = "else";
  options.numerics = "kernels=1\nactivations=f32\nweights=xyz\nisa=avx2\nrope=fixed\n";
  DiskStore foreign(options);
  try {
    foreign.load("trip", f.cache);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    const std::string message = error.what();
    EXPECT_NE(message.find("another model"), std::string::npos);
    EXPECT_NE(message.find("activations is int8 there and f32 here"), std::string::npos) << message;
    EXPECT_NE(message.find("rope is absent there and fixed here"), std::string::npos) << message;
    EXPECT_NE(message.find("weights differs"), std::string::npos) << message;
    EXPECT_EQ(message.find("isa"), std::string::npos) << message;
  }
  EXPECT_TRUE(store.remove_named("trip"));
  EXPECT_FALSE(store.remove_named("trip"));
}

// A conversation is compared with its hashes whatever `verify` says, and is refused before a page is taken.
TEST(DiskStore, ADamagedConversationIsRefusedAndKept) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 40));
  store.save("talk", "", row.tokens, row.sequence, "{}");
  const fs::path path = store.entries()[0].path;
  flip_byte(path, 5);  // in the last page
  const uint32_t used = f.cache.stats()[0].used;
  ThreadTeam team(2);
  for (ThreadTeam* with : {static_cast<ThreadTeam*>(nullptr), &team}) {
    try {
      store.load("talk", f.cache, with, [](const KvkHeader&) { ADD_FAILURE(); });
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      EXPECT_NE(std::string(error.what()).find("tensor hash mismatch"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(f.cache.stats()[0].used, used);
  EXPECT_TRUE(fs::exists(path));
  flip_byte(path, 5);
  EXPECT_EQ(store.load("talk", f.cache).tokens, row.tokens);
}

TEST(DiskStore, WhoDeclinesAConversationHasLostNothing) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 40));
  store.save("talk", "", row.tokens, row.sequence, R"({"a":1})");
  const uint32_t used = f.cache.stats()[0].used;
  const auto decline = [&](const KvkHeader& header) {
    EXPECT_EQ(header.tokens, row.tokens);
    EXPECT_EQ(header.metadata, R"({"a":1})");
    throw_error(ErrorCode::invalid_input, "too long");
  };
  EXPECT_THROW(store.load("talk", f.cache, nullptr, decline), Error);
  EXPECT_EQ(f.cache.stats()[0].used, used);
  EXPECT_EQ(store.stats().restores, 0u);
}

TEST(DiskStore, TheCapIsOfFiles) {
  Fixture f;
  TestRow row = f.computed(counting(0, 40));
  uint64_t bytes = 0;
  {
    DiskStore store(f.options());
    ASSERT_TRUE(store.put("", row.tokens, row.sequence));
    bytes = fs::file_size(store.entries()[0].path);
    fs::remove(store.entries()[0].path);
  }
  EXPECT_FALSE(DiskStore(f.options(bytes - 1)).put("", row.tokens, row.sequence));
  EXPECT_EQ(f.files(), 0u);
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_TRUE(DiskStore(f.options(bytes)).put("", row.tokens, row.sequence));
  EXPECT_EQ(f.files(), 1u);
}

TEST(DiskStore, ImportReplacesWhatIsEqual) {
  Fixture f, from;
  const auto exported = [&](std::string_view name, const std::vector<int32_t>& tokens) {
    TestRow row = from.computed(tokens);
    DiskStore store(from.options());
    fs::path entry;
    if (name.empty()) {
      store.put("", row.tokens, row.sequence);
      entry = store.entries().back().path;
    } else {
      store.save(name, "", row.tokens, row.sequence, "{}");
      for (const StoreEntry& e : store.entries())
        if (e.name == name) entry = e.path;
    }
    const fs::path file = from.dir / fmt::format("{}{}.export", name, tokens.size());
    export_entry(entry, file);
    return file;
  };
  const fs::path talk = exported("talk", counting(0, 12));
  import_entry(talk, f.dir);
  const fs::path again = import_entry(talk, f.dir);
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(find_entry(f.dir, "talk"), again);
  // Another conversation of that name is not given up, nor is the new one hidden behind it.
  try {
    import_entry(exported("talk", counting(0, 13)), f.dir);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_NE(std::string(error.what()).find("kvasir kv rm"), std::string::npos) << error.what();
  }
  EXPECT_EQ(find_entry(f.dir, "talk"), again);
  import_entry(exported("other", counting(0, 12)), f.dir);
  EXPECT_EQ(f.files(), 2u);
  const fs::path prefix = exported("", counting(7, 9));
  import_entry(prefix, f.dir);
  import_entry(prefix, f.dir);
  EXPECT_EQ(f.files(), 3u);
}

TEST(DiskStore, EntriesAreNamedByAllOfANameOrSomeDigits) {
  Fixture f;
  DiskStore store(f.options());
  const auto save = [&](std::string_view name, int32_t from) {
    TestRow row = f.computed(counting(from, 9));
    store.save(name, "", row.tokens, row.sequence, "{}");
  };
  save("talk", 0);
  const fs::path talk = find_entry(f.dir, "talk");
  const std::string digits = talk.filename().native().substr(6);  // behind "saved-"
  EXPECT_EQ(find_entry(f.dir, talk.filename().native()), talk);
  EXPECT_EQ(find_entry(f.dir, digits.substr(0, 4)), talk);
  EXPECT_EQ(find_entry(f.dir, "saved-" + digits.substr(0, 4)), talk);
  for (const std::string& which : {std::string(), std::string("s"), std::string("saved-"),
                                   digits.substr(0, 3), "saved-" + digits.substr(0, 3), std::string("tal")})
    EXPECT_THROW(find_entry(f.dir, which), Error) << which;
  // A name that another entry's file begins with.
  save(digits.substr(0, 5), 100);
  EXPECT_NE(find_entry(f.dir, digits.substr(0, 5)), talk);
  // Prefixes have no name to be found by.
  TestRow row = f.computed(counting(50, 9));
  store.put("", row.tokens, row.sequence);
  EXPECT_THROW(find_entry(f.dir, ""), Error);
}

TEST(DiskStore, LookingMakesNoFolder) {
  Fixture f;
  auto options = f.options();
  options.create = false;
  const auto look = [&] {
    DiskStore store(options);
    EXPECT_TRUE(store.entries().empty());
    EXPECT_THROW(store.load("talk", f.cache), Error);
  };
  options.dir = f.dir / "absent";
  look();
  EXPECT_FALSE(fs::exists(options.dir));
  options.dir = f.dir / "empty";
  fs::create_directories(options.dir);
  look();
  EXPECT_TRUE(fs::is_empty(options.dir));
  EXPECT_TRUE(f.warnings.empty());
  // What is there is found, and its index may be written.
  TestRow row = f.computed(counting(0, 9));
  DiskStore(f.options()).save("talk", "", row.tokens, row.sequence, "{}");
  DiskStore store([&] {
    auto there = f.options();
    there.create = false;
    return there;
  }());
  EXPECT_EQ(store.load("talk", f.cache).tokens, row.tokens);
}

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

TEST(DiskStore, TheIndexIsDerived) {
  Fixture f;
  {
    DiskStore store(f.options());
    for (const int32_t from : {0, 100}) {
      TestRow row = f.computed(counting(from, 9));
      store.put("", row.tokens, row.sequence);
    }
  }
  std::ofstream(f.dir / "index.sqlite3", std::ios::trunc)
      << "this is no database, and long enough to be looked at";
  DiskStore store(f.options());
  EXPECT_EQ(store.entries().size(), 2u);
  EXPECT_FALSE(store.stats().index_in_memory);
  fs::remove(store.entries()[0].path);
  DiskStore again(f.options());
  EXPECT_EQ(again.entries().size(), 1u);
  // An entry that another process removed is a miss.
  const auto found = again.find("", joined(counting(100, 9), {1}));
  ASSERT_TRUE(found);
  fs::remove(found->entry.path);
  EXPECT_FALSE(again.restore(f.cache, found->entry, 9));
  EXPECT_FALSE(again.find("", joined(counting(100, 9), {1})));
}

TEST(DiskStore, ForeignFoldersAreLeftAlone) {
  Fixture f;
  auto other = f.options();
  other.identity.weights_digest = "other";
  TestRow row = f.computed(counting(0, 9));
  DiskStore foreign(other);
  foreign.put("", row.tokens, row.sequence);
  DiskStore store(f.options(1));
  EXPECT_TRUE(store.entries().empty());
  EXPECT_EQ(f.files(), 1u);
  EXPECT_TRUE(f.warnings.empty());
}

TEST(DiskStore, AFullDiskIsAWarningAndNothingIsLost) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 9)), large = f.computed(counting(0, 200));
  ASSERT_TRUE(store.put("", row.tokens, row.sequence));
  struct rlimit limit {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = limit;
  small.rlim_cur = 12000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const bool stored = store.put("", large.tokens, large.sequence);
  EXPECT_THROW(store.save("x", "", large.tokens, large.sequence, ""), Error);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, previous);
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

TEST(DiskStore, VerbsWithoutAModel) {
  Fixture f({.page = 4, .window = 6, .sinks = 1});
  fs::path entry;
  {
    DiskStore store(f.options());
    TestRow row = f.computed(counting(0, 30));
    store.save("talk", "", row.tokens, row.sequence, "m");
    entry = store.entries()[0].path;
  }
  EXPECT_EQ(list_store(f.dir).size(), 1u);
  EXPECT_EQ(verify_store(f.dir)[0].error, "");
  EXPECT_EQ(find_entry(f.dir, "talk"), entry);
  EXPECT_EQ(find_entry(f.dir, entry.filename().native().substr(0, 12)), entry);
  EXPECT_THROW(find_entry(f.dir, "nobody"), Error);
  const fs::path dense = f.dir / "out.bin";
  export_entry(entry, dense);
  Fixture other({.page = 8, .window = 6, .sinks = 1});
  const fs::path imported = import_entry(dense, other.dir, 8);
  EXPECT_EQ(verify_store(other.dir)[0].error, "");
  DiskStore store(other.options());
  auto conversation = store.load("talk", other.cache);
  TestRow row{std::move(conversation.sequence), conversation.tokens};
  EXPECT_EQ(difference(row), "");
  flip_byte(imported, 3);
  EXPECT_EQ(list_store(other.dir)[0].error, "");  // of headers
  const StoredFile damaged = verify_store(other.dir)[0];
  EXPECT_NE(damaged.error, "");
  EXPECT_EQ(damaged.header.name, "talk");
  EXPECT_EQ(damaged.header.tokens.size(), 30u);
  EXPECT_EQ(damaged.error.find(imported.string()), 0u);
  EXPECT_EQ(damaged.error.find(imported.string(), 1), std::string::npos) << damaged.error;
  EXPECT_THROW(export_entry(imported, other.dir / "x"), Error);
  EXPECT_THROW(list_store(f.dir / "none"), Error);
}

// Writers of one store in a process of their own, killed at any moment.
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

// P27, of the disk: at least one token is left, a converted entry serves nothing before its conversion, and
// another namespace or scheme nothing at all.
TEST(DiskStore, FindsOnlyWhatCanBeResumed) {
  Fixture f;
  DiskStore store(f.options());
  TestRow row = f.computed(counting(0, 20));
  SequenceAccess::row(row.sequence).min_reusable = 10;  // as a row that converted there says
  ASSERT_TRUE(store.put("", row.tokens, row.sequence));
  EXPECT_EQ(store.find("", counting(0, 20))->length, 19);
  EXPECT_EQ(store.find("", joined(counting(0, 10), {-1}))->length, 10);
  EXPECT_FALSE(store.find("", joined(counting(0, 9), {-1})));
  EXPECT_FALSE(store.find("", counting(0, 10)));  // nine, as one is to be forwarded
  EXPECT_FALSE(store.find("", counting(0, 1)));
  EXPECT_FALSE(store.find("", {}));
  EXPECT_FALSE(store.find("other", counting(0, 20)));
  auto options = f.options();
  options.identity.scheme_key = "affine";
  DiskStore scheme(options);
  EXPECT_FALSE(scheme.find("", counting(0, 20)));
  auto part = store.restore(f.cache, store.find("", joined(counting(0, 13), {-1}))->entry, 13);
  ASSERT_TRUE(part);
  EXPECT_EQ(difference(*part, counting(0, 13)), "");
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
