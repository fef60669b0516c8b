// Random programs of everything that can happen to rows, against the same rows run alone from scratch.
//
// The stored bytes of a test token are a function of its row's tokens up to it (test_rows.h), so `difference`
// compares with an oracle that knows nothing of pages; in addition a solo run of the same tokens in a fresh
// cache must hold the same bytes.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "base/test_seeds.h"
#include "kv/batch.h"
#include "kv/row.h"
#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::difference;
using testing::TestLayout;
using testing::TestRow;

testing::ShapeOptions random_options(std::mt19937& random) {
  testing::ShapeOptions options;
  options.page = 1 << (random() % 5);
  options.start = random() % 2 == 0 ? 0 : static_cast<int32_t>(random() % 40);
  options.full = random() % 4 != 0;
  if (!options.full || random() % 2 == 0) options.window = 1 + static_cast<int>(random() % 20);
  if (options.window && *options.window > 1 && random() % 3 == 0)
    options.sinks = static_cast<int>(random() % static_cast<uint32_t>(std::min(*options.window, 6)));
  options.encoded_full = random() % 2 == 0;
  options.encoded_window = random() % 2 == 0;
  options.state_bytes = random() % 3 == 0 ? 24 : 0;
  if (random() % 3 == 0) {  // two layers of one group, and others of their own
    const auto most = static_cast<int32_t>(1000 + random() % 1000);
    options.mla = {{.dsa_dim = 4, .max_tokens = most}, {.dsa_dim = 4, .max_tokens = most}};
    if (random() % 2 == 0) options.mla.push_back({.dsa_dim = 0, .max_tokens = most});
    if (random() % 2 == 0) options.mla.push_back({.dsa_dim = 0, .max_tokens = most, .mtp = true});
  }
  if (random() % 8 == 0) options.page = std::array{16, 64, 256}[random() % 3];
  return options;
}

// P2: a page's references are the rows, and their checkpoints, that hold it, and no other page is in use.
void check_references(const KvCache& cache, const std::vector<TestRow>& rows) {
  for (size_t g = 0; g < cache.groups(); ++g) {
    std::map<PageId, uint32_t> holders[2];
    for (const TestRow& held : rows) {
      const Row& row = SequenceAccess::row(held.sequence);
      auto& counts = holders[!cache.shape().converts(g) || row.encoded];
      for (const PageId id : row.groups[g].ids)
        if (id != kNoPage) ++counts[id];
      for (const Checkpoint& point : row.checkpoints)
        for (const PageId id : point.windows[g].ids)
          if (id != kNoPage) ++counts[id];
    }
    for (const bool encoded : {false, true}) {
      if (!encoded && !cache.shape().converts(g)) continue;  // one pool for both stages
      const PagePool& pool = cache.pool(g, encoded);
      EXPECT_EQ(pool.used_pages(), holders[encoded].size()) << "group " << g;
      for (const auto& [id, count] : holders[encoded]) EXPECT_EQ(pool.references(id), count) << "page " << id;
    }
  }
}

void check_alone(const TestRow& row, const CacheShape& shape) {
  KvCache cache(shape, TestLayout::factory(), testing::pages_each(shape, 256), nullptr, true);
  TestRow alone{cache.create(), {}};
  testing::append(cache, alone, row.tokens);
  ASSERT_EQ(alone.sequence.offset(), row.sequence.offset());
  // A row of exactly `start` tokens converts for its next step, also for one that failed; so does a round.
  if (row.sequence.encoded() && !alone.sequence.encoded()) {
    ASSERT_EQ(row.sequence.offset(), shape.start);
    alone.sequence.begin_round();
    alone.sequence.commit_round(0);
  }
  ASSERT_EQ(alone.sequence.encoded(), row.sequence.encoded());
  for (size_t g = 0; g < cache.groups(); ++g) {
    const int32_t first = std::max(alone.sequence.first_stored(g), row.sequence.first_stored(g));
    ASSERT_EQ(alone.sequence.bytes(g, first, row.sequence.offset() - first),
              row.sequence.bytes(g, first, row.sequence.offset() - first));
  }
}

