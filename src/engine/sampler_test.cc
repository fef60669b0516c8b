#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "engine/rng.h"
#include "engine/sampling_kernels.h"

namespace kvasir::engine {
namespace {

std::vector<float> random_logits(uint32_t seed, size_t size, float scale) {
  std::mt19937 generator(seed);
  std::vector<float> logits(size);
  for (float& x : logits) {
    // Sum of uniforms: the standard library's normal distribution is not the same everywhere.
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(generator()) * 0x1p-32;
    x = static_cast<float>(sum - 6) * scale;
  }
  return logits;
}

std::vector<int32_t> ids_left(const Sampler& sampler) {
  std::vector<int32_t> ids;
  for (const Sampler::Candidate& c : sampler.candidates()) ids.push_back(c.id);
  return ids;
}

nlohmann::json goldens() {
  std::ifstream file(KVASIR_TEST_DATA "/engine/sampler_filters.json");
  return nlohmann::json::parse(file);
}

TEST(Sampler, FiltersKeepWhatMlxLmKeeps) {
  for (const auto& item : goldens()) {
    for (const auto& filter : item["filters"]) {
      SamplingOptions options;
      options.temperature = 1;
      if (filter.contains("top_p")) options.top_p = filter["top_p"];
      if (filter.contains("min_p")) options.min_p = filter["min_p"];
      if (filter.contains("top_k")) options.top_k = filter["top_k"];
      Sampler sampler(options);
      std::vector<float> logits = item["logits"];
      sampler.sample(logits, {}, 0);
      EXPECT_EQ(ids_left(sampler), filter["ids"].get<std::vector<int32_t>>()) << filter.dump();
    }
  }
}

TEST(Sampler, PenaltiesAreMlxLms) {
  for (const auto& item : goldens()) {
    const std::vector<int32_t> history = item["history"];
    for (const auto& golden : item["penalties"]) {
      SamplingOptions options;
      options.temperature = 0;
      if (golden["kind"] == "repetition") options.repetition_penalty = golden["value"];
      if (golden["kind"] == "presence") options.presence_penalty = golden["value"];
      if (golden["kind"] == "frequency") options.frequency_penalty = golden["value"];
      options.repetition_context = options.presence_context = options.frequency_context = golden["context"];
      Sampler sampler(options);
      std::vector<float> logits = item["logits"];
      sampler.sample(logits, history, 0);
      const std::vector<float> want = golden["logits"];
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(logits[i], want[i], 2e-6) << golden["kind"] << " id " << i;
    }
  }
}

TEST(Sampler, ExpIsAccurate) {
  for (float x = 0; x > -87; x -= 0.00137f) {
    const double want = std::exp(static_cast<double>(x));
    EXPECT_NEAR(sampling_exp(x) / want, 1.0, 2.4e-7) << x;
  }
  EXPECT_EQ(sampling_exp(0), 1.0f);
  EXPECT_EQ(sampling_exp(-std::numeric_limits<float>::infinity()), 0.0f);
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargest) {
  Sampler sampler({.temperature = 0});
  std::vector<float> logits = {1, 5, 5, 2};
  EXPECT_EQ(sampler.sample(logits, {}, 0).id, 1);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  // Chi-square of 20,000 draws over 8 outcomes; 7 degrees of freedom, 99.9% quantile 24.3.
  const std::vector<float> base = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -3.0f, 1.5f, 0.25f};
  double total = 0;
  for (float x : base) total += std::exp(static_cast<double>(x));
  std::vector<int> counts(base.size(), 0);
  constexpr int kDraws = 20000;
  Sampler sampler({.temperature = 1, .seed = 7});
  for (int t = 0; t < kDraws; ++t) {
    std::vector<float> logits = base;
    ++counts[static_cast<size_t>(sampler.sample(logits, {}, static_cast<uint64_t>(t)).id)];
  }
  double chi = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double expected = kDraws * std::exp(static_cast<double>(base[i])) / total;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi, 24.3);
}

