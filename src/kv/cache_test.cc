#include "kv/cache.h"

#include <gtest/gtest.h>

#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::append;
using testing::counting;
using testing::difference;
using testing::make_shape;
using testing::pages_each;
using testing::TestLayout;
using testing::TestRow;

struct Fixture {
  CacheShape shape;
  KvCache cache;
  explicit Fixture(const testing::ShapeOptions& options, uint32_t pages = 64)
      : shape(make_shape(options)),
        cache(shape, TestLayout::factory(), pages_each(shape, pages), nullptr, true) {}
  TestRow row() { return {cache.create(), {}}; }
};

TEST(KvCache, RaggedStepsStoreEachRowsOwnTokens) {
  Fixture f({.page = 4});
  TestRow a = f.row(), b = f.row(), c = f.row();
  Step step;
  TestRow* rows[] = {&a, &b, &c};
  const std::vector<int32_t> first[] = {counting(0, 7), counting(100, 1), {}};
  append(f.cache, rows, first, step);
  const std::vector<int32_t> second[] = {counting(7, 1), counting(101, 9), counting(200, 4)};
  append(f.cache, rows, second, step);
  for (const TestRow* row : rows) EXPECT_EQ(difference(*row), "");
  EXPECT_EQ(a.sequence.offset(), 8);
  EXPECT_EQ(f.cache.pool(0, true).used_pages(), 2u + 3u + 1u);
}

// P13.
TEST(KvCache, AnUncommittedStepLeavesNothingBehind) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 16});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 6));
  TestRow b{a.sequence.fork(), a.tokens};
  const auto used = f.cache.used_bytes();
  {
    Step step;
    f.cache.reserve({&a.sequence, &b.sequence}, {9, 1}, step);
    EXPECT_TRUE(a.sequence.in_step());
    TestRow* rows[] = {&a, &b};
    const std::vector<int32_t> tokens[] = {counting(6, 9), counting(50, 1)};
    testing::run_step(f.cache, step, rows, tokens);
  }
  EXPECT_FALSE(a.sequence.in_step());
  EXPECT_EQ(f.cache.used_bytes(), used);
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
  append(f.cache, a, counting(6, 3));
  append(f.cache, b, counting(60, 3));
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
}

// P13, P2.
TEST(KvCache, ReservationIsAllOrNothing) {
  Fixture f({.page = 4, .window = 8}, 4);
  TestRow a = f.row(), b = f.row();
  append(f.cache, a, counting(0, 5));
  Step step;
  const auto used = f.cache.used_bytes();
  EXPECT_THROW(f.cache.reserve({&b.sequence, &a.sequence}, {8, 4}, step), KvPoolExhausted);
  EXPECT_FALSE(step.open());
  EXPECT_FALSE(b.sequence.in_step());
  EXPECT_EQ(f.cache.used_bytes(), used);
  const auto shortage =
      f.cache.shortage(std::vector<Sequence*>{&b.sequence, &a.sequence}, std::vector<int32_t>{8, 4});
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->needed, 3u);
  EXPECT_EQ(shortage->free, 2u);
  append(f.cache, b, counting(10, 8));
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
}

TEST(KvCache, PressureIsAskedForPagesBeforeARefusal) {
  Fixture f({.page = 4}, 2);
  TestRow a = f.row();
  append(f.cache, a, counting(0, 8));
  f.cache.on_pressure([&] {
    const bool had = a.sequence.offset() > 0;
    a.sequence = f.cache.create();
    return had;
  });
  TestRow b = f.row();
  append(f.cache, b, counting(0, 8));
  EXPECT_EQ(difference(b), "");
  TestRow c = f.row();
  Step step;
  EXPECT_THROW(f.cache.reserve({&c.sequence}, {1}, step), KvPoolExhausted);
}

