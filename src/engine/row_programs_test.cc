// Random programs of everything that may happen to rows, with real arithmetic. Whatever the history, the
// bytes that a row stores and the logits of every one of its tokens are those of the row computed alone, in
// one go.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "base/test_folder.h"
#include "engine/logit_run.h"
#include "engine/tiny_models.h"
#include "kv/prefix_tree.h"
#include "kv/store.h"

namespace kvasir::engine {
namespace {

using testing::kTinyKinds;
using testing::TinyKind;

constexpr int64_t kContext = 160;
constexpr int64_t kLongContext = 320;  // so that pages of 256 tokens have a next one
constexpr size_t kMostRows = 5;
constexpr int kChunk = 48;

struct Settings {
  const TinyKind* kind = nullptr;
  std::string spec;
  std::vector<std::string> layers;
  int64_t start = 0;
  models::Activations mode = models::Activations::f32;
  int page = 64;
  int threads = 1;
  int64_t context = kContext;

  std::string text() const {
    return fmt::format("{} {} {} start {} page {} {}", kind->name, spec, fmt::join(layers, " "), start, page,
                       models::name(mode));
  }
};

std::unique_ptr<Engine> open(const Settings& settings, int rows, int chunk) {
  EngineOptions options;
  options.load.threads = settings.threads;
  options.load.context = settings.context;
  options.load.rows = rows;
  options.load.chunk = chunk;
  options.load.logits = chunk;
  options.load.page_tokens = settings.page;
  options.load.activations = settings.mode;
  options.load.kv.spec = settings.spec;
  options.load.kv.layers = settings.layers;
  if (settings.start > 0) options.load.kv.start = settings.start;
  options.checkpoints = rows > 1;
  options.prefix_cache = rows > 1;  // plans the page that a row shares with a tree
  return Engine::open(testing::tiny_models().path(*settings.kind), options);
}

using Logits = std::vector<float>;

struct TestRow {
  kv::Sequence sequence;
  std::vector<int32_t> tokens;  // sequence.offset() of them
  std::vector<Logits> logits;   // of each
  bool present = true;          // in the batch
};

class Program {
 public:
  Program(const Settings& settings, uint64_t seed)
      : settings_(settings),
        random_(seed),
        engine_(open(settings, kMostRows, kChunk)),
        builder_(engine_->model()),
        tree_(engine_->cache(), size_t{1} << 40) {
    engine_->cache().on_pressure([this] { return tree_.yield(); });
  }
  ~Program() { step_.rollback(); }

  void run(int operations) {
    rows_.push_back({engine_->cache().create(), {}, {}});
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) one();
    for (TestRow& row : rows_) check(row);
    rows_.clear();
    tree_.clear();
    step_.rollback();
    EXPECT_EQ(engine_->cache().used_bytes(), 0u) << settings_.text();
  }
  bool crossed() const { return crossed_; }  // a row that was compared had more than one page

 private:
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }
  TestRow& any() { return rows_[below(rows_.size())]; }

