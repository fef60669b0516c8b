#include "kv/round.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "kv/batch.h"
#include "kv/kvk_file.h"
#include "kv/prefix_tree.h"
#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::append;
using testing::counting;
using testing::difference;
using testing::TestLayout;
using testing::TestRow;

constexpr char kInvalid[] = "speculative state is invalid and must be discarded";

struct Fixture {
  CacheShape shape;
  KvCache cache;
  std::vector<TestRow> rows;
  explicit Fixture(const testing::ShapeOptions& options, uint32_t pages = 64)
      : shape(testing::make_shape(options)),
        cache(shape, TestLayout::factory(), capacity(shape, pages), nullptr, true) {}
  static CacheCapacity capacity(const CacheShape& shape, uint32_t pages) {
    CacheCapacity each = testing::pages_each(shape, pages);
    for (CacheCapacity::Group& group : each.groups) group.plain_pages *= 2;
    return each;
  }
  void add(int32_t tokens) {
    rows.push_back({cache.create(), {}});
    append(cache, rows.back(), counting(1000 * static_cast<int32_t>(rows.size()), tokens), 3);
  }
  std::vector<Sequence*> sequences() {
    std::vector<Sequence*> list;
    for (TestRow& row : rows) list.push_back(&row.sequence);
    return list;
  }
  void verify(int32_t count) {
    for (TestRow& row : rows) append(cache, row, counting(static_cast<int32_t>(row.tokens.size()), count));
  }
  size_t used() const {
    size_t pages = 0;
    for (size_t g = 0; g < cache.groups(); ++g) {
      pages += cache.pool(g, true).used_pages();
      if (shape.converts(g)) pages += cache.pool(g, false).used_pages();
    }
    return pages + (cache.states().empty() ? 0 : cache.states().pages().used_pages() - 1);
  }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return "accepted";
}
bool says(const std::function<void()>& call, std::string_view words) {
  const std::string text = refusal(call);
  EXPECT_NE(text.find(words), std::string::npos) << text;
  return text.find(words) != std::string::npos;
}

// P15, P11: rows of one round keep different numbers of tokens, at a window's edge and beside latents, and
// hold what rows hold that have only ever seen those.
TEST(SpeculativeRound, MixedKeepsEqualReplayOfWhatWasAccepted) {
  for (const int page : {1, 2, 4, 16})
    for (int32_t shift = 0; shift < 5; ++shift) {
      Fixture f({.page = page,
                 .window = 6,
                 .sinks = 2,
                 .state_bytes = 24,
                 .mla = {{.dsa_dim = 4, .max_tokens = 100}}},
                200);
      for (const int32_t tokens : {3, 5, 6, 14, 20}) f.add(tokens + shift);
      std::vector<int32_t> evicted;
      for (const TestRow& row : f.rows) evicted.push_back(row.sequence.first_stored(1));
      std::vector<std::string> calls;
      SpeculativeRound round(f.sequences());
      std::vector<int32_t> kept;
      round.add({"drafter", [&](int32_t d) { calls.push_back(fmt::format("begin {}", d)); },
                 [&] { calls.emplace_back("commit"); },
                 [&](std::span<const int32_t> keep) {
                   calls.emplace_back("rollback");
                   kept.assign(keep.begin(), keep.end());
                 }});
      round.begin(4);
      f.verify(5);
      for (size_t r = 0; r < f.rows.size(); ++r)  // nothing before the round's window has gone
        EXPECT_EQ(f.rows[r].sequence.first_stored(1), evicted[r]);
      round.resolve(std::vector<int32_t>{0, 1, 2, 3, 4});
      for (size_t r = 0; r < f.rows.size(); ++r) {
        f.rows[r].tokens.resize(f.rows[r].tokens.size() - 4 + r);
        EXPECT_EQ(difference(f.rows[r]), "") << "row " << r;
      }
      EXPECT_EQ(kept, std::vector<int32_t>({1, 2, 3, 4, 5}));
      round.begin(2);
      f.verify(3);
      round.resolve(std::vector<int32_t>(5, 2));
      for (const TestRow& row : f.rows) EXPECT_EQ(difference(row), "");
      EXPECT_EQ(calls, std::vector<std::string>({"begin 4", "rollback", "begin 2", "commit"}));
      f.rows.clear();
      EXPECT_EQ(f.used(), 0u);
    }
}