// P3.
TEST(KvCache, ForkCopiesOnlyTheSharedPartialPage) {
  Fixture f({.page = 4});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 10));
  TestRow b{a.sequence.fork(), a.tokens};
  EXPECT_EQ(f.cache.pool(0, true).used_pages(), 3u);
  append(f.cache, b, counting(70, 5));
  EXPECT_EQ(f.cache.pages_copied(), 1u);
  append(f.cache, a, counting(80, 5));
  EXPECT_EQ(f.cache.pages_copied(), 1u);  // a was the only holder by then
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
  TestRow c{a.sequence.fork(6), {a.tokens.begin(), a.tokens.begin() + 6}};
  append(f.cache, c, counting(90, 1));
  EXPECT_EQ(difference(c), "");
  EXPECT_EQ(difference(a), "");
}

TEST(KvCache, TwoForksInOneStepNeedOneCopyAndUndoSharesAgain) {
  Fixture f({.page = 4}, 3);
  TestRow a = f.row();
  append(f.cache, a, counting(0, 6));
  TestRow b{a.sequence.fork(), a.tokens};
  {
    Step step;
    f.cache.reserve({&a.sequence, &b.sequence}, {1, 1}, step);  // only one page is free
    TestRow* rows[] = {&a, &b};
    const std::vector<int32_t> tokens[] = {{1}, {2}};
    testing::run_step(f.cache, step, rows, tokens);
  }
  EXPECT_EQ(f.cache.pool(0, true).used_pages(), 2u);
  Step step;
  TestRow* rows[] = {&a, &b};
  const std::vector<int32_t> tokens[] = {{1}, {2}};
  append(f.cache, rows, tokens, step);
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
}

// P1.
TEST(KvCache, TruncateAnywhereOfAFullRow) {
  Fixture f({.page = 4});
  for (int32_t length = 0; length <= 13; ++length) {
    TestRow a = f.row();
    append(f.cache, a, counting(0, 13));
    a.sequence.truncate(length);
    a.tokens.resize(static_cast<size_t>(length));
    EXPECT_EQ(f.cache.pool(0, true).used_pages(), static_cast<uint32_t>((length + 3) / 4));
    append(f.cache, a, counting(300, 6));
    EXPECT_EQ(difference(a), "");
  }
  TestRow a = f.row();
  EXPECT_THROW(a.sequence.truncate(1), NotResumable);
  EXPECT_THROW(a.sequence.truncate(-1), NotResumable);
}

// P10.
TEST(KvCache, WindowsReleasePagesAndSayWhatCanBeResumed) {
  // Spec section 5: W = 6, offset 11: history {5 .. 10} stays; the next query needs {6 .. 10}.
  Fixture f({.page = 2, .full = false, .window = 6});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 11), 1);
  EXPECT_EQ(a.sequence.first_stored(0), 5);
  EXPECT_EQ(a.sequence.pages(0), 4u);  // positions 4 .. 11
  EXPECT_EQ(a.sequence.nearest_resumable(11), 11);
  EXPECT_EQ(a.sequence.nearest_resumable(10), 10);
  EXPECT_EQ(a.sequence.nearest_resumable(9), 0);
  try {
    a.sequence.truncate(9);
    FAIL();
  } catch (const NotResumable& error) {
    EXPECT_EQ(error.nearest(), 0);
  }
  a.sequence.truncate(10);
  a.tokens.pop_back();
  append(f.cache, a, counting(500, 3));
  EXPECT_EQ(difference(a), "");
  a.sequence.truncate(0);
  EXPECT_EQ(f.cache.pool(0, true).used_pages(), 0u);
}

TEST(KvCache, ResumabilityDoesNotDependOnThePageSize) {
  for (const int window : {1, 2, 5, 9})
    for (const int page : {1, 2, 4, 16}) {
      Fixture f({.page = page, .full = false, .window = window}, 64);
      Fixture reference({.page = 64, .full = false, .window = window}, 64);
      TestRow a = f.row(), b = reference.row();
      for (const int32_t chunk : {3, 1, 7, 2, 1, 1}) {
        append(f.cache, a, counting(0, chunk));
        append(reference.cache, b, counting(0, chunk));
        for (int32_t p = 0; p <= a.sequence.offset(); ++p)
          EXPECT_EQ(a.sequence.nearest_resumable(p), b.sequence.nearest_resumable(p));
      }
    }
}

