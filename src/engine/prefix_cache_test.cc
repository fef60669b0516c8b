// Prompts that begin like earlier ones: how much is computed again, that no bit depends on it, and that
// memory stays within the plan.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/test_folder.h"
#include "engine/engine.h"
#include "engine/test_outcomes.h"
#include "engine/tiny_models.h"

namespace kvasir::engine {
namespace {

using testing::expect_same;
using testing::kTinyKinds;
using testing::random_ids;
using testing::TinyKind;

const std::filesystem::path kSmol = KVASIR_MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::filesystem::path kGemma = KVASIR_MODELS_DIR "/gemma-3-270m-Q4_K_M.gguf";

struct Settings {
  std::string spec = "bf16";
  int64_t start = 0;
  int rows = 1;
  int chunk = 32;
  int64_t context = 256;
  int page = 16;
  bool cache = true;
  size_t extra = 0;
  int threads = 1;
  std::filesystem::path disk = {};
  uint64_t disk_bytes = 0;
  size_t pinned = kv::SpillQueue::kDefaultCap;
  std::vector<std::string>* warnings = nullptr;
};

std::unique_ptr<Engine> open(const std::filesystem::path& path, const Settings& settings) {
  EngineOptions options;
  options.load.threads = settings.threads;
  options.load.context = settings.context;
  options.load.rows = settings.rows;
  options.load.chunk = settings.chunk;
  options.load.page_tokens = settings.page;
  options.load.kv.spec = settings.spec;
  if (settings.start > 0) options.load.kv.start = settings.start;
  options.prefix_cache = settings.cache;
  options.prefix_bytes = settings.extra;
  options.snapshot_interval = 100;
  options.prefix_disk = {.folder = settings.disk,
                         .bytes = settings.disk_bytes,
                         .verify = true,
                         .pinned_bytes = settings.pinned,
                         .warn = [warnings = settings.warnings](const std::string& text) {
                           if (warnings != nullptr) warnings->push_back(text);
                         }};
  return Engine::open(path, options);
}

Request request_for(std::vector<int32_t> prompt, int64_t tokens, uint64_t seed = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = seed;
  request.top_logprobs = 1;
  return request;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Starters : public ::testing::TestWithParam<std::filesystem::path> {};

// Each turn is a request of its own, without a context that would keep the sequence: what is reused comes
// from the tree.
TEST_P(Starters, TheNextTurnComputesItsNewTokensAndAtMostOnePage) {
  const Settings settings{.chunk = 512, .context = 1024, .page = 64, .threads = 2};
  const auto engine = open(GetParam(), settings);
  Settings without = settings;
  without.cache = false;
  const auto plain = open(GetParam(), without);
  std::mt19937_64 random(1);
  const std::vector<int32_t> first = random_ids(random, 620, 20000);  // past Gemma's window of 512
  const Outcome turn = engine->generate(request_for(first, 8));
  EXPECT_EQ(turn.timings.reused_tokens, 0);
  const std::vector<int32_t> added = random_ids(random, 20, 20000);
  const std::vector<int32_t> second = joined(joined(first, turn.tokens), added);
  const Outcome warm = engine->generate(request_for(second, 8));
  EXPECT_LE(warm.timings.prompt_tokens - warm.timings.reused_tokens, 20 + 64);
  EXPECT_EQ(warm.timings.reused_tokens, 620 + 8 - 1);  // the last sampled token was never stored
  const Outcome cold = plain->generate(request_for(second, 8));
  EXPECT_EQ(cold.timings.reused_tokens, 0);
  expect_same(warm, cold);
  // The same prompt once more computes one token; another answer after it, what follows the prompt's end.
  EXPECT_GE(engine->generate(request_for(second, 1)).timings.reused_tokens,
            static_cast<int64_t>(second.size()) - 1);
  const std::vector<int32_t> other = joined(first, random_ids(random, 30, 20000));
  const Outcome branch = engine->generate(request_for(other, 4));
  EXPECT_EQ(branch.timings.reused_tokens, 620);
  expect_same(branch, plain->generate(request_for(other, 4)));
}

INSTANTIATE_TEST_SUITE_P(Models, Starters, ::testing::Values(kSmol, kGemma),
                         [](const auto& parameter) { return parameter.index == 0 ? "SmolLM2" : "Gemma3"; });

class Kinds : public ::testing::TestWithParam<TinyKind> {};

TEST_P(Kinds, SamplesOfOnePromptShareItsPrefill) {
  for (const char* spec : {"f32", "affine:4", "turbo", "rot:3"}) {
    const auto engine = open(testing::tiny_models().path(GetParam()), {.spec = spec, .rows = 3});
    const auto plain = open(testing::tiny_models().path(GetParam()), {.spec = spec, .cache = false});
    std::mt19937_64 random(7);
    const std::vector<int32_t> prompt = random_ids(random, 75);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 5; ++i) requests.push_back(request_for(prompt, 10, i));
    const std::vector<Outcome> outcomes = engine->generate(std::move(requests));
    for (size_t i = 0; i < outcomes.size(); ++i) {
      // All but the last token, or with full attention the pages that were there when it could begin.
      EXPECT_GE(outcomes[i].timings.reused_tokens, i == 0 ? 0 : 64) << spec << " sample " << i;
      EXPECT_LE(outcomes[i].timings.reused_tokens, i == 0 ? 0 : 74) << spec << " sample " << i;
      expect_same(outcomes[i], plain->generate(request_for(prompt, 10, i)));
    }
  }
}

TEST_P(Kinds, TheStablePartOfAPromptIsResumed) {
  const auto engine = open(testing::tiny_models().path(GetParam()), {});
  std::mt19937_64 random(3);
  const std::vector<int32_t> stable = random_ids(random, 61);
  Request request = request_for(joined(stable, {1, 2, 3, 4}), 4);
  request.stable_tokens = 61;
  engine->generate(std::move(request));
  EXPECT_EQ(engine->generate(request_for(joined(stable, {9, 9, 9}), 4)).timings.reused_tokens, 61);
}

// Conversations and samples at random in pools as small as the plan makes them: nothing runs out, every
// answer is that of an engine without a cache, and the ledger stays inside the plan.
TEST_P(Kinds, RandomConversationsInSmallPools) {
  const auto& specs = testing::kv_specs();
  const int seeds = testing::property_seeds(9);
  size_t reused = 0, evicted = 0;
  uint64_t restored = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) + 100);
    Settings settings;
    settings.spec = specs[static_cast<size_t>(seed * 5 + 1) % specs.size()];
    const bool plain_spec = settings.spec == "f32" || settings.spec == "f16" || settings.spec == "bf16";
    settings.start = !plain_spec && seed % 3 == 0 ? 1 + static_cast<int64_t>(random() % 50) : 0;
    settings.rows = 1 + seed % 3;
    settings.context = 96;
    settings.chunk = static_cast<int>(8 + random() % 40);
    settings.page = seed % 2 == 0 ? 16 : 32;
    settings.extra = seed % 4 == 0 ? 40000 : 0;
    // A disk takes what the pools give up, in the background, and gives it back.
    const TestFolder folder("prefix-disk");
    std::vector<std::string> warnings;
    if (seed % 3 != 0) {
      settings.disk = folder.path();
      settings.disk_bytes = seed % 2 == 0 ? 300000 : 1 << 26;
      settings.pinned = seed % 4 == 1 ? 0 : 1 << 20;
      settings.warnings = &warnings;
    }
    const auto engine = open(testing::tiny_models().path(GetParam()), settings);
    Settings alone = settings;
    alone.cache = false;
    alone.rows = 1;
    alone.disk_bytes = 0;
    const auto plain = open(testing::tiny_models().path(GetParam()), alone);
    std::vector<std::vector<int32_t>> pasts = {random_ids(random, 40)};
    for (int turn = 0; turn < 6; ++turn) {
      std::vector<Request> requests;
      std::vector<std::vector<int32_t>> prompts;
      const size_t count = 1 + random() % 4;
      for (size_t i = 0; i < count; ++i) {
        std::vector<int32_t> prompt = pasts[random() % pasts.size()];
        prompt.resize(std::min<size_t>(prompt.size(), random() % 90));
        prompt = joined(prompt, random_ids(random, 1 + random() % 30));
        prompt.resize(std::min<size_t>(prompt.size(), 90));
        prompts.push_back(i > 0 && random() % 3 == 0 ? prompts[0] : prompt);
        requests.push_back(request_for(prompts.back(), -1, i));
        if (random() % 2 == 0) requests.back().max_tokens = static_cast<int64_t>(random() % 6);
      }
      std::vector<int64_t> most;
      for (const Request& request : requests) most.push_back(request.max_tokens);
      const std::vector<Outcome> outcomes = engine->generate(std::move(requests));
      EXPECT_LE(engine->ledger().total() - engine->memory().weights_bytes - engine->memory().workspace_bytes,
                engine->memory().kv_bytes + engine->memory().prefix_bytes);
      for (size_t i = 0; i < count; ++i) {
        reused += static_cast<size_t>(outcomes[i].timings.reused_tokens);
        expect_same(outcomes[i], plain->generate(request_for(prompts[i], most[i], i)));
        if (HasFatalFailure()) FAIL() << "seed " << seed << " turn " << turn << " request " << i;
        pasts.push_back(joined(prompts[i], outcomes[i].tokens));
      }
    }
    evicted += engine->prefixes()->stats().evictions;
    if (const auto disk = engine->prefixes()->disk_stats()) {
      restored += disk->restores;
      EXPECT_EQ(disk->failed_stores, 0u);
      EXPECT_EQ(engine->prefixes()->write_stats()->failed_spills, 0u);
      engine->prefixes()->flush(std::chrono::seconds(30));
      EXPECT_EQ(engine->prefixes()->write_stats()->pending_spills, 0u);
    }
    EXPECT_TRUE(warnings.empty());
  }
  EXPECT_GT(restored, 0u);
  EXPECT_GT(reused, 0u);
  EXPECT_GT(evicted, 0u);
}

