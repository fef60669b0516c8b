// Row operations move no bytes: their times must not depend on what is stored. Run as kv_bench, or through
// `kvasir_bench kv`.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "base/test_folder.h"
#include "base/topology.h"
#include "kv/batch.h"
#include "kv/prefix_tree.h"
#include "kv/store.h"

namespace kvasir::kv {
namespace {

// SmolLM2-135M: 30 layers, 3 KV heads of 64; Gemma 3 270M: 18 layers, 1 KV head of 256, window 512 in all but
// every sixth.
CacheShape small_dense() {
  const std::vector<LayerGeometry> owners(30,
                                          {.layer = 0, .kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64});
  const std::vector<CodecPair> codecs(30);
  return group_layers(owners, codecs, 64, 0);
}
CacheShape windowed() {
  std::vector<LayerGeometry> owners;
  for (int i = 0; i < 18; ++i) {
    owners.push_back({.layer = i, .kv_heads = 1, .head_dim_k = 256, .head_dim_v = 256});
    if (i % 6 != 5) owners.back().window = 512;
  }
  return group_layers(owners, std::vector<CodecPair>(18), 64, 0);
}

struct Loaded {
  CacheShape shape;
  KvCache cache;
  Sequence row;
  Loaded(CacheShape s, int32_t tokens, int64_t batch)
      : shape(std::move(s)),
        cache(shape, layouts_for(best_isa_level()),
              plan_capacity(shape, layouts_for(best_isa_level()), {.context = tokens + 64, .batch = batch}),
              nullptr),
        row(cache.create()) {
    Step step;
    while (row.offset() < tokens) {
      cache.reserve({&row}, {std::min(512, tokens - row.offset())}, step);
      step.commit();
    }
  }
};

void join_leave(benchmark::State& state, CacheShape shape) {
  Loaded loaded(std::move(shape), 32768, 2);
  Batch batch;
  for (int i = 0; i < 7; ++i) batch.join(loaded.cache.create());
  for (auto _ : state) {
    batch.join(std::move(loaded.row));
    Step step;
    const std::vector<int32_t> counts(batch.size(), 1);
    loaded.cache.reserve(batch.rows(), counts, step);  // the batch's next step sees it
    step.rollback();
    loaded.row = batch.leave(batch.size() - 1);
  }
}
BENCHMARK_CAPTURE(join_leave, 32k_dense, small_dense());
BENCHMARK_CAPTURE(join_leave, 32k_windowed, windowed());

void fork_row(benchmark::State& state, CacheShape shape) {
  Loaded loaded(std::move(shape), 32768, 2);
  for (auto _ : state) {
    Sequence copy = loaded.row.fork();
    benchmark::DoNotOptimize(copy);
  }
}
BENCHMARK_CAPTURE(fork_row, 32k_dense, small_dense());
BENCHMARK_CAPTURE(fork_row, 32k_windowed, windowed());

void decode_step(benchmark::State& state) {  // reserve and commit of one token for 16 rows
  Loaded loaded(small_dense(), 4096, 24);
  std::vector<Sequence> rows;
  std::vector<Sequence*> pointers;
  for (int i = 0; i < 16; ++i) rows.push_back(loaded.row.fork());
  for (Sequence& row : rows) pointers.push_back(&row);
  const std::vector<int32_t> counts(16, 1);
  Step step;
  int32_t appended = 0;
  for (auto _ : state) {
    loaded.cache.reserve(pointers, counts, step);
    step.commit();
    if (++appended == 64) {
      state.PauseTiming();
      for (Sequence& row : rows) row.truncate(4096);
      appended = 0;
      state.ResumeTiming();
    }
  }
}
BENCHMARK(decode_step);

void round_of_8(benchmark::State& state) {
  Loaded loaded(windowed(), 32768, 2);
  Step step;
  for (auto _ : state) {
    loaded.row.begin_round();
    loaded.cache.reserve({&loaded.row}, {8}, step);
    step.commit();
    loaded.row.rollback_round();
  }
}
BENCHMARK(round_of_8);

void prefix_take(benchmark::State& state) {  // a hit of 32k tokens
  Loaded loaded(small_dense(), 32768, 2);
  std::vector<int32_t> tokens(32768);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 49152);
  PrefixTree tree(loaded.cache, size_t{4} << 30);
  tree.put("key", tokens, loaded.row);
  tokens.push_back(1);
  for (auto _ : state) benchmark::DoNotOptimize(tree.take("key", tokens));
}
BENCHMARK(prefix_take)->Unit(benchmark::kMicrosecond);

void store_write(benchmark::State& state) {
  TestFolder folder("bench");
  Loaded loaded(small_dense(), 4000, 2);
  const std::vector<int32_t> tokens(4000, 5);
  DiskStore store(
      {.dir = folder.path(), .identity = {}, .cap_bytes = uint64_t{4} << 30, .verify = false, .warn = {}});
  for (auto _ : state) store.put("", tokens, loaded.row);
  state.SetBytesProcessed(static_cast<int64_t>(store.stats().bytes) * state.iterations());
}
BENCHMARK(store_write)->Unit(benchmark::kMillisecond)->UseRealTime();

// Opening the store, finding and restoring 4,000 tokens of the starter model, the file being in the page
// cache.
void store_resume(benchmark::State& state) {
  TestFolder folder("bench");
  Loaded loaded(small_dense(), 4000, 2);
  std::vector<int32_t> tokens(4000, 5);
  DiskStore::Options options{.dir = folder.path(),
                             .identity = {},
                             .cap_bytes = uint64_t{4} << 30,
                             .verify = state.range(1) != 0,
                             .warn = {}};
  DiskStore(options).put("", tokens, loaded.row);
  tokens.push_back(1);
  ThreadTeam team(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    DiskStore store(options);
    const auto found = store.find("", tokens);
    benchmark::DoNotOptimize(store.restore(loaded.cache, found->entry, found->length, &team));
  }
}
BENCHMARK(store_resume)
    ->ArgNames({"threads", "verify"})
    ->Args({1, 0})
    ->Args({2, 0})
    ->Args({2, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace kvasir::kv