TEST(KvCache, SinksStay) {
  Fixture f({.page = 2, .full = false, .window = 6, .sinks = 3});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 40), 3);
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(a.sequence.bytes(0, 0, 3).size(), 3 * f.cache.layout(0, true).token_bytes());
  EXPECT_THROW(a.sequence.bytes(0, 0, 5), Error);
  EXPECT_THROW(a.sequence.bytes(0, 38, 3), Error);
}

// P16, P18.
TEST(KvCache, RowsConvertAtTheirOwnBoundary) {
  Fixture f({.page = 4, .start = 10, .window = 6, .encoded_full = true, .encoded_window = true});
  TestRow a = f.row(), b = f.row();
  EXPECT_EQ(a.sequence.max_append(), 10);
  append(f.cache, a, counting(0, 7));
  EXPECT_EQ(a.sequence.max_append(), 3);
  Step step;
  EXPECT_THROW(f.cache.reserve({&a.sequence}, {4}, step), Error);
  append(f.cache, a, counting(7, 3));
  EXPECT_FALSE(a.sequence.encoded());
  EXPECT_EQ(a.sequence.max_append(), INT32_MAX);
  TestRow* rows[] = {&b, &a};
  const std::vector<int32_t> tokens[] = {counting(40, 3), counting(10, 5)};
  append(f.cache, rows, tokens, step);
  EXPECT_TRUE(a.sequence.encoded());
  EXPECT_FALSE(b.sequence.encoded());
  EXPECT_EQ(a.sequence.min_reusable(), 10);
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
  EXPECT_THROW(a.sequence.truncate(9), NotResumable);
  EXPECT_EQ(f.cache.pool(0, false).used_pages(), 1u);
}

// P16.
TEST(KvCache, ConversionWithoutPagesChangesNothing) {
  const CacheShape shape = make_shape({.page = 4, .start = 8, .encoded_full = true});
  CacheCapacity capacity = pages_each(shape, 8);
  capacity.groups[0].pages = 2;
  KvCache cache(shape, TestLayout::factory(), capacity, nullptr);
  TestRow a{cache.create(), {}};
  append(cache, a, counting(0, 8));
  Step step;
  EXPECT_THROW(cache.reserve({&a.sequence}, {1}, step), KvPoolExhausted);
  EXPECT_FALSE(a.sequence.encoded());
  EXPECT_EQ(difference(a), "");
  a.sequence.truncate(3);
}

TEST(KvCache, ConversionOfAForkLeavesTheOtherPlain) {
  Fixture f({.page = 4, .start = 6, .encoded_full = true});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 6));
  TestRow b{a.sequence.fork(), a.tokens};
  append(f.cache, a, counting(6, 4));
  EXPECT_EQ(difference(a), "");
  EXPECT_EQ(difference(b), "");
  EXPECT_FALSE(b.sequence.encoded());
  b.sequence.truncate(2);
  b.tokens.resize(2);
  append(f.cache, b, counting(30, 9));
  EXPECT_EQ(difference(b), "");
}

// P11, P15, P22.
TEST(KvCache, RoundsKeepAPrefixOfTheirTokens) {
  for (int32_t keep = 0; keep <= 5; ++keep) {
    Fixture f({.page = 2, .window = 4, .state_bytes = 24});
    TestRow a = f.row();
    append(f.cache, a, counting(0, 9), 2);
    const int32_t before = a.sequence.first_stored(1);
    a.sequence.begin_round();
    EXPECT_THROW(a.sequence.begin_round(), Error);
    EXPECT_THROW(a.sequence.truncate(3), Error);
    append(f.cache, a, counting(9, 3));
    append(f.cache, a, counting(12, 2));
    EXPECT_EQ(difference(a), "");
    EXPECT_EQ(a.sequence.first_stored(1), before);  // nothing evicted while open
    EXPECT_EQ(a.sequence.round_tokens(), 5);
    EXPECT_THROW(a.sequence.commit_round(6), Error);
    EXPECT_THROW(a.sequence.commit_round(-1), Error);
    a.sequence.commit_round(keep);
    a.tokens.resize(static_cast<size_t>(9 + keep));
    EXPECT_EQ(difference(a), "");
    EXPECT_THROW(a.sequence.commit_round(0), Error);
    append(f.cache, a, counting(77, 6), 1);
    EXPECT_EQ(difference(a), "");
    a.sequence = {};
    EXPECT_EQ(f.cache.pool(0, true).used_pages(), 0u);
    EXPECT_EQ(f.cache.pool(1, true).used_pages(), 0u);
    EXPECT_EQ(f.cache.states().pages().used_pages(), 1u);
  }
}

