// The engine on the starter models: what a row produces depends on its own request alone, and memory is what
// the plan says.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "engine/test_outcomes.h"
#include "engine/text_model.h"

namespace kvasir::engine {
namespace {

using testing::expect_same;

const std::filesystem::path kSmol = KVASIR_MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::filesystem::path kGemma = KVASIR_MODELS_DIR "/gemma-3-270m-Q4_K_M.gguf";

EngineOptions options_for(int rows, int chunk, int64_t context, int threads = 2) {
  EngineOptions options;
  options.load.threads = threads;
  options.load.rows = rows;
  options.load.chunk = chunk;
  options.load.context = context;
  return options;
}

std::vector<int32_t> ids_from(int first, int count, int step) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(300 + (first + i * step) % 20000);
  return ids;
}

Request request_for(std::vector<int32_t> prompt, int64_t tokens, float temperature, uint64_t seed) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.top_logprobs = 2;
  return request;
}

class BothModels : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(BothModels, ARowIsTheSameAloneAndInAnyBatch) {
  const std::vector<int32_t> prompt = ids_from(7, 41, 3);
  const auto alone = Engine::open(GetParam(), options_for(1, 512, 256));
  const Outcome want = alone->generate(request_for(prompt, 12, 0.8f, 5));
  // Rows of other lengths, finishing at other times, more of them than may run at once; small chunks cut the
  // prompts.
  const auto batch = Engine::open(GetParam(), options_for(3, 24, 256));
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i)
    requests.push_back(i == 2 ? request_for(prompt, 12, 0.8f, 5)
                              : request_for(ids_from(i * 977, 5 + 17 * i, 7), 3 + 5 * i, 1.0f,
                                            100 + static_cast<uint64_t>(i)));
  const std::vector<Outcome> outcomes = batch->generate(std::move(requests));
  expect_same(want, outcomes[2]);
  EXPECT_EQ(outcomes[4].tokens.size(), 23u);
  const auto one_thread = Engine::open(GetParam(), options_for(1, 7, 256, 1));
  expect_same(want, one_thread->generate(request_for(prompt, 12, 0.8f, 5)));
}

// Greedy and top-k rows need the largest logits alone; a row beside them that needs all changes what is
// computed and not what they draw.
TEST_P(BothModels, ARowDrawsTheSameFromItsLargestLogitsAndFromAll) {
  const auto engine = Engine::open(GetParam(), options_for(3, 64, 256));
  const std::vector<int32_t> prompt = ids_from(7, 41, 3);
  const auto request = [&](bool greedy, bool all) {
    Request r = request_for(prompt, 16, greedy ? 0.0f : 0.9f, 11);
    r.sampling.top_k = 20;
    r.top_logprobs = all ? 0 : -1;
    return r;
  };
  for (const bool greedy : {true, false}) {
    const std::vector<int32_t> want = engine->generate(request(greedy, true)).tokens;
    ASSERT_EQ(want.size(), 16u);
    EXPECT_EQ(engine->generate(request(greedy, false)).tokens, want) << greedy;
    std::vector<Request> together;
    together.push_back(request(greedy, false));
    together.push_back(request_for(ids_from(50, 9, 7), 7, 1.0f, 3));
    together.push_back(request(!greedy, false));
    EXPECT_EQ(engine->generate(std::move(together))[0].tokens, want) << greedy;
  }
  // The two kinds of row are not the same by chance.
  EXPECT_NE(engine->generate(request(false, false)).tokens, engine->generate(request(true, false)).tokens);
}