TEST(Sampler, DrawEqualsTheCanonicalCategorical) {
  // Without filters the sampler must choose as the reference rule does on the same uniform, blocks and all.
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<float> logits = random_logits(seed, 5000, 3);
    Sampler sampler({.temperature = 0.8f, .seed = seed});
    std::vector<float> copy = logits;
    const int32_t id = sampler.sample(copy, {}, 3).id;
    const float r = static_cast<float>(1.0 / static_cast<double>(0.8f));
    for (float& x : logits) x *= r;
    EXPECT_EQ(id, categorical(logits, uniform(step_key(seed, 3))));
  }
}

TEST(Sampler, CategoricalMatchesANaivePrefixSum) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> logits = random_logits(seed + 1000, 3000, 4);
    const float u = uniform(step_key(seed, 0));
    const float max = logits[static_cast<size_t>(argmax(logits))];
    long double total = 0, prefix = 0;
    for (float x : logits) total += sampling_exp(x - max);
    size_t want = 0;
    long double margin = 1;
    for (; want < logits.size(); ++want) {
      prefix += sampling_exp(logits[want] - max);
      margin = prefix - u * total;
      if (margin > 0) break;
    }
    if (std::abs(margin / total) < 1e-12L) continue;  // too close for another summation order to agree
    EXPECT_EQ(categorical(logits, u), static_cast<int32_t>(want));
  }
}

TEST(Sampler, TopPMatchesAFullSort) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> logits = random_logits(seed + 5000, 4000, seed % 2 == 0 ? 0.5f : 5.0f);
    const float p = 0.05f + 0.9f * uniform(step_key(seed, 1));
    Sampler sampler({.temperature = 1, .top_p = p, .seed = seed});
    std::vector<float> copy = logits;
    sampler.sample(copy, {}, 0);
    const float normaliser = log_sum_exp(logits);
    std::vector<std::pair<float, int32_t>> sorted;
    for (size_t i = 0; i < logits.size(); ++i)
      sorted.emplace_back(logits[i] - normaliser, static_cast<int32_t>(i));
    std::sort(sorted.begin(), sorted.end());
    std::vector<int32_t> want;
    double sum = 0;
    for (const auto& [value, id] : sorted) {
      sum += static_cast<double>(sampling_exp(value));
      if (sum > 1.0 - static_cast<double>(p)) want.push_back(id);
    }
    std::sort(want.begin(), want.end());
    EXPECT_EQ(ids_left(sampler), want);
  }
}

TEST(Sampler, SameSeedSameTokenWhateverWasDrawnBefore) {
  Sampler one({.temperature = 1, .seed = 99}), two({.temperature = 1, .seed = 99});
  for (uint64_t t = 0; t < 5; ++t) {
    std::vector<float> logits = random_logits(static_cast<uint32_t>(t), 500, 2);
    two.sample(logits, {}, t);
  }
  std::vector<float> a = random_logits(77, 500, 2), b = a;
  EXPECT_EQ(one.sample(a, {}, 6).id, two.sample(b, {}, 6).id);
}

TEST(Sampler, LogprobsSumToOneAndAreSorted) {
  Sampler sampler({.temperature = 0.5f, .top_k = 3, .seed = 1});
  std::vector<float> logits = random_logits(5, 300, 2);
  const Sampled result = sampler.sample(logits, {}, 0, {}, 300);
  double sum = 0;
  for (const TokenLogprob& entry : result.top) sum += std::exp(static_cast<double>(entry.logprob));
  EXPECT_NEAR(sum, 1.0, 1e-5);
  for (size_t i = 1; i < result.top.size(); ++i) EXPECT_GE(result.top[i - 1].logprob, result.top[i].logprob);
}

TEST(Sampler, BannedIdsAreNeverDrawn) {
  const std::vector<int32_t> banned = {3};
  for (float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature, .seed = 4});
    for (uint64_t t = 0; t < 200; ++t) {
      std::vector<float> logits = {0, 0, 0, 50, 1};
      EXPECT_NE(sampler.sample(logits, {}, t, banned).id, 3);
    }
  }
}