void run_program(uint32_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const CacheShape shape = testing::make_shape(random_options(random));
  MemoryLedger ledger;
  KvCache cache(shape, TestLayout::factory(),
                testing::pages_each(shape, static_cast<uint32_t>(24 + random() % 100), 48), &ledger, true);
  std::vector<TestRow> rows;
  std::vector<std::pair<DonorView, std::pair<size_t, std::vector<std::byte>>>> donors;
  const auto export_view = [&](const DonorView& view) {
    const RowPages pages = view.pages();
    const int32_t page = pages.layout->geometry().page_tokens;
    std::vector<std::byte> bytes(static_cast<size_t>(view.width()) * pages.layout->token_bytes());
    for (int32_t p = view.start(); p < view.offset(); ++p)
      pages.layout->export_tokens(
          pages.pages[p / page], p % page, 1,
          std::span(bytes).subspan(static_cast<size_t>(p - view.start()) * pages.layout->token_bytes(),
                                   pages.layout->token_bytes()));
    return bytes;
  };
  Step step;
  for (int operation = 0; operation < 60; ++operation) {
    const auto kind = random() % 12;
    const size_t pick = rows.empty() ? 0 : random() % rows.size();
    if (rows.empty() || (kind == 0 && rows.size() < 6)) {
      rows.push_back({cache.create(), {}});
    } else if (kind <= 4) {  // a ragged step of some rows, sometimes failed
      std::vector<TestRow*> taking;
      std::vector<std::vector<int32_t>> tokens;
      std::vector<Sequence*> sequences;
      std::vector<int32_t> counts;
      for (size_t r = 0; r < rows.size(); ++r) {
        if (random() % 3 == 0) continue;
        const int32_t most = std::min(rows[r].sequence.max_append(), 1 + static_cast<int32_t>(random() % 12));
        const int32_t count =
            most == 0 ? 0 : static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1));
        taking.push_back(&rows[r]);
        sequences.push_back(&rows[r].sequence);
        counts.push_back(count);
        tokens.push_back(testing::random_tokens(random, static_cast<size_t>(count), 50));
      }
      std::vector<std::pair<int32_t, size_t>> before;
      for (const TestRow& row : rows)
        before.emplace_back(row.sequence.offset(), row.sequence.physical_bytes());
      const size_t used = cache.used_bytes();
      const bool lacking = cache.shortage(sequences, counts).has_value();
      try {
        cache.reserve(sequences, counts, step);
      } catch (const KvPoolExhausted&) {
        EXPECT_TRUE(lacking);
        EXPECT_EQ(cache.used_bytes(), used);
        for (size_t r = 0; r < rows.size(); ++r)
          EXPECT_EQ(rows[r].sequence.physical_bytes(), before[r].second);
        if (!rows.empty()) rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(pick));
        continue;
      }
      EXPECT_FALSE(lacking);
      testing::run_step(cache, step, taking, tokens);
      if (random() % 5 == 0) {
        step.rollback();
        for (size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(rows[r].sequence.offset(), before[r].first);
      } else {
        step.commit();
        for (size_t i = 0; i < taking.size(); ++i)
          taking[i]->tokens.insert(taking[i]->tokens.end(), tokens[i].begin(), tokens[i].end());
      }
    } else if (kind == 5 && rows.size() < 6 &&
               !rows[pick].sequence.in_round()) {  // fork at any resumable point
      const int32_t at = rows[pick].sequence.nearest_resumable(
          static_cast<int32_t>(random() % (rows[pick].tokens.size() + 1)));
      rows.push_back(
          {rows[pick].sequence.fork(at), {rows[pick].tokens.begin(), rows[pick].tokens.begin() + at}});
    } else if (kind == 6 && !rows[pick].sequence.in_round()) {  // truncate
      TestRow& row = rows[pick];
      const int32_t wanted = static_cast<int32_t>(random() % (row.tokens.size() + 1));
      const int32_t nearest = row.sequence.nearest_resumable(wanted);
      try {
        row.sequence.truncate(wanted);
        EXPECT_EQ(nearest, wanted);
        row.tokens.resize(static_cast<size_t>(wanted));
      } catch (const NotResumable& refused) {
        EXPECT_EQ(refused.nearest(), nearest);
        EXPECT_LT(nearest, wanted);
        row.sequence.truncate(nearest);
        row.tokens.resize(static_cast<size_t>(nearest));
      }
    } else if (kind == 7) {  // leave, or re-order
      if (random() % 2 == 0) {
        rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(pick));
      } else {
        std::shuffle(rows.begin(), rows.end(), random);
      }
    } else if (kind == 8) {  // rounds
      TestRow& row = rows[pick];
      if (!row.sequence.in_round()) {
        try {
          row.sequence.begin_round();
        } catch (const KvPoolExhausted&) {  // it was due to convert
        }
      } else {
        const int32_t appended = row.sequence.round_tokens();
        const int32_t keep = static_cast<int32_t>(random() % static_cast<uint32_t>(appended + 1));
        row.sequence.commit_round(keep);
        row.tokens.resize(row.tokens.size() - static_cast<size_t>(appended - keep));
      }
    } else if (kind == 9 && !rows[pick].sequence.in_round()) {
      if (rows[pick].sequence.checkpoints().size() < 3) rows[pick].sequence.checkpoint();
    } else if (kind == 10 && donors.size() < 3 && !rows[pick].tokens.empty() && random() % 2 == 0) {
      const size_t group = random() % cache.groups();
      DonorView view = rows[pick].sequence.donate(group);
      auto bytes = export_view(view);
      donors.emplace_back(std::move(view), std::pair(group, std::move(bytes)));
    } else if (kind == 11 && !donors.empty()) {
      EXPECT_EQ(export_view(donors.back().first), donors.back().second.second);
      donors.pop_back();
    }
    if (operation % 10 == 9) {
      for (const TestRow& row : rows) ASSERT_EQ(difference(row), "") << "after operation " << operation;
    }
    ASSERT_EQ(ledger.bytes(MemoryCategory::kv), cache.committed_bytes());
  }
  for (const auto& [view, kept] : donors) EXPECT_EQ(export_view(view), kept.second);
  donors.clear();
  for (TestRow& row : rows) {
    ASSERT_EQ(difference(row), "");
    if (!row.sequence.in_round()) check_alone(row, shape);
  }
  check_references(cache, rows);
  rows.clear();
  for (size_t g = 0; g < cache.groups(); ++g) {
    EXPECT_EQ(cache.pool(g, true).used_pages(), 0u);
    EXPECT_EQ(cache.pool(g, false).used_pages(), 0u);
  }
  if (!cache.states().empty()) {
    EXPECT_EQ(cache.states().pages().used_pages(), 1u);
  }
}

