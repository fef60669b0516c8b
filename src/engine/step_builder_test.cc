// What a query sees, as programs are told it, against the rules and the padded forms of kv-cache.md 5 and 6.
#include "engine/step_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "engine/tiny_models.h"

namespace kvasir::engine {
namespace {

constexpr int kWindow = 18;  // of the "mixed" tiny model's windowed layers
constexpr int64_t kContext = 160;

// Rows of some lengths, and one step of `count` tokens of each.
class Rows {
 public:
  Rows() {
    EngineOptions options;
    options.load.threads = 1;
    options.load.context = kContext;
    options.load.rows = 5;
    options.load.chunk = kContext;
    options.load.page_tokens = 16;
    for (const testing::TinyKind& kind : testing::kTinyKinds)
      if (std::string_view(kind.name) == "mixed")
        engine_ = Engine::open(testing::tiny_models().path(kind), options);
    const auto masks = engine_->model().mask_classes();
    for (size_t c = 0; c < masks.size(); ++c) (masks[c].window ? windowed_ : full_) = c;
    EXPECT_EQ(masks.size(), 2u);
    EXPECT_EQ(masks[windowed_].window, kWindow);
    builder_.emplace(engine_->model());
  }

  // The ranges of the step's tokens, row after row, of layers with a window or without.
  struct Seen {
    std::vector<program::KeyRange> full, windowed;
  };
  Seen step(const std::vector<int32_t>& offsets, int32_t count) {
    sequences_.clear();
    builder_->clear();
    const std::vector<int32_t> ids(static_cast<size_t>(count), 1);
    kv::Step step;
    while (sequences_.size() < offsets.size()) sequences_.push_back(engine_->cache().create());
    for (size_t r = 0; r < offsets.size(); ++r) {
      if (offsets[r] > 0) {
        engine_->cache().reserve({&sequences_[r]}, {offsets[r]}, step);
        step.commit();
      }
      builder_->add(sequences_[r], ids, WantLogits::none);
    }
    engine_->cache().reserve(builder_->sequences(), builder_->counts(), step);
    const program::StepState& state = builder_->state(step);
    const auto copy = [&](size_t c) {
      return std::vector<program::KeyRange>(state.key_ranges[c].begin(), state.key_ranges[c].end());
    };
    return {copy(full_), copy(windowed_)};
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::optional<StepBuilder> builder_;
  std::vector<kv::Sequence> sequences_;
  size_t full_ = 0, windowed_ = 0;
};

// P9: the query at p sees {j <= p : p - j < W}, however the tokens are cut into steps.
TEST(StepBuilder, WindowsShowTheLastTokensOfEveryPosition) {
  Rows rows;
  for (const int32_t offset : {0, 1, kWindow - 2, kWindow - 1, kWindow, kWindow + 1, 60})
    for (const int32_t count : {1, 2, kWindow - 1, kWindow, kWindow + 1, 3 * kWindow}) {
      const Rows::Seen seen = rows.step({offset}, count);
      for (int32_t i = 0; i < count; ++i)
        for (int32_t j = 0; j < offset + count; ++j) {
          const int32_t p = offset + i;
          const auto sees = [&](const program::KeyRange& range) { return range.begin <= j && j < range.end; };
          ASSERT_EQ(sees(seen.full[static_cast<size_t>(i)]), j <= p);
          ASSERT_EQ(sees(seen.windowed[static_cast<size_t>(i)]), j <= p && p - j < kWindow)
              << "position " << p << ", key " << j << ", step of " << count;
        }
    }
}

// P14: a rectangle of `width` columns in which row b's position p lies in column p + pad[b], and what each
// form of kv-cache.md 6 allows there, is what the ragged step shows.
TEST(StepBuilder, PaddedFormsAreTheRaggedRule) {
  Rows rows;
  std::mt19937 random(5);
  for (int round = 0; round < 120; ++round) {
    const size_t batch = 1 + random() % 5;
    const auto n = static_cast<int32_t>(round % 3 == 0 ? 1 : 1 + random() % 30);
    std::vector<int32_t> offsets;
    for (size_t b = 0; b < batch; ++b) offsets.push_back(static_cast<int32_t>(random() % 70));
    const Rows::Seen seen = rows.step(offsets, n);
    const int32_t longest = *std::max_element(offsets.begin(), offsets.end());
    // allow(b, i, j) over the columns j; position_of(b, j) is below 0 for padding.
    const auto compare = [&](const char* form, const std::vector<program::KeyRange>& ranges, int32_t width,
                             const std::function<bool(size_t, int32_t, int32_t)>& allow,
                             const std::function<int32_t(size_t, int32_t)>& position_of) {
      for (size_t b = 0; b < batch; ++b)
        for (int32_t i = 0; i < n; ++i) {
          const program::KeyRange& range = ranges[b * static_cast<size_t>(n) + static_cast<size_t>(i)];
          int32_t shown = 0;
          for (int32_t j = 0; j < width; ++j) {
            const int32_t position = position_of(b, j);
            const bool sees = range.begin <= position && position < range.end;
            ASSERT_EQ(allow(b, i, j), sees) << form << ": row " << b << " of offset " << offsets[b]
                                            << ", token " << i << ", column " << j;
            shown += sees;
          }
          ASSERT_EQ(shown, range.end - range.begin) << form << ": a visible key has no column";
        }
    };
    for (const int32_t w : {0, kWindow}) {
      const auto& ranges = w == 0 ? seen.full : seen.windowed;
      const auto in_window = [&](int32_t query, int32_t j) { return w == 0 || query < j + w; };
      if (batch == 1)
        compare(
            "causal matrix", ranges, offsets[0] + n,
            [&](size_t, int32_t i, int32_t j) { return offsets[0] + i >= j && in_window(offsets[0] + i, j); },
            [](size_t, int32_t j) { return j; });
      // Ends of one's own: any padding before each row.
      std::vector<int32_t> pad, end;
      for (const int32_t offset : offsets) {
        pad.push_back(static_cast<int32_t>(random() % 9));
        end.push_back(offset + pad.back());
      }
      compare(
          "per-row ends", ranges, *std::max_element(end.begin(), end.end()) + n,
          [&](size_t b, int32_t i, int32_t j) {
            return j <= end[b] + i && j >= pad[b] && in_window(end[b] + i, j);
          },
          [&](size_t b, int32_t j) { return j - pad[b]; });
      // Ends in one column.
      const int32_t width = longest + n;
      for (size_t b = 0; b < batch; ++b) pad[b] = longest - offsets[b];
      compare(
          "left-padded decode", ranges, width,
          [&](size_t b, int32_t i, int32_t j) {
            return j <= width - n + i && j >= pad[b] && in_window(width - n + i, j);
          },
          [&](size_t b, int32_t j) { return j - pad[b]; });
    }
    // A ring of W columns, of which T were written: a block is attended in order, behind the last W - 1 of
    // them.
    const int32_t written = longest, kept = std::min(kWindow - 1, written), width = kept + n;
    std::vector<int32_t> pad;
    for (const int32_t offset : offsets) pad.push_back(longest - offset);
    const int32_t dropped = std::max(0, written - kWindow + 1);  // x = T: what has not been wrapped
    const auto behind = [&](size_t b, int32_t i, int32_t j) {
      return kept + i >= j && kept + i < j + kWindow && j >= pad[b] - dropped;
    };
    compare("rotating block", seen.windowed, width, behind,
            [&](size_t b, int32_t j) { return written - kept + j - pad[b]; });
    if (n > 1) continue;
    // One token at a time it turns in place: the columns of a simulated ring, which is first cut to W and
    // then written at 0, 1, ... after it was full.
    std::vector<int32_t> ring;
    int32_t at = 0;
    for (int32_t column = 0; column <= written; ++column) {
      if (static_cast<int32_t>(ring.size()) < kWindow) {
        ring.push_back(column);
        continue;
      }
      ring[static_cast<size_t>(at)] = column;
      at = (at + 1) % kWindow;
    }
    const bool wrapped = written >= kWindow;
    const int32_t index = wrapped ? (at + kWindow - 1) % kWindow : 0;  // x', where the new token went
    compare(
        "rotating decode", seen.windowed, static_cast<int32_t>(ring.size()),
        [&](size_t b, int32_t i, int32_t slot) {
          // Column j of the ordered form moves to (j + x' + 1) mod S.
          const int32_t j = wrapped ? (slot - index - 1 + 2 * kWindow) % kWindow : slot;
          return behind(b, i, j);
        },
        [&](size_t b, int32_t slot) { return ring[static_cast<size_t>(slot)] - pad[b]; });
  }
}

}  // namespace
}  // namespace kvasir::engine