TEST(Sampler, XtcDropsAllButTheLeastLikelyAboveThreshold) {
  // Probabilities 0.5, 0.3, 0.15, 0.05: with threshold 0.1 and certainty, the first two go (threshold
  // members: 0.5, 0.3, 0.15).
  Sampler sampler({.temperature = 1, .xtc_probability = 1, .xtc_threshold = 0.1f, .seed = 3});
  std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  sampler.sample(logits, {}, 0);
  EXPECT_EQ(ids_left(sampler), (std::vector<int32_t>{2, 3}));
}

TEST(Sampler, TypicalKeepsTheTokensNearTheEntropy) {
  // p = .6 .2 .1 .1: entropy 1.0889 nats; surprises .5108 1.6094 2.3026 2.3026; distances .578
  // .521 1.214 1.214. Order: id 1 (.2), id 0 (.6): cumulative .2, .8.
  Sampler sampler({.temperature = 1, .typical_p = 0.5f, .seed = 3});
  std::vector<float> logits = {std::log(0.6f), std::log(0.2f), std::log(0.1f), std::log(0.1f)};
  sampler.sample(logits, {}, 0);
  EXPECT_EQ(ids_left(sampler), (std::vector<int32_t>{0, 1}));
}

TEST(Sampler, TopNSigmaCutsBelowTheDeviation) {
  // Logits 10, 9, 0, 1: mean 5, deviation sqrt((25+16+25+16)/4) = 4.528; with n = 1 only logits >= 5.472
  // stay.
  Sampler sampler({.temperature = 1, .top_n_sigma = 1, .seed = 3});
  std::vector<float> logits = {10, 9, 0, 1};
  sampler.sample(logits, {}, 0);
  EXPECT_EQ(ids_left(sampler), (std::vector<int32_t>{0, 1}));
}

TEST(Sampler, DryPenalisesTheTokenThatWouldExtendARepeat) {
  // History 1 2 3 9 1 2 3: token 9 would extend the repeat "1 2 3" (length 3): penalty multiplier * base^(3 -
  // 2).
  const std::vector<int32_t> history = {1, 2, 3, 9, 1, 2, 3};
  Sampler sampler({.temperature = 0, .dry_multiplier = 0.5f, .dry_base = 2, .dry_allowed_length = 2});
  std::vector<float> logits(12, 0.0f);
  logits[9] = 0.9f;
  logits[4] = 0.1f;
  EXPECT_EQ(sampler.sample(logits, history, 0).id, 4);
  EXPECT_FLOAT_EQ(logits[9], -0.1f);
}

// A breaker (token 2) two tokens from the end: the repeat "1 2 3" counts as "3" alone, which is allowed.
TEST(Sampler, DryDoesNotLookAcrossABreaker) {
  const std::vector<int32_t> history = {1, 2, 3, 9, 1, 2, 3};
  SamplingOptions options = {
      .temperature = 0, .dry_multiplier = 0.5f, .dry_base = 2, .dry_allowed_length = 2};
  options.dry_breakers = std::make_shared<DryBreakers>(DryBreakers{{2, {{}}}});
  std::vector<float> logits(12, 0.0f);
  logits[9] = 0.9f;
  EXPECT_EQ(Sampler(options).sample(logits, history, 0).id, 9);
  EXPECT_FLOAT_EQ(logits[9], 0.9f);
}

