#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::append;
using testing::counting;
using testing::difference;
using testing::joined;
using testing::TestLayout;
using testing::TestRow;

constexpr size_t kUnlimited = size_t{1} << 40;

struct Fixture {
  CacheShape shape;
  KvCache cache;
  PrefixTree tree;
  explicit Fixture(const testing::ShapeOptions& options, size_t cap = kUnlimited, uint32_t pages = 256)
      : shape(testing::make_shape(options)),
        cache(shape, TestLayout::factory(), testing::pages_each(shape, pages, 256), nullptr, true),
        tree(cache, cap) {}
  TestRow computed(const std::vector<int32_t>& tokens, int32_t chunk = INT32_MAX) {
    TestRow row{cache.create(), {}};
    append(cache, row, tokens, chunk);
    return row;
  }
  // Takes the prefix, computes the rest, and compares every byte.
  int32_t turn(std::string_view key, const std::vector<int32_t>& tokens, bool keep = true) {
    Sequence sequence = tree.take(key, tokens);
    const int32_t reused = sequence.offset();
    TestRow row{std::move(sequence), {tokens.begin(), tokens.begin() + reused}};
    EXPECT_EQ(difference(row), "");
    append(cache, row, std::span(tokens).subspan(static_cast<size_t>(reused)));
    EXPECT_EQ(difference(row), "");
    if (keep) tree.put(key, row.tokens, row.sequence);
    return reused;
  }
};

// P27, P28.
TEST(PrefixTree, FullAttentionHitsAtAnyToken) {
  Fixture f({.page = 4});
  const auto base = counting(0, 11);
  EXPECT_EQ(f.turn("k", base), 0);
  EXPECT_EQ(f.tree.peek("k", base), 10);                                      // one token is left to forward
  EXPECT_EQ(f.turn("k", joined(base, counting(50, 6))), 11);                  // the next turn
  EXPECT_EQ(f.turn("k", joined(counting(0, 6), counting(90, 5)), false), 6);  // leaves inside a page
  EXPECT_EQ(f.turn("k", counting(0, 8), false), 7);
  EXPECT_EQ(f.tree.peek("other", base), 0);
  EXPECT_EQ(f.tree.peek("k", {}), 0);
  EXPECT_EQ(f.tree.stats().entries, 1u);  // the longer turn says all that the first did
}

TEST(PrefixTree, PublishSharesWholePagesDuringPrefill) {
  Fixture f({.page = 4});
  TestRow a = f.computed(counting(0, 10));
  f.tree.publish("k", a.tokens, a.sequence);
  EXPECT_EQ(f.tree.peek("k", counting(0, 30)), 8);
  EXPECT_EQ(f.tree.stats().entries, 0u);
  append(f.cache, a, counting(10, 20));
  f.tree.publish("k", a.tokens, a.sequence);
  EXPECT_EQ(f.tree.peek("k", counting(0, 40)), 28);
  EXPECT_EQ(f.tree.stats().nodes, 7u);
  EXPECT_EQ(f.tree.stats().bytes, 7u * f.cache.pool(0, true).page_bytes());
}

// P28.
TEST(PrefixTree, WindowsAndRecurrentStateResumeAtPoints) {
  for (const bool recurrent : {false, true}) {
    Fixture f({.page = 4,
               .window = recurrent ? std::nullopt : std::optional<int>(6),
               .sinks = recurrent ? 0 : 2,
               .state_bytes = recurrent ? 16u : 0u});
    const auto first = counting(0, 21);
    EXPECT_EQ(f.turn("k", first), 0);
    const auto second = joined(first, counting(100, 9));
    EXPECT_EQ(f.turn("k", second), 21);  // nothing but the new turn is computed
    EXPECT_EQ(f.turn("k", joined(second, counting(200, 40))), 30);
    EXPECT_EQ(f.tree.peek("k", joined(first, counting(700, 5))), 21);
    EXPECT_EQ(f.tree.peek("k", joined(counting(0, 20), counting(700, 5))), 0);
    EXPECT_EQ(f.tree.peek("k", first), 0);
    EXPECT_EQ(f.tree.stats().entries, 3u);
  }
}

// P27.
TEST(PrefixTree, TheDonorIsNeverChanged) {
  Fixture f({.page = 4, .window = 5});
  const auto base = counting(0, 10);
  f.turn("k", base);
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(f.turn("k", joined(base, counting(100 * i, 13))), 10);
}