// P1, P2, P3, P4, P10, P15, P16.
TEST(Property, RandomProgramsEqualSoloRuns) {
  const uint32_t seeds = static_cast<uint32_t>(property_seeds(3000));
  for (uint32_t seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) run_program(seed);
}

// P21: at most one page more per group than the row needs in either form.
TEST(Property, ConversionHoldsOneExtraPageAGroup) {
  for (const int page : {1, 2, 8}) {
    const CacheShape shape = testing::make_shape({.page = page, .start = 24, .encoded_full = true});
    KvCache cache(shape, TestLayout::factory(), testing::pages_each(shape, 32), nullptr);
    TestRow row{cache.create(), {}};
    std::mt19937 random(5);
    testing::append(cache, row, testing::random_tokens(random, 24));
    const uint32_t pages = row.sequence.pages(0);
    testing::append(cache, row, testing::random_tokens(random, 1));
    EXPECT_EQ(cache.pool(0, false).high_water(), pages);
    EXPECT_EQ(cache.pool(0, false).used_pages(), 0u);
    EXPECT_LE(cache.pool(0, true).high_water(), pages + 1);
    EXPECT_EQ(difference(row), "");
  }
}

// P4.
TEST(Batch, MembershipMovesNothing) {
  const CacheShape shape = testing::make_shape({.page = 4, .window = 6});
  KvCache cache(shape, TestLayout::factory(), testing::pages_each(shape, 64), nullptr);
  std::mt19937 random(11);
  std::vector<TestRow> rows;
  for (size_t r = 0; r < 5; ++r) {
    rows.push_back({cache.create(), {}});
    testing::append(cache, rows[r], testing::random_tokens(random, 3 + 4 * r));
  }
  Batch batch, other;
  for (size_t r = 0; r < 3; ++r) batch.join(std::move(rows[r].sequence));
  for (size_t r = 3; r < 5; ++r) other.join(std::move(rows[r].sequence));
  const size_t used = cache.used_bytes();
  batch.merge(std::move(other));
  batch.reorder(std::vector<size_t>{4, 2, 0, 1, 3});
  Sequence extracted = batch.extract(1);  // row 2
  EXPECT_EQ(cache.used_bytes(), used);
  EXPECT_EQ(batch.leave(0).offset(), 19);
  EXPECT_EQ(batch.size(), 4u);
  batch.filter(std::vector<size_t>{3, 1});  // rows 3 and 0
  rows[3].sequence = batch.leave(0);
  rows[0].sequence = batch.leave(0);
  rows[2].sequence = std::move(extracted);
  for (const size_t r : {0u, 2u, 3u}) EXPECT_EQ(difference(rows[r]), "");
  EXPECT_EQ(cache.pages_copied(), 0u);
  batch.join(std::move(rows[0].sequence));
  batch.join(std::move(rows[3].sequence));
  EXPECT_THROW(batch.truncate(5), NotResumable);  // row 3 has left that window behind
  EXPECT_EQ(batch[0].offset(), 3);
  batch.truncate(1);
  EXPECT_EQ(batch[0].offset(), 2);
  EXPECT_EQ(batch[1].offset(), 14);
  EXPECT_THROW(batch.filter(std::vector<size_t>{0, 0}), Error);
}