// P15: what is refused before anything has changed leaves rows and round as they were.
TEST(SpeculativeRound, WrongCountsChangeNothing) {
  Fixture f({.page = 4, .window = 6});
  f.add(7);
  f.add(9);
  SpeculativeRound round(f.sequences());
  EXPECT_FALSE(round.can_begin(-1));
  says([&] { round.begin(-1); }, "invalid speculative draft count -1");
  {
    Step step;
    f.cache.reserve({&f.rows[1].sequence}, {1}, step);
    EXPECT_FALSE(round.can_begin(1));
    says([&] { round.begin(1); }, "speculative state cannot begin this round");
  }
  f.rows[0].sequence.begin_round();
  EXPECT_FALSE(round.can_begin(1));
  says([&] { round.begin(1); }, "speculative state cannot begin this round");
  f.rows[0].sequence.rollback_round();
  EXPECT_TRUE(round.can_begin(2));
  round.begin(2);
  f.verify(3);
  for (const std::vector<int32_t>& accepted :
       {std::vector<int32_t>{}, {1}, {1, 1, 1}, {-1, 0}, {0, 3}, {INT32_MAX, 0}})
    says([&] { round.resolve(accepted); }, "invalid speculative acceptance count");
  EXPECT_TRUE(round.open());
  says(
      [&] {
        round.add({"late", [](int32_t) {}, [] {}, [](std::span<const int32_t>) {}});
      },
      "cache exposes an incomplete speculative transaction");
  round.resolve(std::vector<int32_t>{2, 0});
  f.rows[1].tokens.resize(10);
  for (const TestRow& row : f.rows) EXPECT_EQ(difference(row), "");
  says(
      [&] {
        round.add({"drafter", [](int32_t) {}, nullptr, [](std::span<const int32_t>) {}});
      },
      "cache exposes an incomplete speculative transaction");
  EXPECT_TRUE(round.valid());
  Fixture other({.page = 4});
  other.add(1);
  says([&] { SpeculativeRound({&f.rows[0].sequence, &f.rows[0].sequence}); }, "is twice");
  says([&] { SpeculativeRound({&f.rows[0].sequence, &other.rows[0].sequence}); }, "another cache");
  says([&] { SpeculativeRound({nullptr}); }, "no sequence");
}

// P15, P26: what must be discarded says so at every call, and gives all its pages back.
TEST(SpeculativeRound, CallsInAWrongOrderPoison) {
  const testing::ShapeOptions options{
      .page = 4, .start = 8, .window = 6, .encoded_full = true, .state_bytes = 8};
  const std::function<void(Fixture&, SpeculativeRound&)> wrong[] = {
      [](Fixture&, SpeculativeRound& round) {
        round.begin(2);
        round.begin(2);
      },
      [](Fixture& f, SpeculativeRound& round) { round.resolve(std::vector<int32_t>(f.rows.size(), 0)); },
      [](Fixture& f, SpeculativeRound& round) {
        round.begin(2);
        round.resolve(std::vector<int32_t>(f.rows.size(), 0));  // nothing was verified
      },
      [](Fixture& f, SpeculativeRound& round) {
        round.begin(2);
        append(f.cache, f.rows[0], counting(0, 3));
        append(f.cache, f.rows[1], counting(0, 2));
        round.resolve(std::vector<int32_t>{1, 1});
      },
      [](Fixture& f, SpeculativeRound& round) {
        round.begin(0);
        f.verify(1);
        Step step;
        f.cache.reserve({&f.rows[0].sequence}, {1}, step);
        round.resolve(std::vector<int32_t>{0, 0});
      }};
  for (const auto& call : wrong) {
    Fixture f(options);
    f.add(9);
    f.add(12);
    {
      SpeculativeRound round(f.sequences());
      says([&] { call(f, round); }, kInvalid);
      EXPECT_FALSE(round.valid());
      EXPECT_FALSE(round.can_begin(1));
      Sequence& row = f.rows[0].sequence;
      EXPECT_FALSE(row.valid());
      Step step;
      PrefixTree tree(f.cache, 1 << 20);
      KvkHeader header;
      header.tokens.assign(static_cast<size_t>(row.offset()), 1);
      const TestFolder folder("round");
      Batch batch;
      for (const std::function<void()>& later : std::initializer_list<std::function<void()>>{
               [&] { round.begin(1); },
               [&] {
                 round.resolve(std::vector<int32_t>{0, 0});
               },
               [&] { round.add({}); }, [&] { f.cache.reserve({&row}, {1}, step); }, [&] { row.fork(); },
               [&] { row.truncate(0); }, [&] { row.checkpoint(); }, [&] { row.begin_round(); },
               [&] { row.commit_round(0); }, [&] { row.round_tokens(); }, [&] { row.donate(0); },
               [&] { row.bytes(0, 0, 1); }, [&] { row.state(); }, [&] { row.attach({}); },
               [&] { tree.put("k", header.tokens, row); },
               [&] { write_kvk(folder.path() / "a.kvk", header, row); },
               [&] { SpeculativeRound({&row}).begin(0); }})
        says(later, kInvalid);
      EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    }
    f.rows.clear();
    EXPECT_EQ(f.used(), 0u);
  }
}