TEST_P(BothModels, ALongRunKeepsItsRowsBusyAndChangesNothing) {
  const auto alone = Engine::open(GetParam(), options_for(1, 512, 256));
  const auto busy = Engine::open(GetParam(), options_for(3, 32, 256));
  constexpr size_t kRequests = 9;
  auto request = [&](size_t i) {
    const int n = static_cast<int>(i);
    return request_for(ids_from(n * 31, 4 + (n * 29) % 60, 5), 2 + (n * 7) % 11, 0.9f, i);
  };
  size_t taken = 0, under_way = 0, most = 0;
  std::vector<size_t> order;
  std::vector<Outcome> outcomes(kRequests);
  const bool whole = busy->serve(
      [&]() -> std::optional<Request> {
        if (taken == kRequests) return std::nullopt;
        most = std::max(most, ++under_way);
        return request(taken++);
      },
      [&](size_t number, Outcome outcome) {
        --under_way;
        order.push_back(number);
        outcomes[number] = std::move(outcome);
      });
  EXPECT_TRUE(whole);
  EXPECT_EQ(most, 3u);
  EXPECT_EQ(order.size(), kRequests);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));  // short answers overtake long ones
  for (size_t i = 0; i < kRequests; ++i) expect_same(alone->generate(request(i)), outcomes[i]);

  // Cancelled in the middle: the rows under way come out with what they have.
  int steps = 0;
  size_t cancelled = 0, finished = 0;
  taken = 0;
  EXPECT_FALSE(busy->serve([&]() -> std::optional<Request> { return request(taken++ % kRequests); },
                           [&](size_t, Outcome outcome) {
                             (outcome.reason == FinishReason::cancelled ? cancelled : finished) += 1;
                           },
                           [&] { return ++steps > 12; }));
  EXPECT_GE(cancelled, 1u);
  EXPECT_EQ(cancelled + finished, taken);
  // A request that cannot run is refused when it is taken.
  EXPECT_THROW(busy->serve([&]() -> std::optional<Request> { return request_for({}, 1, 0, 0); },
                           [](size_t, Outcome) {}),
               Error);
}

TEST_P(BothModels, TheLedgerEqualsThePlanToTheByte) {
  for (const int rows : {1, 3}) {
    const EngineOptions options = options_for(rows, 64, 300);
    const MemoryReport plan = Engine::plan(GetParam(), options);
    const auto engine = Engine::open(GetParam(), options);
    EXPECT_EQ(engine->ledger().bytes(MemoryCategory::weights), plan.weights_bytes);
    EXPECT_EQ(engine->ledger().bytes(MemoryCategory::kv), plan.kv_bytes);
    EXPECT_EQ(engine->ledger().bytes(MemoryCategory::workspace), plan.workspace_bytes);
    EXPECT_EQ(plan.total_bytes,
              plan.weights_bytes + plan.kv_bytes + plan.workspace_bytes + plan.process_bytes);
    EXPECT_LE(static_cast<double>(plan.weights_bytes), 1.03 * static_cast<double>(plan.stored_bytes));
    const size_t before = engine->ledger().total();
    engine->generate(request_for(ids_from(1, 250, 11), 20, 0, 0));
    EXPECT_EQ(engine->ledger().total(), before);  // running takes nothing that was not planned
  }
}

TEST_P(BothModels, AContextIsReusedAndChangesNothing) {
  EngineOptions options = options_for(1, 64, 1024);
  options.checkpoints = true;
  options.kept_contexts = 1;
  const auto engine = Engine::open(GetParam(), options);
  Context context = engine->new_context();
  std::vector<int32_t> prompt = ids_from(3, 600, 5);  // past Gemma's window of 512
  Request first = request_for(prompt, 10, 0, 0);
  first.context = &context;
  const Outcome turn = engine->generate(std::move(first));
  prompt.insert(prompt.end(), turn.tokens.begin(), turn.tokens.end());
  const std::vector<int32_t> more = ids_from(9, 20, 13);
  prompt.insert(prompt.end(), more.begin(), more.end());
  Request second = request_for(prompt, 10, 0.9f, 3);
  second.context = &context;
  const Outcome warm = engine->generate(std::move(second));
  EXPECT_GE(warm.timings.reused_tokens, 609);  // all but the last sampled token was stored
  expect_same(engine->generate(request_for(prompt, 10, 0.9f, 3)), warm);
  // Another ending: back to the end of the first prompt, not to the beginning.
  std::vector<int32_t> branch(prompt.begin(), prompt.begin() + 603);
  branch.push_back(299);
  Request third = request_for(branch, 5, 0, 0);
  third.context = &context;
  const Outcome resumed = engine->generate(std::move(third));
  EXPECT_GE(resumed.timings.reused_tokens, 600);
  expect_same(engine->generate(request_for(branch, 5, 0, 0)), resumed);
}

INSTANTIATE_TEST_SUITE_P(Starters, BothModels, ::testing::Values(kSmol, kGemma),
                         [](const auto& parameter) { return parameter.index == 0 ? "SmolLM2" : "Gemma3"; });

