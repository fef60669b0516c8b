// P26, P13: whatever throws where rows change, no page is lost and every row is what it was.
#include <gtest/gtest.h>

#include "kv/row.h"
#include "kv/test_rows.h"

namespace kvasir::kv {
namespace {

using testing::difference;
using testing::TestRow;

struct Fault : std::runtime_error {
  Fault() : std::runtime_error("injected") {}
};

// TestLayout whose copies and conversions fail when `countdown` has gone down to nothing.
class FaultyLayout final : public PageLayout {
 public:
  FaultyLayout(const GroupGeometry& geometry, int& countdown) : inner_(geometry), countdown_(countdown) {
    geometry_ = geometry;
    page_bytes_ = inner_.page_bytes();
    token_bytes_ = inner_.token_bytes();
  }
  void export_tokens(const std::byte* page, int first, int count, std::span<std::byte> out) const override {
    inner_.export_tokens(page, first, count, out);
  }
  void import_tokens(std::byte* page, int first, int count, std::span<const std::byte> in) const override {
    inner_.import_tokens(page, first, count, in);
  }
  void copy_tokens(const std::byte* from, std::byte* to, int first, int count) const override {
    tick();
    inner_.copy_tokens(from, to, first, count);
  }
  void convert_tokens(const PageLayout& plain, const std::byte* from, std::byte* to, int first,
                      int count) const override {
    tick();
    inner_.convert_tokens(static_cast<const FaultyLayout&>(plain).inner_, from, to, first, count);
  }

 private:
  void tick() const {
    if (countdown_ > 0 && --countdown_ == 0) throw Fault();
  }
  testing::TestLayout inner_;
  int& countdown_;
};

struct Program {
  int countdown = 0;
  CacheShape shape;
  MemoryLedger ledger;
  KvCache cache;
  std::vector<TestRow> rows;
  explicit Program(const testing::ShapeOptions& options)
      : shape(testing::make_shape(options)),
        cache(
            shape, [this](const GroupGeometry& g) { return std::make_unique<FaultyLayout>(g, countdown); },
            testing::pages_each(shape, 96), &ledger, true) {}

  // Rows that share partial pages; with a start, some that are due to convert.
  void grow(std::mt19937& random) {
    rows.push_back({cache.create(), {}});
    testing::append(cache, rows[0], testing::random_tokens(random, 10));
    for (const int32_t at : {10, 7, 10}) {
      const int32_t resumable = rows[0].sequence.nearest_resumable(at);
      rows.push_back(
          {rows[0].sequence.fork(resumable), {rows[0].tokens.begin(), rows[0].tokens.begin() + resumable}});
    }
  }
  void check() const {
    for (const TestRow& row : rows) {
      ASSERT_EQ(difference(row), "");
      ASSERT_FALSE(row.sequence.in_step());
    }
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

// P13, P26.
TEST(Faults, AnyCopyOrConversionMayThrow) {
  const testing::ShapeOptions shapes[] = {
      {.page = 4},
      {.page = 4, .window = 6, .sinks = 1, .state_bytes = 24},
      {.page = 4, .start = 10, .window = 6, .encoded_full = true, .encoded_window = true, .state_bytes = 8},
      {.page = 4, .start = 10, .encoded_full = true, .mla = {{.dsa_dim = 4, .max_tokens = 99}}}};
  for (size_t s = 0; s < std::size(shapes); ++s) {
    int faults = 0;
    for (int at = 1;; ++at) {
      SCOPED_TRACE(fmt::format("shape {}, fault {}", s, at));
      Program program(shapes[s]);
      std::mt19937 random(3);
      program.grow(random);
      const size_t used = program.used();
      bool threw = false;
      {
        Step step;
        std::vector<Sequence*> sequences;
        std::vector<TestRow*> rows;
        std::vector<std::vector<int32_t>> tokens;
        std::vector<int32_t> counts;
        for (TestRow& row : program.rows) {
          rows.push_back(&row);
          sequences.push_back(&row.sequence);
          counts.push_back(std::min(3, row.sequence.max_append()));
          tokens.push_back(testing::random_tokens(random, static_cast<size_t>(counts.back())));
        }
        program.countdown = at;
        try {
          program.cache.reserve(sequences, counts, step);
        } catch (const Fault&) {
          threw = true;
        }
        program.countdown = 0;
        EXPECT_EQ(step.open(), !threw);
        program.cache.shape();
        if (threw) {
          // Rows that converted before the fault have given plain pages for encoded ones.
          if (!program.shape.converts()) {
            EXPECT_EQ(program.used(), used);
          }
          program.check();
          program.cache.reserve(sequences, counts, step);  // and it may be tried again
        }
        testing::run_step(program.cache, step, rows, tokens);
        step.commit();
        for (size_t r = 0; r < rows.size(); ++r)
          rows[r]->tokens.insert(rows[r]->tokens.end(), tokens[r].begin(), tokens[r].end());
      }
      program.check();
      EXPECT_EQ(program.ledger.bytes(MemoryCategory::kv), program.cache.committed_bytes());
      program.rows.clear();
      EXPECT_EQ(program.used(), 0u);
      if (!threw) break;
      ++faults;
    }
    EXPECT_GE(faults, 2);
  }
}

// P26: an op that throws: the step is undone by whoever unwinds, a round of the row stays what it was.
TEST(Faults, AStepThatThrowsIsUndone) {
  for (const bool in_round : {false, true}) {
    Program program({.page = 4, .window = 6, .state_bytes = 16, .mla = {{.dsa_dim = 0, .max_tokens = 99}}});
    std::mt19937 random(4);
    program.grow(random);
    if (in_round) {
      program.rows[0].sequence.begin_round();
      testing::append(program.cache, program.rows[0], testing::random_tokens(random, 2));
    }
    const size_t used = program.used();
    EXPECT_THROW(
        {
          Step step;
          program.cache.reserve({&program.rows[0].sequence, &program.rows[1].sequence}, {5, 2}, step);
          throw Fault();
        },
        Fault);
    EXPECT_EQ(program.used(), used);
    program.check();
    testing::append(program.cache, program.rows[0], testing::random_tokens(random, 3));
    if (in_round) {
      EXPECT_EQ(program.rows[0].sequence.round_tokens(), 5);
      program.rows[0].sequence.commit_round(2);
      program.rows[0].tokens.resize(12);
    }
    program.check();
    program.rows.clear();
    EXPECT_EQ(program.used(), 0u);
  }
}

}  // namespace
}  // namespace kvasir::kv