// P15, P26.
TEST(SpeculativeRound, AMemberThatThrowsPoisons) {
  for (const std::string_view where : {"begin", "commit", "rollback"}) {
    Fixture f({.page = 2, .window = 4, .state_bytes = 16, .mla = {{.dsa_dim = 0, .max_tokens = 99}}});
    f.add(9);
    f.add(4);
    f.add(1);
    TestRow bystander{f.cache.create(), {}};
    append(f.cache, bystander, counting(5, 6));
    const auto at = [&](std::string_view call) {
      if (call == where) throw std::runtime_error("the drafter's caches are gone");
    };
    {
      SpeculativeRound round(f.sequences());
      round.add({"first", [](int32_t) {}, [] {}, [](std::span<const int32_t>) {}});
      round.add({"second", [&](int32_t) { at("begin"); }, [&] { at("commit"); },
                 [&](std::span<const int32_t>) { at("rollback"); }});
      const std::vector<int32_t> accepted =
          where == "commit" ? std::vector<int32_t>{3, 3, 3} : std::vector<int32_t>{3, 0, 1};
      EXPECT_THROW(
          {
            round.begin(3);
            f.verify(4);
            round.resolve(accepted);
          },
          std::runtime_error);
      says([&] { round.begin(1); }, kInvalid);
      for (TestRow& row : f.rows) says([&] { row.sequence.fork(); }, kInvalid);
    }
    EXPECT_EQ(difference(bystander), "");
    // A batch lets them go, and only that.
    Batch batch;
    says([&] { batch.join(std::move(f.rows[0].sequence)); }, kInvalid);
    f.rows.clear();
    append(f.cache, bystander, counting(50, 6));
    EXPECT_EQ(difference(bystander), "");
    bystander.sequence = {};
    EXPECT_EQ(f.used(), 0u);
  }
}

// What a row alone can undo it undoes: no pages for a conversion that is due, a step that fails.
TEST(SpeculativeRound, WhatCanBeUndoneDoesNotPoison) {
  Fixture f({.page = 4, .start = 8, .encoded_full = true}, 4);
  f.add(8);  // due, 2 pages
  f.add(8);
  f.rows.push_back({f.cache.create(), {}});
  append(f.cache, f.rows[2], counting(7, 8));
  append(f.cache, f.rows[2], counting(70, 1));  // 3 encoded pages of 4
  SpeculativeRound round({&f.rows[2].sequence, &f.rows[0].sequence, &f.rows[1].sequence});
  const size_t used = f.used();
  EXPECT_THROW(round.begin(1), KvPoolExhausted);
  EXPECT_EQ(f.used(), used);
  EXPECT_TRUE(round.valid());
  for (const TestRow& row : f.rows) {
    EXPECT_EQ(difference(row), "");
    EXPECT_FALSE(row.sequence.in_round());
  }
  f.rows[2].sequence.truncate(8);  // frees a page
  f.rows[2].tokens.resize(8);
  {
    SpeculativeRound smaller({&f.rows[2].sequence, &f.rows[0].sequence});
    smaller.begin(0);
    Step step;
    EXPECT_THROW(f.cache.reserve({&f.rows[2].sequence, &f.rows[0].sequence}, {1, 1}, step), KvPoolExhausted);
    EXPECT_TRUE(smaller.open() && smaller.valid());
  }
  for (const TestRow& row : f.rows) EXPECT_EQ(difference(row), "");
}

TEST(SpeculativeRound, AnOpenRoundIsTakenBackWhenItGoes) {
  Fixture f({.page = 4, .window = 6, .state_bytes = 8});
  f.add(9);
  f.add(2);
  const size_t used = f.used();
  std::vector<int32_t> kept;
  {
    SpeculativeRound round(f.sequences());
    round.add({"drafter", [](int32_t) {}, [] {},
               [&](std::span<const int32_t> keep) { kept.assign(keep.begin(), keep.end()); }});
    round.begin(6);
    f.verify(7);
  }
  EXPECT_EQ(kept, std::vector<int32_t>({0, 0}));
  EXPECT_EQ(f.used(), used);
  for (TestRow& row : f.rows) {
    row.tokens.resize(row.tokens.size() - 7);
    EXPECT_EQ(difference(row), "");
  }
}

// Rounds end before latents would pass what their layers hold.
TEST(SpeculativeRound, LatentsLimitTheDrafts) {
  Fixture f({.page = 4, .mla = {{.dsa_dim = 0, .max_tokens = 12}}});
  f.add(9);
  SpeculativeRound round(f.sequences());
  EXPECT_TRUE(round.can_begin(2));
  EXPECT_FALSE(round.can_begin(3));
  says([&] { round.begin(3); }, "speculative state cannot begin this round");
  round.begin(2);
  f.verify(3);
  round.resolve(std::vector<int32_t>{2});
  EXPECT_EQ(difference(f.rows[0]), "");
}

}  // namespace
}  // namespace kvasir::kv