// P27.
TEST(PrefixTree, PlainAndEncodedPagesServeTheirOwnSideOfTheBoundary) {
  Fixture f({.page = 4, .start = 10, .encoded_full = true});
  const auto tokens = counting(0, 30);
  TestRow row = f.computed(counting(0, 7));
  f.tree.put("k", row.tokens, row.sequence);
  append(f.cache, row, counting(7, 3));
  f.tree.put("k", row.tokens, row.sequence);
  append(f.cache, row, counting(10, 10));
  f.tree.put("k", row.tokens, row.sequence);
  EXPECT_EQ(f.tree.peek("k", tokens), 20);
  EXPECT_EQ(f.tree.peek("k", joined(counting(0, 12), counting(80, 3))), 12);
  EXPECT_EQ(f.tree.peek("k", joined(counting(0, 8), counting(80, 3))), 8);  // plain
  EXPECT_EQ(f.turn("k", joined(counting(0, 8), counting(80, 9)), false), 8);
  EXPECT_EQ(f.turn("k", joined(counting(0, 10), counting(80, 9)), false), 10);
  EXPECT_EQ(f.turn("k", tokens, false), 20);
  f.tree.clear();
  f.tree.put("k", row.tokens, row.sequence);
  EXPECT_EQ(f.tree.peek("k", joined(counting(0, 8), counting(80, 3))), 0);  // encoded alone cannot
}

// P29.
TEST(PrefixTree, EvictsTheLeastRecentlyUsedUnderItsCap) {
  Fixture f({.page = 4}, 6 * 256 * 2);
  const size_t page = f.cache.pool(0, true).page_bytes();
  f.tree.set_cap(6 * page);
  std::vector<std::string> spilled;
  f.tree.on_evict([&](std::string_view key, std::span<const int32_t> tokens, Sequence sequence) {
    EXPECT_EQ(sequence.offset(), static_cast<int32_t>(tokens.size()));
    TestRow row{std::move(sequence), {tokens.begin(), tokens.end()}};
    EXPECT_EQ(difference(row), "");
    spilled.push_back(fmt::format("{}:{}", key, tokens[0]));
  });
  f.turn("k", counting(0, 8));
  f.turn("k", counting(100, 8));
  f.turn("k", counting(200, 8));
  EXPECT_EQ(f.tree.stats().bytes, 6 * page);
  EXPECT_EQ(f.tree.peek("k", counting(0, 9)), 8);
  f.turn("k", counting(0, 9), false);  // makes it recent
  f.turn("k", counting(300, 8));
  EXPECT_EQ(spilled, std::vector<std::string>({"k:100"}));
  EXPECT_EQ(f.tree.peek("k", counting(0, 9)), 8);
  EXPECT_EQ(f.tree.peek("k", counting(100, 9)), 0);
  TestRow large = f.computed(counting(500, 28));
  EXPECT_FALSE(f.tree.put("k", large.tokens,
                          large.sequence));  // larger than the cap: not kept, and nothing is evicted for it
  EXPECT_EQ(f.tree.stats().bytes, 6 * page);
  f.tree.set_cap(0);
  EXPECT_EQ(f.tree.stats().bytes, 0u);
  EXPECT_FALSE(f.tree.put("k", counting(0, 0), f.cache.create()));
}

TEST(PrefixTree, YieldsToLiveSequences) {
  Fixture f({.page = 4}, kUnlimited, 8);
  f.cache.on_pressure([&] { return f.tree.yield(); });
  f.turn("k", counting(0, 16));
  TestRow live{f.tree.take("k", counting(0, 9)), counting(0, 8)};
  TestRow other =
      f.computed(counting(100, 24));  // six pages: four free, two of the tree's that nobody shares
  EXPECT_EQ(difference(other), "");
  EXPECT_EQ(difference(live), "");
  EXPECT_EQ(f.tree.peek("k", counting(0, 17)), 8);  // what `live` shares was not given up
  TestRow third{f.cache.create(), {}};
  EXPECT_THROW(append(f.cache, third, counting(0, 1)), KvPoolExhausted);
  EXPECT_EQ(f.tree.peek("k", counting(0, 17)), 8);
}