// What memory gave up, and what an earlier run left, comes back from disk with the same bits.
TEST_P(Kinds, PrefixesComeBackFromDisk) {
  for (const char* spec : {"f32", "affine:4", "rot:q8_0"}) {
    SCOPED_TRACE(spec);
    const TestFolder folder("prefix-disk");
    std::vector<std::string> warnings;
    const Settings settings{
        .spec = spec, .context = 96, .disk = folder.path(), .disk_bytes = 1 << 26, .warnings = &warnings};
    const auto plain =
        open(testing::tiny_models().path(GetParam()), {.spec = spec, .context = 96, .cache = false});
    std::mt19937_64 random(11);
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < 5; ++i) prompts.push_back(random_ids(random, 80));
    {
      // One row's pages hold one of the prompts: every next one pushes out the one before.
      const auto engine = open(testing::tiny_models().path(GetParam()), settings);
      for (const auto& prompt : prompts)
        EXPECT_EQ(engine->generate(request_for(prompt, 3)).timings.reused_tokens, 0);
      EXPECT_GT(engine->prefixes()->stats().spills, 0u);
      const Outcome again = engine->generate(request_for(prompts[0], 3));
      EXPECT_EQ(again.timings.reused_tokens, 79);
      expect_same(again, plain->generate(request_for(prompts[0], 3)));
      EXPECT_GE(engine->prefixes()->disk_stats()->restores, 1u);
      EXPECT_EQ(engine->prefixes()->disk_stats()->failed_stores, 0u);
      EXPECT_LE(engine->ledger().total() - engine->memory().weights_bytes - engine->memory().workspace_bytes,
                engine->memory().kv_bytes + engine->memory().prefix_bytes);
    }
    // Another run: also what had not been pushed out.
    const auto later = open(testing::tiny_models().path(GetParam()), settings);
    for (size_t i : {4u, 2u, 0u}) {
      const Outcome found = later->generate(request_for(prompts[i], 3));
      EXPECT_EQ(found.timings.reused_tokens, 79) << i;
      expect_same(found, plain->generate(request_for(prompts[i], 3)));
    }
    EXPECT_TRUE(warnings.empty());
    // A damaged file is a warning and a prompt that is computed.
    size_t damaged = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path()))
      if (file.path().extension() == ".kvk") {
        std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 4096);
        ++damaged;
      }
    EXPECT_GE(damaged, 5u);
    const Outcome computed = later->generate(request_for(prompts[1], 3));
    EXPECT_EQ(computed.timings.reused_tokens, 0);
    expect_same(computed, plain->generate(request_for(prompts[1], 3)));
    EXPECT_FALSE(warnings.empty());
  }
}

TEST_P(Kinds, PrefixesOnDiskStayWithinTheirCap) {
  const TestFolder folder("prefix-disk");
  const Settings settings{.context = 96, .disk = folder.path(), .disk_bytes = 200000};
  std::mt19937_64 random(5);
  for (int run = 0; run < 3; ++run) {
    const auto engine = open(testing::tiny_models().path(GetParam()), settings);
    for (int i = 0; i < 6; ++i) engine->generate(request_for(random_ids(random, 80), 3));
    EXPECT_LE(engine->prefixes()->disk_stats()->bytes, 200000u);
    EXPECT_GT(engine->prefixes()->disk_stats()->evictions, 0u);
  }
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path()))
    if (file.path().extension() == ".kvk") bytes += std::filesystem::file_size(file.path());
  EXPECT_LE(bytes, 200000u);
  EXPECT_GT(bytes, 0u);
  EXPECT_THROW(
      open(testing::tiny_models().path(GetParam()), {.cache = false, .disk = folder.path(), .disk_bytes = 1}),
      Error);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Kinds, ::testing::ValuesIn(kTinyKinds),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace kvasir::engine
