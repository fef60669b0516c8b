// Appending to pages: tokens a second of one layer, by codec, at the shape of a small model. The limit is the
// time in which one core could read keys and values and store what becomes of them.
#include "ops/append_kv/append_kv.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/error.h"
#include "base/memory.h"
#include "kv/codecs/codec_layout.h"
#include "ops/machine_limits/bench_limits.h"

namespace kvasir::ops {
namespace {

using kv::PlaneCodec;

kv::CodecPair pair_of(const std::string& name) {
  const PlaneCodec bf16{PlaneCodec::Kind::plain, Dtype::bf16};
  const auto affine = [](int bits) { return PlaneCodec{PlaneCodec::Kind::affine, Dtype::bf16, bits, 64}; };
  const auto rot = [](int bits) { return PlaneCodec{PlaneCodec::Kind::rotated, Dtype::bf16, bits, 32}; };
  if (name == "affine8") return {affine(8), affine(8)};
  if (name == "affine4") return {affine(4), affine(4)};
  if (name == "turbo8,3") return {{PlaneCodec::Kind::turbo_key, Dtype::bf16, 8, 32}, rot(3)};
  if (name == "rot5") return {rot(5), rot(5)};
  if (name == "rot8") return {rot(8), rot(8)};
  return {bf16, bf16};
}

void append(benchmark::State& bench, const std::string& codec) {
  constexpr int kHeads = 3, kDim = 64, kTokens = 512;
  kv::GroupGeometry geometry;
  geometry.layers = 1;
  geometry.kv_heads = kHeads;
  geometry.head_dim_k = geometry.head_dim_v = kDim;
  geometry.codec = pair_of(codec);
  const kv::CodecLayout layout(geometry, best_isa_level());
  const int pages = kTokens / geometry.page_tokens;
  Reservation memory(layout.page_bytes() * static_cast<size_t>(pages), nullptr, MemoryCategory::kv);
  memory.commit(memory.reserved());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t{kTokens} * kHeads * kDim);
  for (float& value : x) value = normal(random);
  double best = 1e9;
  for (auto _ : bench) {
    const auto start = std::chrono::steady_clock::now();
    for (int t = 0; t < kTokens; ++t)
      for (int head = 0; head < kHeads; ++head) {
        const float* row = x.data() + (t * kHeads + head) * kDim;
        layout.append(memory.data() + static_cast<size_t>(t / geometry.page_tokens) * layout.page_bytes(), 0,
                      head, t % geometry.page_tokens, row, row);
      }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  bench.counters["ns_a_token"] = best / kTokens * 1e9;
  bench.counters["Mtokens/s"] = kTokens / best * 1e-6;
  const double moved =
      kTokens * (2.0 * kHeads * kDim * sizeof(float) + static_cast<double>(layout.token_bytes()));
  bench.counters["of_limit"] = seconds_at_limit({.bytes = moved}) / best;
  bench.counters["GB/s"] = static_cast<double>(layout.token_bytes()) * kTokens / best * 1e-9;
}

int register_all() {
  for (const char* codec : {"bf16", "affine8", "affine4", "turbo8,3", "rot5", "rot8"})
    benchmark::RegisterBenchmark(fmt::format("append/3x64/{}", codec).c_str(),
                                 [=](benchmark::State& state) { append(state, codec); });
  return 0;
}
const int registered = register_all();

}  // namespace
}  // namespace kvasir::ops
