// Law 1 with real arithmetic: whatever happens beside a row, its logits are those of the row alone.
#include "engine/logit_run.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "engine/tiny_models.h"

namespace kvasir::engine {
namespace {

using testing::kTinyKinds;
using testing::random_ids;
using testing::TinyKind;

struct Settings {
  const TinyKind* kind;
  std::string spec;
  int64_t start = 0;
  models::Activations mode = models::Activations::f32;
  int page = 64;
  int chunk = 128;
  int threads = 1;
  size_t neighbours = 0;
};

std::unique_ptr<Engine> open(const Settings& settings) {
  EngineOptions options;
  options.load.threads = settings.threads;
  options.load.context = 256;
  options.load.rows = rows_with_neighbours(settings.neighbours);
  options.load.chunk = std::max(settings.chunk, options.load.rows);
  options.load.logits = std::min(5, options.load.chunk);
  options.load.page_tokens = settings.page;
  options.load.activations = settings.mode;
  options.load.kv.spec = settings.spec;
  if (settings.start > 0) options.load.kv.start = settings.start;
  options.checkpoints = settings.neighbours > 0;
  return Engine::open(testing::tiny_models().path(*settings.kind), options);
}

std::vector<std::vector<float>> run(const Settings& settings, const std::vector<int32_t>& ids,
                                    std::vector<std::vector<int32_t>> with,
                                    std::optional<uint64_t> schedule) {
  const std::unique_ptr<Engine> engine = open(settings);
  const size_t before = engine->cache().used_bytes();
  std::vector<std::vector<float>> rows;
  {
    Context row = engine->new_context();
    LogitRun run;
    run.row = &row;
    run.ids = ids;
    run.with = std::move(with);
    run.schedule = schedule;
    run.visit = [&](int64_t position, const float* logits) {
      EXPECT_EQ(position, static_cast<int64_t>(rows.size()));
      rows.emplace_back(logits, logits + testing::kTinyVocab);
    };
    run_logits(*engine, run);
    EXPECT_EQ(row.tokens, ids);
  }
  EXPECT_EQ(engine->cache().used_bytes(), before);  // nobody left a page behind
  return rows;
}

std::vector<std::vector<float>> run_alone(const Settings& settings, const std::vector<int32_t>& ids) {
  return run(settings, ids, {}, std::nullopt);
}

TEST(LogitRun, NeighboursChangeNoBit) {
  const models::Activations modes[] = {models::Activations::f32, models::Activations::bf16,
                                       models::Activations::int8};
  const int pages[] = {16, 64, 256};
  const auto& specs = testing::kv_specs();
  const int seeds = testing::property_seeds(240);
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 7919 + 1);
    Settings settings;
    settings.kind = &kTinyKinds[static_cast<size_t>(seed) % 3];
    settings.spec = specs[static_cast<size_t>(seed) % specs.size()];
    settings.mode = modes[(seed / 3) % 3];
    const bool plain = settings.spec == "f32" || settings.spec == "f16" || settings.spec == "bf16";
    settings.start = plain || seed % 4 != 0 ? 0 : static_cast<int64_t>(1 + random() % 60);
    const std::vector<int32_t> ids = random_ids(random, 1 + random() % 100);
    const auto want = run(settings, ids, {}, std::nullopt);
    ASSERT_EQ(want.size(), ids.size());
    settings.page = pages[random() % 3];
    settings.chunk = static_cast<int>(4 + random() % 60);
    settings.threads = 1 + seed % 2;
    settings.neighbours = seed % 3 == 2 ? 0 : 1 + random() % 3;
    std::vector<std::vector<int32_t>> with;
    for (size_t i = 0; i < settings.neighbours; ++i) with.push_back(random_ids(random, 1 + random() % 120));
    // Neighbours that begin like the row share nothing with it but the values.
    if (!with.empty() && seed % 5 == 0) with[0] = ids;
    const auto got = run(settings, ids, std::move(with), static_cast<uint64_t>(seed));
    ASSERT_EQ(got, want) << "seed " << seed << ": " << settings.kind->name << " " << settings.spec
                         << " start " << settings.start << " page " << settings.page;
  }
}

TEST(LogitRun, PausesOnceAtTheTokenAskedFor) {
  Settings settings{.kind = &kTinyKinds[2], .spec = "affine:4"};
  std::mt19937_64 random(3);
  const std::vector<int32_t> ids = random_ids(random, 50);
  for (const int64_t at : {0, 1, 17, 50}) {
    const std::unique_ptr<Engine> engine = open(settings);
    Context row = engine->new_context();
    int pauses = 0, rows = 0;
    LogitRun run;
    run.row = &row;
    run.ids = ids;
    run.schedule = 5;
    run.pause_at = at;
    run.on_pause = [&] {
      ++pauses;
      EXPECT_EQ(rows, at);
      EXPECT_EQ(row.sequence.offset(), at);
    };
    run.visit = [&](int64_t, const float*) { ++rows; };
    run_logits(*engine, run);
    EXPECT_EQ(pauses, 1);
    EXPECT_EQ(rows, 50);
  }
}

// The pool runs out in the middle of a prompt: a typed error, and the row is what it was after the last whole
// step; with room again it goes on to the same bits.
TEST(LogitRun, APoolThatRunsOutLeavesTheRowAsItWas) {
  std::mt19937_64 random(11);
  const std::vector<int32_t> ids = random_ids(random, 230);
  for (const char* spec : {"bf16", "affine:4", "rot:3"}) {
    Settings settings{.kind = &kTinyKinds[0], .spec = spec, .page = 16, .chunk = 50};
    const std::unique_ptr<Engine> engine = open(settings);
    Context hog = engine->new_context();
    engine->prefill(hog, std::span<const int32_t>(ids).first(100));
    Context row = engine->new_context();
    std::vector<std::vector<float>> got;
    LogitRun run;
    run.row = &row;
    run.ids = ids;
    run.visit = [&](int64_t, const float* logits) { got.emplace_back(logits, logits + testing::kTinyVocab); };
    EXPECT_THROW(run_logits(*engine, run), kv::KvPoolExhausted);
    EXPECT_EQ(row.sequence.offset(), 100);  // 16 pages in all, 7 of them the other row's: two steps of 50 fit
    EXPECT_EQ(row.tokens.size(), 100u);
    ASSERT_EQ(got.size(), 100u);
    hog = {};
    run.ids = std::span<const int32_t>(ids).subspan(100);
    run_logits(*engine, run);
    EXPECT_EQ(got, run_alone(settings, ids)) << spec;
  }
}

TEST(LogitRun, ForeignTokensOfANeighbourAreRefused) {
  const std::unique_ptr<Engine> engine = open({.kind = &kTinyKinds[0], .spec = "bf16", .neighbours = 1});
  Context row = engine->new_context();
  const std::vector<int32_t> ids = {1, 2, 3};
  LogitRun run;
  run.row = &row;
  run.ids = ids;
  run.with = {{1, testing::kTinyVocab}};
  run.visit = [](int64_t, const float*) { FAIL(); };
  EXPECT_THROW(run_logits(*engine, run), Error);
  EXPECT_EQ(row.sequence.offset(), 0);
}

}  // namespace
}  // namespace kvasir::engine