// P13, P25: a refused change leaves both sides as they were, and says what does not fit.
TEST(Batch, ForeignRowsAreRefusedAndNothingMoves) {
  struct Side {
    CacheShape shape;
    KvCache cache;
    TestRow row;
    explicit Side(const testing::ShapeOptions& options)
        : shape(testing::make_shape(options)),
          cache(shape, TestLayout::factory(), testing::pages_each(shape, 16), nullptr, true),
          row{cache.create(), {}} {
      testing::append(cache, row, testing::counting(3, 9));
    }
  };
  Side own({.page = 4, .window = 6}), same({.page = 4, .window = 6}), fewer({.page = 4}),
      encoded({.page = 4, .window = 6, .encoded_full = true}),
      latents({.page = 4, .mla = {{.dsa_dim = 0, .max_tokens = 99}}});
  Batch batch;
  batch.join(own.row.sequence.fork());
  const auto refusal = [&](Side& side) {
    Batch other;
    other.join(std::move(side.row.sequence));
    std::string text = "accepted";
    try {
      batch.merge(std::move(other));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      text = error.what();
    }
    EXPECT_EQ(batch.size(), 1u);
    return text;
  };
  EXPECT_NE(refusal(encoded).find("cached layer 0: kv:plain row layout cannot merge kv:quant:8:32"),
            std::string::npos);
  EXPECT_NE(refusal(latents).find("cached layer 1: kv:rotating-plain row layout cannot merge kv:mla:target"),
            std::string::npos);
  EXPECT_NE(refusal(fewer).find("1 cached layers cannot join rows of 2"), std::string::npos);
  EXPECT_NE(refusal(same).find("another cache"), std::string::npos);
  EXPECT_EQ(difference(batch[0], own.row.tokens), "");
  EXPECT_EQ(difference(own.row), "");
  EXPECT_EQ(own.cache.pool(0, true).references(SequenceAccess::row(batch[0]).groups[0].ids[0]), 2u);
  // Order errors of a batch are the caller's, and change nothing.
  EXPECT_THROW(batch.leave(1), Error);
  EXPECT_THROW(batch.reorder(std::vector<size_t>{0, 0}), Error);
  EXPECT_THROW(batch.truncate(-1), KvRangeError);
  Step step;
  own.cache.reserve({&batch[0]}, {1}, step);
  for (const std::function<void()>& call :
       std::initializer_list<std::function<void()>>{[&] { batch.leave(0); }, [&] { batch.filter({}); },
                                                    [&] { batch.truncate(1); }, [&] { batch.extract(0); }})
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    }
  step.rollback();
  EXPECT_EQ(difference(batch[0], own.row.tokens), "");
}

}  // namespace
}  // namespace kvasir::kv