// By hand after llama.cpp's llama_sampler_dry_apply: it goes back to the nearest token that begins a breaker
// which is there in full, takes the longest such breaker, and counts what is behind its end.
TEST(DryBreakers, TheNearestBreakerCountsAndOfThatTheLongest) {
  const DryBreakers breakers = {{5, {{}, {6, 7}}}, {8, {{9}}}};
  const auto behind = [&](std::vector<int32_t> history) {
    std::reverse(history.begin(), history.end());
    return tokens_behind_breaker(breakers, history);
  };
  EXPECT_EQ(behind({1, 2, 3}), 3);           // none
  EXPECT_EQ(behind({1, 5, 2, 3}), 2);        // 5 alone
  EXPECT_EQ(behind({5, 6, 7, 1}), 1);        // 5 6 7, not 5 alone
  EXPECT_EQ(behind({5, 6, 1, 2}), 3);        // its tail is not there: 5 alone
  EXPECT_EQ(behind({5, 1, 8, 1, 2}), 4);     // 8 without 9 is none
  EXPECT_EQ(behind({5, 1, 8, 9, 2, 2}), 2);  // 8 9
  EXPECT_EQ(behind({1, 8, 9}), 0);
  EXPECT_EQ(behind({1, 8}), 2);  // the tail would lie behind the end
  EXPECT_EQ(behind({}), 0);
}

TEST(Sampler, MirostatHoldsTheSurprise) {
  // Long-run average surprise approaches tau.
  Sampler sampler({.temperature = 1, .mirostat = 2, .mirostat_tau = 3, .mirostat_eta = 0.1f, .seed = 11});
  double sum = 0;
  int counted = 0;
  for (uint64_t t = 0; t < 3000; ++t) {
    std::vector<float> logits = random_logits(static_cast<uint32_t>(t % 50), 400, 2);
    const Sampled drawn = sampler.sample(logits, {}, t);
    for (const Sampler::Candidate& c : sampler.candidates())
      if (c.id == drawn.id && t >= 500) {
        sum += -static_cast<double>(c.value) / std::log(2.0);
        ++counted;
      }
  }
  EXPECT_NEAR(sum / counted, 3.0, 0.15);
}

TEST(Sampler, OrdersAreParsed) {
  EXPECT_EQ(order_from_text("mlx"), default_order());
  EXPECT_EQ(order_from_text("top_k;temperature"),
            (std::vector<SamplerStage>{SamplerStage::top_k, SamplerStage::temperature}));
  EXPECT_THROW(order_from_text("top_k,bogus"), Error);
  EXPECT_THROW(order_from_text("top_k,top_k"), Error);
}

TEST(Sampler, WhatAnOrderLeavesOutCannotBeAskedFor) {
  auto message = [](SamplingOptions options, const char* order) -> std::string {
    options.order = order_from_text(order);
    try {
      options.validate(100);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({.top_p = 0.5f}, "top_k"), "top_p is given, and the sampler order leaves top_p out");
  EXPECT_EQ(message({.presence_penalty = 1}, "dry;top_k"),
            "presence_penalty is given, and the sampler order leaves penalties out");
  const std::pair<SamplingOptions, const char*> stages[] = {
      {{.top_k = 3}, "top_k"},          {{.min_p = 0.1f}, "min_p"},
      {{.typical_p = 0.5f}, "typical"}, {{.top_n_sigma = 1}, "top_n_sigma"},
      {{.xtc_probability = 1}, "xtc"},  {{.repetition_penalty = 1.1f}, "penalties"},
      {{.dry_multiplier = 1}, "dry"}};
  for (const auto& [options, stage] : stages) {
    EXPECT_NE(message(options, "temperature"), "accepted") << stage;
    EXPECT_EQ(message(options, stage), "accepted") << stage;
    for (const char* order : {"mlx", "temperature_first"}) EXPECT_EQ(message(options, order), "accepted");
  }
  EXPECT_EQ(message({.top_p = 1}, "top_k"), "accepted");
}

TEST(Sampler, TemperatureFirstChangesTheFilter) {
  // Untempered, top_p = 0.7 keeps both; at temperature 0.25 the first has probability > 0.98 and stays alone.
  std::vector<float> logits = {1.0f, 0.0f};
  Sampler untempered({.temperature = 0.25f, .top_p = 0.9f, .seed = 1});
  std::vector<float> copy = logits;
  untempered.sample(copy, {}, 0);
  EXPECT_EQ(ids_left(untempered).size(), 2u);
  Sampler tempered(
      {.temperature = 0.25f, .top_p = 0.9f, .seed = 1, .order = order_from_text("temperature_first")});
  tempered.sample(logits, {}, 0);
  EXPECT_EQ(ids_left(tempered).size(), 1u);
}

std::vector<Sampler::Candidate> largest_of(const std::vector<float>& logits, int most) {
  std::vector<Sampler::Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) all.push_back({static_cast<int32_t>(i), logits[i]});
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.value > b.value; });
  all.resize(std::min(all.size(), static_cast<size_t>(most)));
  return all;
}