  void one() {
    const size_t what = below(20);
    if (what < 9) return step();
    if (what == 9 && rows_.size() < kMostRows) {
      rows_.push_back({engine_->cache().create(), {}, {}});
    } else if (what == 10 && rows_.size() > 1) {
      rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(below(rows_.size())));
    } else if (what == 11) {
      std::shuffle(rows_.begin(), rows_.end(), random_);
    } else if (what == 12) {
      any().present = below(2) == 0;
    } else if (what == 13 && rows_.size() < kMostRows) {
      fork(any());
    } else if (what == 14) {
      cut(any());
    } else if (what == 15) {
      if (TestRow& row = any(); !row.sequence.in_round()) row.sequence.checkpoint();
    } else if (what == 16) {
      round(any());
    } else if (what == 17) {
      publish(any());
    } else if (what == 18 && rows_.size() < kMostRows) {
      take();
    } else if (what == 19) {
      if (below(3) == 0) store(any());
    }
  }

  // Some rows append some tokens; now and then the step is abandoned.
  void step() {
    builder_.clear();
    std::vector<TestRow*> batch;
    std::vector<std::vector<int32_t>> added;
    size_t budget = kChunk;
    for (TestRow& row : rows_) {
      if (!row.present || budget == 0 || (rows_.size() > 1 && below(3) == 0)) continue;
      size_t most = std::min({budget, static_cast<size_t>(row.sequence.max_append()),
                              static_cast<size_t>(settings_.context) - row.tokens.size()});
      if (row.sequence.in_round())
        most = std::min(most, static_cast<size_t>(12 - std::min(12, row.sequence.round_tokens())));
      if (most == 0) continue;
      const size_t count = 1 + below(below(2) == 0 ? std::min<size_t>(most, 3) : most);
      std::vector<int32_t> ids(count);
      // Few different tokens, so that prefixes of different rows meet.
      for (int32_t& id : ids) id = static_cast<int32_t>(below(below(4) == 0 ? testing::kTinyVocab : 2));
      added.push_back(std::move(ids));
      batch.push_back(&row);
      budget -= count;
    }
    if (batch.empty()) return;
    for (size_t i = 0; i < batch.size(); ++i) builder_.add(batch[i]->sequence, added[i], WantLogits::all);
    engine_->cache().reserve(builder_.sequences(), builder_.counts(), step_);
    engine_->model().run(builder_.state(step_), engine_->executor());
    if (below(8) == 0) return step_.rollback();
    int64_t index = 0;
    for (size_t i = 0; i < batch.size(); ++i)
      for (const int32_t id : added[i]) {
        batch[i]->tokens.push_back(id);
        const float* logits = engine_->model().logits(index++);
        batch[i]->logits.emplace_back(logits, logits + testing::kTinyVocab);
      }
    step_.commit();
  }

  static void shorten(TestRow& row, size_t length) {
    row.tokens.resize(length);
    row.logits.resize(length);
  }

  void fork(TestRow& row) {
    if (row.sequence.in_round()) return;
    const int32_t at = row.sequence.nearest_resumable(static_cast<int32_t>(below(row.tokens.size() + 1)));
    TestRow copy{row.sequence.fork(at), row.tokens, row.logits};
    shorten(copy, static_cast<size_t>(at));
    rows_.push_back(std::move(copy));
  }

  void cut(TestRow& row) {
    if (row.sequence.in_round()) return;
    const int32_t at = row.sequence.nearest_resumable(static_cast<int32_t>(below(row.tokens.size() + 1)));
    row.sequence.truncate(at);
    shorten(row, static_cast<size_t>(at));
  }

  void round(TestRow& row) {
    if (!row.sequence.in_round()) return row.sequence.begin_round();
    const int32_t appended = row.sequence.round_tokens();
    const auto keep = static_cast<int32_t>(below(static_cast<size_t>(appended) + 1));
    row.sequence.commit_round(keep);
    shorten(row, row.tokens.size() - static_cast<size_t>(appended - keep));
  }

  void publish(TestRow& row) {
    if (row.sequence.in_round()) return;
    if (below(2) == 0) {
      tree_.publish("k", row.tokens, row.sequence);
    } else if (tree_.put("k", row.tokens, row.sequence)) {
      known_.push_back({row.tokens, row.logits});
    }
  }

  // A row that begins like one that was put.
  void take() {
    if (known_.empty()) return;
    const auto& [tokens, logits] = known_[below(known_.size())];
    std::vector<int32_t> wanted = tokens;
    wanted.push_back(0);
    TestRow row{tree_.take("k", wanted), tokens, logits};
    shorten(row, static_cast<size_t>(row.sequence.offset()));
    rows_.push_back(std::move(row));
  }

  // To disk, and from there in its place.
  void store(TestRow& row) {
    if (row.sequence.in_round() || row.tokens.empty()) return;
    if (!folder_) folder_.emplace("rows");
    kv::DiskStore::Options options;
    options.dir = folder_->path();
    options.identity.numerics_id = engine_->model().numerics_key().hex();
    options.identity.scheme_key = engine_->memory().kv_key;
    kv::DiskStore files(options);
    files.save("row", "", row.tokens, row.sequence, "");
    row.sequence = {};
    kv::DiskStore::Conversation loaded = files.load("row", "", engine_->cache(), &engine_->executor().team());
    EXPECT_EQ(loaded.tokens, row.tokens);
    row.sequence = std::move(loaded.sequence);
  }

  void check(TestRow& row) {
    if (row.sequence.in_round()) row.sequence.commit_round(row.sequence.round_tokens());
    ASSERT_EQ(row.sequence.offset(), static_cast<int32_t>(row.tokens.size()));
    if (row.tokens.empty()) return;
    Settings alone = settings_;
    alone.page = settings_.page == 64 ? 16 : 64;
    alone.threads = 1;
    if (solo_ == nullptr) solo_ = open(alone, 1, static_cast<int>(settings_.context));
    Context context = solo_->new_context();
    std::vector<Logits> want;
    LogitRun run;
    run.row = &context;
    run.ids = row.tokens;
    run.visit = [&](int64_t, const float* logits) {
      want.emplace_back(logits, logits + testing::kTinyVocab);
    };
    run_logits(*solo_, run);
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(row.logits[i], want[i]) << settings_.text() << ": token " << i << " of " << want.size();
    // A row of exactly `start` tokens converts when it is next appended to, or when a round begins.
    if (row.sequence.encoded() && !context.sequence.encoded()) {
      ASSERT_EQ(row.sequence.offset(), settings_.start);
      context.sequence.begin_round();
      context.sequence.commit_round(0);
    }
    ASSERT_EQ(row.sequence.encoded(), context.sequence.encoded()) << settings_.text();
    crossed_ = crossed_ || row.sequence.offset() > settings_.page;
    for (size_t g = 0; g < engine_->cache().groups(); ++g) {
      const int32_t first = std::max(row.sequence.first_stored(g), context.sequence.first_stored(g));
      const int32_t count = row.sequence.offset() - first;
      ASSERT_EQ(row.sequence.bytes(g, first, count), context.sequence.bytes(g, first, count))
          << settings_.text() << ": group " << g;
    }
  }

  Settings settings_;
  std::mt19937_64 random_;
  std::unique_ptr<Engine> engine_, solo_;
  StepBuilder builder_;
  kv::PrefixTree tree_;
  kv::Step step_;
  std::vector<TestRow> rows_;
  std::vector<std::pair<std::vector<int32_t>, std::vector<Logits>>> known_;
  std::optional<TestFolder> folder_;
  bool crossed_ = false;
};