// P16.
TEST(KvCache, ARoundDoesNotConvert) {
  Fixture f({.page = 4, .start = 8, .encoded_full = true});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 6));
  a.sequence.begin_round();
  EXPECT_EQ(a.sequence.max_append(), 2);
  append(f.cache, a, counting(6, 2));
  EXPECT_EQ(a.sequence.max_append(), 0);
  a.sequence.commit_round(1);
  a.tokens.resize(7);
  EXPECT_FALSE(a.sequence.encoded());
  append(f.cache, a, counting(9, 1));
  a.sequence.begin_round();  // at the boundary: converts first
  EXPECT_TRUE(a.sequence.encoded());
  append(f.cache, a, counting(10, 3));
  a.sequence.rollback_round();
  a.tokens.resize(8);
  EXPECT_EQ(difference(a), "");
}

// Rows that only wait to be reused give way to a conversion as to any other need.
TEST(KvCache, ARoundThatConvertsTakesWhatIsKeptForLater) {
  Fixture f({.page = 4, .start = 8, .encoded_full = true}, 4);
  TestRow kept = f.row();
  for (int32_t at = 0; at < 16; at += 8) append(f.cache, kept, counting(at, 8));
  EXPECT_EQ(f.cache.pool(0, true).free_pages(), 0u);
  TestRow a = f.row();
  append(f.cache, a, counting(0, 8));
  EXPECT_THROW(a.sequence.begin_round(), KvPoolExhausted);
  EXPECT_EQ(difference(a), "");
  f.cache.on_pressure([&] {
    const bool held = static_cast<bool>(kept.sequence);
    kept.sequence = {};
    return held;
  });
  a.sequence.begin_round();
  EXPECT_TRUE(a.sequence.encoded());
  a.sequence.rollback_round();
  EXPECT_EQ(difference(a), "");
  f.cache.on_pressure(nullptr);
}

// P22.
TEST(KvCache, RecurrentRowsResumeAtCheckpointsOnly) {
  Fixture f({.page = 4, .window = 5, .state_bytes = 32});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 7));
  a.sequence.checkpoint();
  append(f.cache, a, counting(7, 20), 3);
  EXPECT_EQ(a.sequence.checkpoints(), std::vector<int32_t>({7}));
  EXPECT_EQ(a.sequence.nearest_resumable(26), 7);
  EXPECT_EQ(a.sequence.nearest_resumable(6), 0);
  try {
    a.sequence.truncate(20);
    FAIL();
  } catch (const NotResumable& error) {
    EXPECT_EQ(error.nearest(), 7);
  }
  TestRow b{a.sequence.fork(7), {a.tokens.begin(), a.tokens.begin() + 7}};
  EXPECT_EQ(difference(b), "");
  append(f.cache, b, counting(90, 9), 4);
  EXPECT_EQ(difference(b), "");
  a.sequence.truncate(7);
  a.tokens.resize(7);
  EXPECT_EQ(difference(a), "");
  append(f.cache, a, counting(50, 4));
  EXPECT_EQ(difference(a), "");
  a.sequence = {};
  b.sequence = {};
  EXPECT_EQ(f.cache.used_bytes(), f.cache.states().stored_bytes());
}