TEST(Sampler, TheLargestLogitsGiveTheTokenOfTheWholeRow) {
  int drawn = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::vector<float> logits =
        random_logits(seed + 9000, seed % 3 == 0 ? 40 : 3000, seed % 2 == 0 ? 0.3f : 4.0f);
    if (seed % 5 == 0)
      for (float& x : logits) x = std::round(x);  // many are equal
    for (size_t i = 0; i < logits.size(); i += 9) logits[i] = -std::numeric_limits<float>::infinity();
    SamplingOptions options{.temperature = seed % 7 == 0 ? 0.0f : 0.9f, .seed = seed};
    options.top_k = seed % 4 == 3 ? 1 : 25;
    if (seed % 4 == 1) options.min_p = 0.1f;
    if (seed % 4 == 2) options.min_p = 0.9f, options.min_tokens_to_keep = 30;
    options.order = order_from_text(seed % 11 == 0 ? "temperature_first" : seed % 2 == 0 ? "llama" : "mlx");
    Sampler sampler(options);
    const int wanted = sampler.candidates_wanted(64);
    ASSERT_EQ(wanted, options.greedy() ? 1 : seed % 4 == 2 ? 30 : options.top_k);
    for (uint64_t t = 0; t < 4; ++t) {
      std::vector<float> copy = logits;
      const int32_t whole = sampler.sample(copy, {}, t).id;
      EXPECT_EQ(sampler.choose_from(largest_of(logits, wanted), t), whole)
          << "seed " << seed << " token " << t;
      drawn += whole != argmax(logits);
    }
  }
  EXPECT_GT(drawn, 300);  // it was not all about the first choice
}

TEST(Sampler, AsksForTheWholeRowWhereItMatters) {
  const auto wanted = [](const SamplingOptions& options) { return Sampler(options).candidates_wanted(64); };
  EXPECT_EQ(wanted({.temperature = 0}), 1);
  EXPECT_EQ(wanted({.temperature = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40}), 40);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 65}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .top_p = 0.9f}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .typical_p = 0.9f}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .top_n_sigma = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .xtc_probability = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .mirostat = 2}), 0);
  EXPECT_EQ(wanted({.temperature = 0, .repetition_penalty = 1.1f}), 0);
  EXPECT_EQ(wanted({.temperature = 0, .presence_penalty = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 0, .frequency_penalty = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 0, .dry_multiplier = 1}), 0);
  EXPECT_EQ(wanted({.temperature = 0, .logit_bias = {{1, 1.0f}}}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .order = order_from_text("temperature")}), 0);
  EXPECT_EQ(wanted({.temperature = 1, .top_k = 40, .top_p = 0.9f, .order = order_from_text("top_k")}), 40);
}

// A top_k of the whole row, through the maxima of blocks, against a full sort.
TEST(Sampler, TopKMatchesAFullSort) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::vector<float> logits = random_logits(seed + 300, 50 + seed * 97, 3);
    if (seed % 2 == 0)
      for (float& x : logits) x = std::round(x * 2) / 2;
    for (int k : {1, 2, 7, 60, 2000}) {
      if (static_cast<size_t>(k) >= logits.size()) continue;
      Sampler sampler({.temperature = 1, .top_k = k, .seed = seed});
      std::vector<float> copy = logits;
      sampler.sample(copy, {}, 0);
      std::vector<int32_t> want;
      for (const auto& c : largest_of(logits, k)) want.push_back(c.id);
      std::sort(want.begin(), want.end());
      EXPECT_EQ(ids_left(sampler), want) << "seed " << seed << " k " << k;
    }
  }
}

