// P28: what is attached to a number of tokens goes with exactly these, through trees, files and stores.
#include "kv/attachments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kv/kvk_header.h"
#include "kv/prefix_tree.h"
#include "kv/test_store.h"
#include "kv/write_behind.h"

namespace kvasir::kv {
namespace {

namespace fs = std::filesystem;
using testing::append;
using testing::counting;
using testing::difference;
using testing::StoreFixture;
using testing::TestRow;

// As a drafter might leave it: one plane of keys, an empty one, a counter.
Attachments drafter(int seed, size_t bytes = 40) {
  Attachment a{.schema = "mtp-cache-1", .metadata = {}, .tensors = {}};
  a.metadata = {{"model", std::string("drafter \"\xC3\xA9\"")},
                {"seed", int64_t{seed}},
                {"large", std::numeric_limits<int64_t>::min()},
                {"scale", 0.1},
                {"whole", 3.0},
                {"ready", true}};
  Attachment::Tensor keys{.dtype = Dtype::f16, .shape = {static_cast<int64_t>(bytes / 4), 2}, .data = {}};
  for (size_t i = 0; i < bytes / 4 * 4; ++i)
    keys.data.push_back(static_cast<std::byte>(i * 7 + static_cast<size_t>(seed)));
  a.tensors = {keys,
               {.dtype = Dtype::f32, .shape = {0, 5}, .data = {}},
               {.dtype = Dtype::u8, .shape = {}, .data = {std::byte{9}}}};
  return {a, {.schema = "notes-2", .metadata = {}, .tensors = {}}};
}

bool has(const Sequence& row, const Attachments& expected) {
  return std::equal(row.attachments().begin(), row.attachments().end(), expected.begin(), expected.end());
}

std::string message(const std::function<void()>& call, ErrorCode code = ErrorCode::invalid_input) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Attachments, AreOfExactlyTheTokensThatTheyWereAttachedAt) {
  StoreFixture f({.page = 4});
  TestRow row = f.computed(counting(0, 10));
  const size_t bare = row.sequence.physical_bytes();
  row.sequence.attach(drafter(1));
  EXPECT_EQ(row.sequence.physical_bytes(), bare + attached_bytes(drafter(1)));
  EXPECT_TRUE(has(row.sequence.fork(), drafter(1)));
  EXPECT_TRUE(row.sequence.fork(9).attachments().empty());  // never trimmed
  {
    Step step;  // a step that is undone changes nothing
    f.cache.reserve({&row.sequence}, {3}, step);
  }
  EXPECT_TRUE(has(row.sequence, drafter(1)));
  row.sequence.truncate(10);
  EXPECT_TRUE(has(row.sequence, drafter(1)));
  Sequence shorter = row.sequence.fork();
  shorter.truncate(8);
  EXPECT_TRUE(shorter.attachments().empty());
  row.sequence.begin_round();
  EXPECT_NE(message([&] { row.sequence.attach(drafter(2)); }).find("resolve the speculative round"),
            std::string::npos);
  append(f.cache, row, counting(10, 2));
  EXPECT_TRUE(row.sequence.attachments().empty());
  row.sequence.commit_round(0);
  EXPECT_TRUE(row.sequence.attachments().empty());
  row.sequence.attach(drafter(3));
  row.sequence.attach(drafter(4));
  EXPECT_TRUE(has(row.sequence, drafter(4)));
  row.sequence.attach({});
  EXPECT_EQ(row.sequence.physical_bytes(), bare);
  EXPECT_NE(message([&] { f.cache.create().attach(drafter(1)); }).find("the sequence has none"),
            std::string::npos);
}

TEST(Attachments, ForeignCodecsAreRefused) {
  StoreFixture f({.page = 4});
  TestRow row = f.computed(counting(0, 5));
  EXPECT_EQ(row.sequence.companion("mtp-cache-1"), nullptr);
  row.sequence.attach(drafter(1));
  EXPECT_EQ(*row.sequence.companion("mtp-cache-1"), drafter(1)[0]);
  EXPECT_EQ(row.sequence.companion("notes-2")->tensors.size(), 0u);
  EXPECT_EQ(message([&] { row.sequence.companion("mtp-cache-2"); }, ErrorCode::unsupported),
            "companion cache codec mismatch (stored mtp-cache-1, expected mtp-cache-2)");
}

TEST(Attachments, WhatNoFileCouldHoldIsRefused) {
  StoreFixture f({.page = 4});
  TestRow row = f.computed(counting(0, 5));
  const auto refused = [&](const std::function<void(Attachments&)>& forge, std::string_view words) {
    Attachments list = drafter(1);
    forge(list);
    const std::string text = message([&] { row.sequence.attach(list); });
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  refused([](auto& a) { a[0].schema.clear(); }, "no schema");
  refused([](auto& a) { a[1].schema = a[0].schema; }, "is there twice");
  refused([](auto& a) { a[0].schema = "\xFF"; }, "not UTF-8");
  refused([](auto& a) { a[0].schema.assign(kLongestSchema + 1, 'a'); }, "more than 256");
  refused([](auto& a) { a[0].metadata["x"] = std::string("\xC3"); }, "not UTF-8");
  refused([](auto& a) { a[0].metadata["\xC3"] = true; }, "not UTF-8");
  refused([](auto& a) { a[0].metadata["x"] = std::nan(""); }, "no file can hold");
  refused([](auto& a) { a[0].metadata["x"] = std::string(kLongestAttachedText + 1, 'a'); },
          "more than 65536");
  refused([](auto& a) { a[0].tensors[0].data.pop_back(); }, "planned 40, got 39");
  refused([](auto& a) { a[0].tensors[0].shape[0] = -1; }, "axis of -1");
  refused([](auto& a) { a[0].tensors[0].shape = {INT64_MAX, INT64_MAX}; }, "not possible");
  refused([](auto& a) { a[0].tensors[0].shape.assign(kMostAttachedAxes + 1, 1); }, "9 axes");
  refused([](auto& a) { a[0].tensors.resize(kMostAttachedTensors + 1); }, "more than");
  refused(
      [](auto& a) {
        for (size_t i = 0; i <= kMostAttachedFacts; ++i) a[0].metadata[std::to_string(i)] = true;
      },
      "more than");
  refused(
      [](auto& a) {
        for (size_t i = 0; i < kMostAttachments; ++i) a.push_back({std::to_string(i), {}, {}});
      },
      "more than 64");
  EXPECT_TRUE(row.sequence.attachments().empty());
}

TEST(Attachments, TreesGiveThemBackAtTheirBoundaryOnly) {
  for (const auto& options : {testing::ShapeOptions{.page = 4}, testing::ShapeOptions{.page = 4, .window = 6},
                              testing::ShapeOptions{.page = 4, .mla = {{.dsa_dim = 2, .max_tokens = 99}}}})
    for (const int32_t length : {3, 4, 7, 8, 10, 12}) {
      StoreFixture f(options);
      PrefixTree tree(f.cache, size_t{1} << 30);
      TestRow row = f.computed(counting(0, length));
      row.sequence.attach(drafter(length));
      ASSERT_TRUE(tree.put("k", row.tokens, row.sequence));
      // A sibling that begins with the same tokens, and goes on before or behind the end.
      TestRow other = f.computed(testing::joined(counting(0, length), counting(500, 6)));
      ASSERT_TRUE(tree.put("k", other.tokens, other.sequence));
      for (const auto& [prompt, exact] : {std::pair{counting(0, length + 1), true},
                                          {testing::joined(counting(0, length), counting(900, 5)), true},
                                          {counting(0, length), false},  // a token must be left to forward
                                          {testing::joined(counting(0, length - 1), counting(800, 9)), false},
                                          {testing::joined(other.tokens, counting(7, 2)), false}}) {
        TestRow taken{tree.take("k", prompt), {}};
        const int32_t got = taken.sequence.offset();
        taken.tokens.assign(prompt.begin(), prompt.begin() + got);
        EXPECT_EQ(difference(taken), "");
        EXPECT_LT(got, static_cast<int32_t>(prompt.size()));
        EXPECT_EQ(has(taken.sequence, drafter(length)), exact) << "length " << length << ", got " << got;
        if (exact) {
          EXPECT_EQ(got, length);
        } else {
          EXPECT_TRUE(taken.sequence.attachments().empty());
        }
      }
      EXPECT_TRUE(tree.take("other", counting(0, length + 1)).attachments().empty());
    }
}

// Duplicates are replaced; what has attachments removes no ancestor, and is removed by no descendant.
TEST(Attachments, Supersession) {
  StoreFixture f({.page = 4});
  PrefixTree tree(f.cache, size_t{1} << 30);
  const auto put = [&](int32_t length, int attached) {
    TestRow row = f.computed(counting(0, length));
    if (attached > 0) row.sequence.attach(drafter(attached));
    tree.put("k", row.tokens, row.sequence);
  };
  put(5, 0);
  put(9, 0);
  EXPECT_EQ(tree.stats().entries, 1u);  // the longer one says it all
  put(14, 1);
  EXPECT_EQ(tree.stats().entries, 2u);  // 9 stays
  put(19, 0);
  EXPECT_EQ(tree.stats().entries, 2u);  // 9 goes, 14 stays: 19 has not what is attached there
  EXPECT_TRUE(has(tree.take("k", counting(0, 15)), drafter(1)));
  const size_t bytes = tree.stats().bytes;
  put(14, 2);
  EXPECT_EQ(tree.stats().entries, 2u);
  EXPECT_EQ(tree.stats().bytes, bytes);
  EXPECT_TRUE(has(tree.take("k", counting(0, 15)), drafter(2)));
  put(14, 0);  // an equal entry takes the place of the one before, always
  EXPECT_TRUE(tree.take("k", counting(0, 15)).attachments().empty());
  EXPECT_EQ(tree.stats().bytes, bytes - attached_bytes(drafter(2)));
  tree.clear();
  EXPECT_EQ(tree.stats().bytes, 0u);
}

// Bytes of attachments count like pages, and what is evicted takes them along.
TEST(Attachments, CountAgainstTheCap) {
  StoreFixture f({.page = 4});
  PrefixTree tree(f.cache, 0);
  const size_t page = f.cache.pool(0, true).page_bytes(), attached = attached_bytes(drafter(1, 4000));
  tree.set_cap(4 * page + attached);
  std::vector<std::pair<int32_t, bool>> spilled;
  tree.on_evict([&](std::string_view, std::span<const int32_t> tokens, Sequence sequence) {
    spilled.emplace_back(tokens[0], has(sequence, drafter(1, 4000)));
  });
  TestRow first = f.computed(counting(0, 8)), second = f.computed(counting(100, 8));
  first.sequence.attach(drafter(1, 4000));
  EXPECT_TRUE(tree.put("k", first.tokens, first.sequence));
  EXPECT_EQ(tree.stats().bytes, 2 * page + attached);
  EXPECT_TRUE(tree.put("k", second.tokens, second.sequence));
  EXPECT_EQ(tree.stats().bytes, 4 * page + attached);
  TestRow third = f.computed(counting(200, 4));
  EXPECT_TRUE(tree.put("k", third.tokens, third.sequence));
  EXPECT_EQ(spilled, (std::vector<std::pair<int32_t, bool>>{{0, true}}));
  EXPECT_EQ(tree.stats().bytes, 5 * page);
  TestRow large = f.computed(counting(300, 4));
  large.sequence.attach(drafter(1, 4 * page + attached));
  EXPECT_FALSE(tree.put("k", large.tokens, large.sequence));  // alone more than the cap
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// P6, P32, P33.
TEST(Attachments, FilesHoldThem) {
  StoreFixture f({.page = 4, .window = 6, .state_bytes = 16});
  TestRow row = f.computed(counting(0, 13));
  row.sequence.attach(drafter(7));
  KvkHeader header;
  header.identity = testing::test_identity();
  header.tokens = row.tokens;
  const fs::path path = f.dir / "a.kvk", dense = f.dir / "dense.kvk";
  const uint64_t written = write_kvk(path, header, row.sequence);
  EXPECT_EQ(written, fs::file_size(path));
  const KvkFile file = KvkFile::open(path, true);
  EXPECT_FALSE(file.header().trimmable());
  ASSERT_EQ(file.header().attachments.size(), 2u);
  convert_kvk(file, dense, KvkHeader::Layout::dense, 0);
  convert_kvk(KvkFile::open(dense, true), f.dir / "back.kvk", KvkHeader::Layout::pages, 4);
  EXPECT_EQ(contents(f.dir / "back.kvk"), contents(path));
  for (const fs::path& from : {path, dense}) {
    TestRow restored{restore_sequence(f.cache, KvkFile::open(from, true)), row.tokens};
    EXPECT_EQ(difference(restored), "");
    EXPECT_TRUE(has(restored.sequence, drafter(7)));
  }
  // Every byte of a tensor counts, and every fact of the header is checked.
  const std::string good = contents(path);
  const auto& tensors = file.header().attachments[0].tensors;
  uint64_t start = 0;
  std::memcpy(&start, good.data() + 16, 8);
  for (const auto& tensor : tensors)
    for (uint64_t i = 0; i < tensor.place.bytes; ++i) {
      std::string bad = good;
      bad[start + tensor.place.offset + i] ^= 1;
      std::ofstream(f.dir / "bad.kvk", std::ios::binary | std::ios::trunc) << bad;
      EXPECT_NO_THROW(read_kvk_header(f.dir / "bad.kvk"));
      EXPECT_NE(message([&] { KvkFile::open(f.dir / "bad.kvk", true); }, ErrorCode::corrupt_file)
                    .find("tensor hash mismatch"),
                std::string::npos);
    }
  std::ofstream(f.dir / "bad.kvk", std::ios::binary | std::ios::trunc) << good.substr(0, good.size() - 1);
  EXPECT_THROW(KvkFile::open(f.dir / "bad.kvk"), Error);
  const auto root = nlohmann::json::parse(header_text(file.header()));
  const auto refused = [&](const std::function<void(nlohmann::json&)>& forge) {
    nlohmann::json forged = root;
    forge(forged["attachments"]);
    const std::string text = message(
        [&] { parse_header(forged.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "x"); },
        ErrorCode::corrupt_file);
    EXPECT_NE(text, "accepted") << forged["attachments"];
  };
  refused([](auto& a) { a = nlohmann::json::array(); });
  refused([](auto& a) { a = 3; });
  refused([](auto& a) { a[0].erase("schema"); });
  refused([](auto& a) { a[0].erase("metadata"); });
  refused([](auto& a) { a[0].erase("tensors"); });
  refused([](auto& a) { a[0]["schema"] = ""; });
  refused([](auto& a) { a[1]["schema"] = a[0]["schema"]; });
  refused([](auto& a) { a[0]["metadata"]["x"] = nullptr; });
  refused([](auto& a) { a[0]["metadata"]["x"] = nlohmann::json::array(); });
  refused([](auto& a) { a[0]["metadata"]["x"] = uint64_t{1} << 63; });
  refused([](auto& a) { a[0]["tensors"][0]["shape"] = {11, 2}; });
  refused([](auto& a) { a[0]["tensors"][0]["shape"] = {-10, -2}; });
  refused([](auto& a) { a[0]["tensors"][0]["shape"] = {10.0, 2}; });
  refused([](auto& a) { a[0]["tensors"][0]["dtype"] = "f32"; });
  refused([](auto& a) { a[0]["tensors"][0]["dtype"] = "q4"; });
  refused([](auto& a) { a[0]["tensors"][0]["off"] = 1; });
  refused([](auto& a) { a[0]["tensors"][0].erase("hash"); });
  nlohmann::json strange = root;
  strange["attachments"][0]["colour"] = 1;
  EXPECT_NE(message([&] { parse_header(strange.dump(), "x"); }, ErrorCode::unsupported).find("colour"),
            std::string::npos);
}

TEST(Attachments, StoresServeThemAtTheirBoundaryOnly) {
  StoreFixture f({.page = 4});
  {
    DiskStore store(f.options());
    TestRow shorter = f.computed(counting(0, 6)), row = f.computed(counting(0, 10));
    ASSERT_TRUE(store.put("", shorter.tokens, shorter.sequence));
    row.sequence.attach(drafter(3));
    ASSERT_TRUE(store.put("", row.tokens, row.sequence));
    EXPECT_EQ(store.entries().size(), 2u);  // its ancestor stays
    TestRow longer = f.computed(counting(0, 15));
    ASSERT_TRUE(store.put("", longer.tokens, longer.sequence));
    EXPECT_EQ(store.entries().size(), 2u);  // 6 has gone, 10 has not
  }
  DiskStore store(f.options());  // by what the index says in another process
  EXPECT_TRUE(store.serves("", counting(0, 10)));
  EXPECT_TRUE(store.serves("", counting(0, 10), true));
  EXPECT_TRUE(store.serves("", counting(0, 9)));
  EXPECT_FALSE(store.serves("", counting(0, 9), true));
  EXPECT_FALSE(store.serves("", counting(0, 15), true));
  const std::vector<StoreEntry> entries = store.entries();
  const StoreEntry& attached = entries[0].attachments ? entries[0] : entries[1];
  EXPECT_EQ(attached.tokens.size(), 10u);
  EXPECT_FALSE(attached.trimmable);
  EXPECT_TRUE(has(*store.restore(f.cache, attached, 10), drafter(3)));
  // Out of the store and into another one, as the verbs do it.
  export_entry(attached.path, f.dir / "out.kvk");
  const TestFolder other("imported");
  const fs::path imported = import_entry(f.dir / "out.kvk", other.path());
  EXPECT_TRUE(has(restore_sequence(f.cache, KvkFile::open(imported, true)), drafter(3)));
  for (const StoredFile& file : verify_store(other.path())) EXPECT_EQ(file.error, "");
  testing::flip_byte(imported, 1);  // the last tensor is the attachments'
  EXPECT_NE(verify_store(other.path())[0].error.find("tensor hash mismatch"), std::string::npos);
}

// Nothing that is attached is taken for stored because a longer prompt is.
TEST(Attachments, GoToDiskWithTheirPoints) {
  StoreFixture f({.page = 4});
  DiskStore store(f.options());
  PrefixTree tree(f.cache, size_t{1} << 30);
  {
    WriteBehind writer(store, tree, {.ns = [](std::string_view) { return std::string(); }});
    const auto turn = [&](int32_t length, int attached) {
      TestRow row = f.computed(counting(0, length));
      if (attached > 0) row.sequence.attach(drafter(attached));
      ASSERT_TRUE(tree.put("k", row.tokens, row.sequence));
      writer.mark("k", row.tokens, row.sequence);
    };
    turn(9, 4);
    turn(17, 0);
    EXPECT_TRUE(writer.flush(std::chrono::seconds(60)).durable);
    EXPECT_EQ(store.entries().size(), 2u);
    turn(13, 5);  // 17 serves its tokens, and not what is attached
    EXPECT_TRUE(writer.flush(std::chrono::seconds(60)).durable);
  }
  EXPECT_EQ(store.entries().size(), 3u);
  for (const StoreEntry& entry : store.entries()) {
    const auto length = static_cast<int32_t>(entry.tokens.size());
    const std::optional<Sequence> restored = store.restore(f.cache, entry, length);
    ASSERT_TRUE(restored);
    EXPECT_TRUE(has(*restored, length == 9    ? drafter(4)
                               : length == 13 ? drafter(5)
                                              : Attachments{}))
        << length;
  }
}

}  // namespace
}  // namespace kvasir::kv