// P17.
TEST(KvCache, DonorViewsOutliveWhatHappensToTheRow) {
  Fixture f({.page = 4, .start = 12, .window = 6, .encoded_full = true});
  TestRow a = f.row();
  EXPECT_THROW(a.sequence.donate(0), Error);
  append(f.cache, a, counting(0, 10));
  const auto before = a.sequence.bytes(0, 0, 10);
  DonorView full = a.sequence.donate(0), window = a.sequence.donate(1);
  EXPECT_EQ(full.start(), 0);
  EXPECT_EQ(full.width(), 10);
  EXPECT_EQ(window.start(), 4);
  EXPECT_EQ(window.offset(), 10);
  append(f.cache, a, counting(10, 2));
  append(f.cache, a, counting(12, 9));
  a.sequence = {};
  TestRow other = f.row();
  append(f.cache, other, counting(900, 30));
  std::vector<std::byte> now(before.size());
  const RowPages pages = full.pages();
  for (int32_t p = 0; p < 10; ++p)
    pages.layout->export_tokens(pages.pages[p / 4], p % 4, 1,
                                std::span(now).subspan(static_cast<size_t>(p) * 40, 40));
  EXPECT_EQ(now, before);
  full = {};
  window = DonorView();
  other.sequence = {};
  EXPECT_EQ(f.cache.used_bytes(), 0u);
}

// What [start, end) of a view must hold, from the tokens alone.
std::vector<std::byte> expected_bytes(const DonorView& view, std::span<const int32_t> tokens, size_t group) {
  std::vector<std::byte> out;
  for (int32_t p = view.start(); p < view.end(); ++p) {
    const auto token = testing::token_bytes(testing::prefix_hash(tokens, static_cast<size_t>(p)), group,
                                            *view.pages().layout);
    out.insert(out.end(), token.begin(), token.end());
  }
  return out;
}
std::vector<std::byte> shown_bytes(const DonorView& view) {
  const RowPages pages = view.pages();
  const int32_t page = pages.layout->geometry().page_tokens;
  const size_t size = pages.layout->token_bytes();
  std::vector<std::byte> out(static_cast<size_t>(view.width()) * size);
  for (int32_t p = view.start(); p < view.end(); ++p)
    pages.layout->export_tokens(pages.pages[p / page], p % page, 1,
                                std::span(out).subspan(static_cast<size_t>(p - view.start()) * size, size));
  return out;
}

// P17: pages of 4, a window of 6. Group 0 sees everything and is encoded, group 1 has the window and is
// plain.
TEST(KvCache, DonorViewsSayWhichKeysMayBeAttended) {
  Fixture f({.page = 4, .window = 6, .encoded_full = true});
  TestRow a = f.row();
  struct Kept {
    DonorView view;
    size_t group;
    std::vector<int32_t> tokens;
    int32_t start, end;
  };
  std::vector<Kept> kept;
  const auto take = [&](size_t group, int32_t start, int32_t end) {
    kept.push_back({a.sequence.donate(group), group, a.tokens, start, end});
  };
  const auto check = [&](const char* when) {
    for (const Kept& k : kept) {
      SCOPED_TRACE(fmt::format("{}: group {} at {}", when, k.group, k.end));
      EXPECT_EQ(k.view.offset(), k.end);
      EXPECT_EQ(k.view.start(), k.start);
      EXPECT_EQ(k.view.end(), k.end);
      EXPECT_EQ(k.view.width(), k.end - k.start);
      EXPECT_EQ(k.view.key_dtype(), k.group == 0 ? Dtype::f16 : Dtype::f32);
      EXPECT_EQ(k.view.value_dtype(), k.group == 0 ? Dtype::f16 : Dtype::f32);
      EXPECT_EQ(shown_bytes(k.view), expected_bytes(k.view, k.tokens, k.group));
    }
  };
  append(f.cache, a, counting(0, 4));
  take(0, 0, 4);
  take(1, 0, 4);
  append(f.cache, a, counting(4, 6));
  take(0, 0, 10);
  take(1, 4, 10);
  check("appended");
  a.sequence.truncate(9);
  a.tokens.resize(9);
  take(0, 0, 9);
  take(1, 4, 9);  // token 3 is gone; a query at 9 would not see it
  append(f.cache, a, counting(50, 1));
  take(0, 0, 10);
  take(1, 4, 10);
  check("truncated");
  a.sequence.begin_round();  // nothing is evicted, but a query at 15 sees no more than the window
  append(f.cache, a, counting(60, 5));
  take(0, 0, 15);
  take(1, 9, 15);
  a.sequence.rollback_round();
  a.tokens.resize(10);
  append(f.cache, a, counting(70, 13));
  take(0, 0, 23);
  take(1, 17, 23);
  check("a round was rolled back");
  a.sequence.truncate(0);
  a.tokens.clear();
  append(f.cache, a, counting(80, 20));
  check("emptied and filled again");
  a.sequence = {};
  check("the row is gone");
  TestRow other = f.row();
  append(f.cache, other, counting(900, 30));
  check("its free pages are in use");
  other.sequence = {};
  DonorView moved = std::move(kept.back().view);
  EXPECT_EQ(kept.back().view.width(), 0);
  EXPECT_EQ(moved.start(), 17);
  kept.clear();
  EXPECT_EQ(f.cache.pool(0, true).used_pages(), 0u);
  EXPECT_GT(f.cache.used_bytes(), 0u);
  moved = {};
  EXPECT_EQ(f.cache.used_bytes(), 0u);
  EXPECT_EQ(moved.offset(), 0);
}