// Every level against the plain definitions, bit for bit.
TEST(Sampler, KernelsAreTheirDefinitions) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (IsaLevel level : compiled_isa_levels()) {
    if (!machine_has(level)) continue;
    const SamplingKernels& kernels = sampling_kernels(level);
    for (const size_t size : {1, 7, 16, 63, 64, 65, 1000, 4099}) {
      std::vector<float> x = random_logits(static_cast<uint32_t>(size), size, 30);
      for (size_t i = 0; i < size; i += 13) x[i] = -infinity;
      if (size > 30) x[20] = x[29] = 200;  // the first of two largest
      const float shift = 3.25f, least = -40.5f;
      std::vector<float> e(size, -1.0f), values(size), maxima((size + 63) / 64, -1.0f);
      std::vector<int32_t> ids(size);
      for (const float below : {infinity, least}) {
        kernels.exps(x.data(), shift, below, static_cast<int64_t>(size), e.data());
        for (size_t i = 0; i < size; ++i)
          ASSERT_EQ(e[i], x[i] - shift < below ? sampling_exp(x[i] - shift) : 0.0f)
              << name(level) << " " << x[i];
      }
      const auto best = static_cast<int64_t>(std::max_element(x.begin(), x.end()) - x.begin());
      EXPECT_EQ(kernels.argmax(x.data(), static_cast<int64_t>(size)), best) << name(level) << " " << size;
      const int64_t count =
          kernels.at_least(x.data(), shift, least, static_cast<int64_t>(size), ids.data(), values.data());
      int64_t seen = 0;
      for (size_t i = 0; i < size; ++i)
        if (x[i] - shift >= least) {
          ASSERT_LT(seen, count);
          EXPECT_EQ(ids[static_cast<size_t>(seen)], static_cast<int32_t>(i));
          EXPECT_EQ(values[static_cast<size_t>(seen++)], x[i] - shift);
        }
      EXPECT_EQ(seen, count);
      kernels.block_maxima(x.data(), static_cast<int64_t>(size), maxima.data());
      for (size_t b = 0; b < maxima.size(); ++b)
        EXPECT_EQ(maxima[b],
                  *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(64 * b),
                                    x.begin() + static_cast<std::ptrdiff_t>(std::min(size, 64 * b + 64))));
      for (size_t i = 0; i < size; i += 11) {
        std::vector<float> bad = x;
        bad[i] = std::nanf("");
        EXPECT_EQ(kernels.argmax(bad.data(), static_cast<int64_t>(size)), -1) << name(level) << " " << i;
      }
    }
    // Results below the normal numbers are rounded as ldexp rounds them.
    for (float x = -86; x > -104; x -= 0.0137f) {
      float e = -1;
      kernels.exps(&x, 0, infinity, 1, &e);
      ASSERT_EQ(e, sampling_exp(x)) << name(level) << " " << x;
    }
  }
}

TEST(Sampler, RefusesBadOptionsByName) {
  auto message = [](const SamplingOptions& options) {
    try {
      options.validate(100);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message({.temperature = -1}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5f}).find("top_p"), std::string::npos);
  EXPECT_NE(message({.xtc_threshold = 0.6f}).find("xtc_threshold"), std::string::npos);
  EXPECT_NE(message({.logit_bias = {{100, 1.0f}}}).find("100"), std::string::npos);
  EXPECT_EQ(message({}), "");
}

TEST(Sampler, NamesBadLogits) {
  Sampler sampler({.temperature = 0});
  std::vector<float> nan = {0, std::nanf("")};
  EXPECT_THROW(sampler.sample(nan, {}, 0), Error);
  std::vector<float> none(3, -std::numeric_limits<float>::infinity());
  EXPECT_THROW(sampler.sample(none, {}, 0), Error);
}

}  // namespace
}  // namespace kvasir::engine