// P4, P8, P9, P16, P19, P32.
TEST(RowPrograms, EveryRowIsItselfAlone) {
  const models::Activations modes[] = {models::Activations::f32, models::Activations::bf16,
                                       models::Activations::int8, models::Activations::int16};
  const int pages[] = {16, 64, 256};
  const auto& specs = testing::kv_specs();
  const int seeds = testing::property_seeds(160);
  std::map<int, int> crossed;  // by page size: programs with a row of several pages
  for (int seed = 0; seed < seeds && !HasFatalFailure(); ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 31 + 5);
    Settings settings;
    settings.kind = &kTinyKinds[static_cast<size_t>(seed) % 3];
    settings.spec = specs[(static_cast<size_t>(seed) / 3) % specs.size()];
    if (seed % 4 == 1) settings.layers = {"1=" + specs[random() % specs.size()]};
    const auto plain = [](const std::string& spec) {
      return spec == "f32" || spec == "f16" || spec == "bf16";
    };
    // Of every kind: the kind goes by seed % 3.
    if (!plain(settings.spec) && random() % 2 == 0) settings.start = 1 + static_cast<int64_t>(random() % 70);
    settings.mode = modes[random() % 4];
    settings.page = pages[random() % 3];
    settings.threads = 1 + seed % 2;
    if (settings.page == 256) settings.context = kLongContext;
    Program program(settings, static_cast<uint64_t>(seed));
    program.run(settings.page == 256 ? 90 : 60);
    crossed[settings.page] += program.crossed();
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  if (seeds < 100) return;
  for (const int page : pages) EXPECT_GE(crossed[page], 5) << "pages of " << page;
}

}  // namespace
}  // namespace kvasir::engine