// P26.
TEST(KvCache, ARowMayDieInsideAStep) {
  Fixture f({.page = 4, .state_bytes = 8});
  TestRow a = f.row();
  append(f.cache, a, counting(0, 6));
  TestRow b{a.sequence.fork(), a.tokens}, c{a.sequence.fork(), a.tokens};
  for (const bool commit : {false, true}) {
    TestRow d{a.sequence.fork(), a.tokens};
    Step step;
    f.cache.reserve({&d.sequence, &b.sequence, &c.sequence}, {1, 0, 0}, step);
    d.sequence = {};
    if (commit) step.commit();
  }
  EXPECT_EQ(difference(b), "");
  a.sequence = {};
  b.sequence = {};
  c.sequence = {};
  EXPECT_EQ(f.cache.used_bytes(), f.cache.states().stored_bytes());
}

TEST(KvCache, MisuseIsCaught) {
  Fixture f({.page = 4}), other({.page = 4});
  TestRow a = f.row();
  Sequence foreign = other.cache.create();
  Step step, second;
  EXPECT_THROW(f.cache.reserve({&a.sequence, &a.sequence}, {1, 1}, step), Error);
  EXPECT_FALSE(a.sequence.in_step());
  EXPECT_THROW(f.cache.reserve({&foreign}, {1}, step), Error);
  f.cache.reserve({&a.sequence}, {1}, step);
  EXPECT_THROW(f.cache.reserve({&a.sequence}, {1}, second), Error);
  EXPECT_THROW(a.sequence.fork(), Error);
  EXPECT_THROW(a.sequence.checkpoint(), Error);
  step.rollback();
  EXPECT_THROW(step.commit(), Error);
}

// P10: the fixture of kv-cache.md 19, W 6: rows that begin with 4 and with 2 tokens, together for 8 steps, of
// which one has wrapped before the other.
TEST(KvCache, WrappedRowsHoldTheirNewestTokensInOrder) {
  for (const int page : {1, 2, 4, 16}) {
    Fixture f({.page = page, .full = false, .window = 6});
    TestRow a = f.row(), b = f.row();
    append(f.cache, a, counting(0, 4));
    append(f.cache, b, counting(100, 2));
    Step step;
    for (int32_t i = 0; i < 8; ++i) {
      TestRow* rows[] = {&a, &b};
      const std::vector<int32_t> tokens[] = {{4 + i}, {102 + i}};
      append(f.cache, rows, tokens, step);
      for (const TestRow* row : rows) {
        EXPECT_EQ(row->sequence.first_stored(0), std::max(0, row->sequence.offset() - 6));
        EXPECT_EQ(difference(*row), "");
      }
    }
    EXPECT_EQ(a.sequence.offset(), 12);  // the true offset, whatever is stored
    EXPECT_EQ(b.sequence.offset(), 10);
    const Sequence extracted = a.sequence.fork();
    EXPECT_EQ(extracted.bytes(0, 6, 6), a.sequence.bytes(0, 6, 6));
  }
}