// P27, P29: against brute force: the longest prefix that any published sequence could serve, and bytes equal
// to a fresh computation.
TEST(PrefixTree, RandomConversationsAgainstBruteForce) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    testing::ShapeOptions options;
    options.page = 1 << (random() % 4);
    if (random() % 2 == 0) options.window = 2 + static_cast<int>(random() % 9);
    if (random() % 3 == 0) options.state_bytes = 8;
    if (random() % 2 == 0) {
      options.start = static_cast<int32_t>(random() % 20);
      options.encoded_full = true;
      options.encoded_window = random() % 2 == 0;
    }
    const bool points_only = options.window || options.state_bytes > 0;
    const bool limited = random() % 3 == 0;
    Fixture f(options, limited ? 20000 + random() % 20000 : kUnlimited, 600);
    const bool converts = f.shape.converts();
    struct Published {
      std::string key;
      std::vector<int32_t> tokens;
      bool encoded;
      bool point;
    };
    std::vector<Published> published;
    for (int turn = 0; turn < 25; ++turn) {
      const std::string key = random() % 4 == 0 ? "b" : "a";
      std::vector<int32_t> prompt;
      if (!published.empty() && random() % 4 != 0) {
        const auto& from = published[random() % published.size()].tokens;
        prompt.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(random() % (from.size() + 1)));
        if (random() % 2 == 0) prompt = from;
      }
      for (const int32_t token : testing::random_tokens(random, 1 + random() % 12, 3))
        prompt.push_back(token);
      int32_t expected = 0;
      for (const Published& p : published) {
        if (p.key != key) continue;
        size_t lcp = 0;
        while (lcp < p.tokens.size() && lcp < prompt.size() && p.tokens[lcp] == prompt[lcp]) ++lcp;
        int32_t usable = static_cast<int32_t>(std::min(lcp, prompt.size() - 1));
        const int32_t length = static_cast<int32_t>(p.tokens.size());
        if (points_only) usable = p.point && usable >= length ? length : 0;
        if (!points_only && !p.point) usable = std::min(usable, length / options.page * options.page);
        if (converts && !p.encoded)
          usable = points_only && usable > options.start ? 0 : std::min(usable, options.start);
        if (converts && p.encoded && usable < options.start) usable = 0;
        expected = std::max(expected, usable);
      }
      const int32_t peeked = f.tree.peek(key, prompt);
      if (limited) {
        EXPECT_LE(peeked, expected);
      } else {
        ASSERT_EQ(peeked, expected) << "turn " << turn << " page " << options.page << " window "
                                    << options.window.value_or(0) << " state " << options.state_bytes
                                    << " start " << options.start << " encoded " << options.encoded_full;
      }
      TestRow row{f.tree.take(key, prompt), {}};
      ASSERT_EQ(row.sequence.offset(), peeked);
      row.tokens.assign(prompt.begin(), prompt.begin() + peeked);
      ASSERT_EQ(difference(row), "");
      // In chunks, publishing on the way.
      while (row.tokens.size() < prompt.size()) {
        const size_t chunk = std::min<size_t>({1 + random() % 9, prompt.size() - row.tokens.size(),
                                               static_cast<size_t>(row.sequence.max_append())});
        append(f.cache, row, std::span(prompt).subspan(row.tokens.size(), chunk));
        if (random() % 2 == 0) {
          const bool point = random() % 2 == 0;
          if (point) {
            f.tree.put(key, row.tokens, row.sequence);
          } else {
            f.tree.publish(key, row.tokens, row.sequence);
          }
          published.push_back({key, row.tokens, row.sequence.encoded(), point});
        }
      }
      ASSERT_EQ(difference(row), "");
      const auto stats = f.tree.stats();
      ASSERT_LE(stats.bytes, stats.cap_bytes);
      row.sequence = {};
      size_t used = f.cache.used_bytes();
      if (options.state_bytes > 0) used -= f.cache.states().stored_bytes();  // the initial state
      ASSERT_EQ(stats.bytes, used);  // with no live sequence, the tree's pages are all there is
    }
    f.tree.clear();
    EXPECT_EQ(f.tree.stats().bytes, 0u);
    EXPECT_EQ(f.tree.stats().nodes, 0u);
  }
}

}  // namespace
}  // namespace kvasir::kv
