#include "kv/store.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kv/row.h"
#include "kv/test_store.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::append;
using testing::counting;
using testing::difference;
using testing::joined;
using testing::TestRow;
using Fixture = testing::StoreFixture;
using testing::flip_byte;

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

// P28, P34.
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

// P28.
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

// P34.
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
  EXPECT_EQ(store.load("kept", "", f.cache).tokens, counting(0, 10));
  // A smaller cap holds from the opening on, and conversations stay.
  TestRow large = f.computed(counting(1000, 200));
  DiskStore tiny(f.options(4000));
  EXPECT_EQ(f.files(), 1u);
  EXPECT_EQ(tiny.stats().evictions, 3u);
  EXPECT_FALSE(tiny.put("", large.tokens, large.sequence));
  EXPECT_EQ(f.warnings.size(), 1u);
  EXPECT_EQ(tiny.load("kept", "", f.cache).tokens, counting(0, 10));
}

// What another process has put beyond this one's cap goes when this one is refused.
TEST(DiskStore, ARefusedPutKeepsTheCap) {
  Fixture f;
  TestRow small = f.computed(counting(0, 10)), large = f.computed(counting(1000, 200));
  DiskStore other(f.options());
  ASSERT_TRUE(other.put("", small.tokens, small.sequence));
  const uint64_t bytes = other.stats().bytes;
  DiskStore store(f.options(bytes * 2));
  for (const int32_t from : {100, 200, 300}) {
    TestRow row = f.computed(counting(from, 10));
    ASSERT_TRUE(other.put("", row.tokens, row.sequence));
  }
  EXPECT_EQ(f.files(), 4u);
  EXPECT_FALSE(store.put("", large.tokens, large.sequence));
  EXPECT_EQ(f.files(), 2u);
  EXPECT_LE(store.stats().bytes, bytes * 2);
}

// Conversations count against the cap: what they leave is what prompts may take.
TEST(DiskStore, ConversationsCountAgainstTheCap) {
  Fixture f;
  TestRow row = f.computed(counting(0, 10));
  DiskStore(f.options()).save("kept", "", row.tokens, row.sequence, "{}");
  const uint64_t bytes = DiskStore(f.options()).stats().bytes;
  DiskStore store(f.options(bytes + bytes / 2));
  EXPECT_EQ(store.room(), bytes / 2);
  TestRow other = f.computed(counting(100, 10));
  EXPECT_FALSE(store.put("", other.tokens, other.sequence));
  EXPECT_LE(store.stats().bytes, store.cap_bytes());
  EXPECT_EQ(store.load("kept", "", f.cache).tokens, row.tokens);
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
  auto conversation = store.load("trip", "", f.cache);
  EXPECT_EQ(conversation.metadata, R"({"messages":["hello","bye"]})");
  TestRow back{std::move(conversation.sequence), conversation.tokens};
  EXPECT_EQ(difference(back), "");
  EXPECT_THROW(store.load("other", "", f.cache), Error);
  EXPECT_THROW(store.save("", "", row.tokens, row.sequence, ""), Error);
  options.identity.numerics_id = "else";
  options.numerics = "kernels=1\nactivations=f32\nweights=xyz\nisa=avx2\nrope=fixed\n";
  DiskStore foreign(options);
  try {
    foreign.load("trip", "", f.cache);
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
  EXPECT_TRUE(store.remove_named("trip", ""));
  EXPECT_FALSE(store.remove_named("trip", ""));
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
      store.load("talk", "", f.cache, with, [](const KvkHeader&) { ADD_FAILURE(); });
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      EXPECT_NE(std::string(error.what()).find("tensor hash mismatch"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(f.cache.stats()[0].used, used);
  EXPECT_TRUE(fs::exists(path));
  flip_byte(path, 5);
  EXPECT_EQ(store.load("talk", "", f.cache).tokens, row.tokens);
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
  EXPECT_THROW(store.load("talk", "", f.cache, nullptr, decline), Error);
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

TEST(DiskStore, LookingMakesNoFolder) {
  Fixture f;
  auto options = f.options();
  options.create = false;
  const auto look = [&] {
    DiskStore store(options);
    EXPECT_TRUE(store.entries().empty());
    EXPECT_THROW(store.load("talk", "", f.cache), Error);
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
  EXPECT_EQ(store.load("talk", "", f.cache).tokens, row.tokens);
}

// P34.
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

// P34.
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

}  // namespace
}  // namespace kvasir::kv
