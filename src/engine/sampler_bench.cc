// A token from a whole row of logits, by what is asked of the sampler. The limit beside it is reading the row
// once.
#include "engine/sampler.h"

#include <benchmark/benchmark.h>

#include <random>

namespace kvasir::engine {
namespace {

std::vector<float> logits_of(int64_t vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

void draw(benchmark::State& state, const SamplingOptions& options) {
  const std::vector<float> logits = logits_of(state.range(0));
  std::vector<float> row;
  Sampler sampler(options);
  uint64_t t = 0;
  for (auto _ : state) {
    row.assign(logits.begin(), logits.end());
    benchmark::DoNotOptimize(sampler.sample(row, {}, t++).id);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}

void read_once(benchmark::State& state) {
  const std::vector<float> logits = logits_of(state.range(0));
  for (auto _ : state) {
    float sum[16] = {};
    for (size_t i = 0; i + 16 <= logits.size(); i += 16)
      for (size_t j = 0; j < 16; ++j) sum[j] += logits[i + j];
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}

BENCHMARK(read_once)->Arg(262144);
BENCHMARK_CAPTURE(draw, greedy, SamplingOptions{.temperature = 0})->Arg(49152)->Arg(262144);
BENCHMARK_CAPTURE(draw, temperature, SamplingOptions{.temperature = 0.8f})->Arg(49152)->Arg(262144);
BENCHMARK_CAPTURE(draw, top_k_40, SamplingOptions{.temperature = 0.8f, .top_k = 40})->Arg(49152)->Arg(262144);
BENCHMARK_CAPTURE(draw, top_p_95, SamplingOptions{.temperature = 0.8f, .top_p = 0.95f})
    ->Arg(49152)
    ->Arg(262144);
BENCHMARK_CAPTURE(draw, min_p_05, SamplingOptions{.temperature = 0.8f, .min_p = 0.05f})
    ->Arg(49152)
    ->Arg(262144);
BENCHMARK_CAPTURE(draw, typical_95, SamplingOptions{.temperature = 0.8f, .typical_p = 0.95f})->Arg(262144);

}  // namespace
}  // namespace kvasir::engine