TEST(Engine, BadRequestsAreRefusedBeforeAnythingRuns) {
  const auto engine = Engine::open(kSmol, options_for(1, 32, 64));
  auto code = [&](Request request) {
    try {
      engine->generate(std::move(request));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code(request_for({}, 1, 0, 0)), ErrorCode::invalid_input);
  EXPECT_EQ(code(request_for({1, 49152}, 1, 0, 0)), ErrorCode::invalid_input);
  EXPECT_EQ(code(request_for({-1}, 1, 0, 0)), ErrorCode::invalid_input);
  EXPECT_EQ(code(request_for(ids_from(0, 64, 1), 1, 0, 0)), ErrorCode::invalid_input);
  EXPECT_EQ(code(request_for({1}, 1, -1, 0)), ErrorCode::invalid_input);
  EXPECT_EQ(engine->generate(request_for({1}, 2, 0, 0)).tokens.size(), 2u);
}

TEST(Engine, GenerationEndsWhereItShould) {
  const auto engine = Engine::open(kSmol, options_for(1, 32, 64));
  // The context is full: 60 prompt tokens leave room for 5 (the last sampled one needs no place).
  const Outcome full = engine->generate(request_for(ids_from(0, 60, 1), -1, 0, 0));
  EXPECT_EQ(full.reason, FinishReason::length);
  EXPECT_EQ(full.tokens.size(), 5u);
  // A stop id is committed, then the row ends.
  Request request = request_for(ids_from(0, 10, 1), 20, 0, 0);
  const Outcome free_run = engine->generate(request_for(ids_from(0, 10, 1), 20, 0, 0));
  request.stop_ids = {free_run.tokens[3]};
  const Outcome stopped = engine->generate(std::move(request));
  EXPECT_EQ(stopped.reason, FinishReason::stop);
  EXPECT_EQ(stopped.tokens.back(), free_run.tokens[3]);
  EXPECT_LE(stopped.tokens.size(), 4u);
  // max_tokens = 0 runs the prompt only.
  EXPECT_TRUE(engine->generate(request_for({1, 2}, 0, 0, 0)).tokens.empty());
  // Cancelled between steps.
  int polls = 0;
  const Outcome cancelled = engine->generate(request_for({1, 2, 3}, 50, 0, 0), [&] { return ++polls > 4; });
  EXPECT_EQ(cancelled.reason, FinishReason::cancelled);
  EXPECT_LT(cancelled.tokens.size(), 6u);
}

TEST(Engine, WhatDoesNotFitIsRefused) {
  EngineOptions options = options_for(1, 32, 2048);
  options.memory_budget = size_t{120} << 20;
  try {
    Engine::open(kSmol, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_NE(std::string(error.what()).find("does not fit"), std::string::npos);
  }
  const MemoryReport report = Engine::plan(kSmol, options);
  EXPECT_FALSE(report.fits);
  // The longest context that is said to fit does, and one page more does not.
  options.memory_budget = size_t{200} << 20;
  const int64_t longest = Engine::plan(kSmol, options).max_context;
  ASSERT_GT(longest, 64);
  options.load.context = longest;
  EXPECT_TRUE(Engine::plan(kSmol, options).fits);
  options.load.context = longest + 64;
  EXPECT_FALSE(Engine::plan(kSmol, options).fits);
}

TEST(TextModel, StopStringsAndSamples) {
  const auto model = TextModel::open(kSmol, options_for(2, 64, 256));
  const std::vector<int32_t> prompt = encode_prompt(model->text(), "One, two, three, four,", false);
  auto run = [&](std::vector<std::string> stop, std::string* streamed) {
    TextRequest request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = 12;
    request.stop = std::move(stop);
    request.on_text = [streamed](std::string_view piece) { *streamed += piece; };
    std::vector<TextRequest> requests;
    requests.push_back(std::move(request));
    return std::move(generate_text(*model, std::move(requests)).front());
  };
  std::string all, cut;
  const TextOutcome whole = run({}, &all);
  EXPECT_EQ(whole.text, all);
  ASSERT_GT(all.size(), 8u);
  const std::string stop = all.substr(4, 3);
  const TextOutcome stopped = run({stop}, &cut);
  EXPECT_EQ(cut, all.substr(0, all.find(stop)));
  EXPECT_EQ(stopped.matched_stop, stop);
  EXPECT_EQ(stopped.outcome.reason, FinishReason::stop);
}

}  // namespace
}  // namespace kvasir::engine