// P12: a wrapped window converts what it stores, sinks included, and once.
TEST(KvCache, WrappedWindowsConvertOnceWithTheirSinks) {
  for (const int page : {2, 4, 16})
    for (const int sinks : {0, 1, 3}) {
      Fixture f(
          {.page = page, .start = 17, .full = false, .window = 6, .sinks = sinks, .encoded_window = true});
      TestRow a = f.row();
      append(f.cache, a, counting(0, 17), 5);
      const int32_t first = a.sequence.first_stored(0);
      const auto plain = a.sequence.bytes(0, first, 17 - first), kept = a.sequence.bytes(0, 0, sinks);
      Step step;
      f.cache.reserve({&a.sequence}, {1}, step);
      step.rollback();
      ASSERT_TRUE(a.sequence.encoded());
      EXPECT_EQ(a.sequence.first_stored(0), first);
      EXPECT_EQ(a.sequence.bytes(0, first, 17 - first), TestLayout::encode(plain));
      EXPECT_EQ(a.sequence.bytes(0, 0, sinks), TestLayout::encode(kept));
      const uint64_t pages = f.cache.pages_converted();
      const auto encoded = a.sequence.bytes(0, first, 17 - first);
      a.sequence.begin_round();  // would convert what is due
      a.sequence.commit_round(0);
      append(f.cache, a, counting(17, 1));
      EXPECT_EQ(f.cache.pages_converted(), pages);
      EXPECT_EQ(
          a.sequence.bytes(0, first + 1, 16 - first),
          std::vector<std::byte>(encoded.begin() + static_cast<std::ptrdiff_t>(encoded.size() / (17 - first)),
                                 encoded.end()));
      EXPECT_EQ(difference(a), "");
    }
}

// P25: a graph for one vector of signatures never runs rows that are stored otherwise.
TEST(KvCache, SignaturesOfRowsAreThoseOfTheirStage) {
  Fixture f(
      {.page = 4, .start = 6, .window = 5, .encoded_full = true, .mla = {{.dsa_dim = 3, .max_tokens = 50}}});
  using Vector = std::vector<std::string>;
  const Vector before{"kv:plain", "kv:rotating-plain", "kv:mla:target:dsa"};
  const Vector after{"kv:quant:8:32", "kv:rotating-plain", "kv:mla:target:dsa"};
  TestRow a = f.row(), b = f.row();
  append(f.cache, a, counting(0, 6));
  append(f.cache, b, counting(0, 2));
  EXPECT_EQ(signatures(a.sequence), before);
  Step step;
  f.cache.reserve({&a.sequence, &b.sequence}, {1, 1}, step);  // converts a
  EXPECT_EQ(signatures(a.sequence), after);
  EXPECT_EQ(signatures(b.sequence), before);
  Sequence* both[] = {&a.sequence, &b.sequence};
  const auto runs = [&](const Vector& built_for, std::span<Sequence* const> rows) {
    return match_signatures(built_for, rows);
  };
  EXPECT_TRUE(runs(after, std::span(both, 1)));
  EXPECT_TRUE(runs(before, std::span(both + 1, 1)));
  EXPECT_FALSE(runs(after, both));  // one row of two
  EXPECT_FALSE(runs(before, both));
  EXPECT_FALSE(runs({}, both));
  for (size_t i = 0; i < after.size(); ++i) {
    Vector other = after;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));  // missing
    EXPECT_FALSE(runs(other, std::span(both, 1)));
    other = after;
    other[i] = "kv:unknown";
    EXPECT_FALSE(runs(other, std::span(both, 1)));
    other = after;
    other.push_back(after[i]);
    EXPECT_FALSE(runs(other, std::span(both, 1)));
  }
}

}  // namespace
}  // namespace kvasir::kv
