// Attention alone: decode over long contexts (bytes against the machine's read bandwidth) and prefill
// (operations against its bf16 rate), both limits measured in the same process. KVASIR_BENCH_THREADS sets the
// team (default 2).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/memory.h"
#include "kv/codecs/codec_layout.h"
#include "ops/append_kv/append_kv.h"
#include "ops/attention/attention.h"
#include "ops/machine_limits/machine_limits.h"
#include "program/executor.h"

namespace kvasir::ops {
namespace {

using kv::CodecPair;
using kv::PlaneCodec;
using program::Axis;

int threads() {
  const char* text = std::getenv("KVASIR_BENCH_THREADS");
  return text == nullptr ? 2 : std::atoi(text);
}
double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double read_bandwidth(ThreadTeam& team, IsaLevel isa) {
  static const double result = measure_read_bandwidth(team, isa);
  return result;
}
// The better of the two rates at which bf16 products can be had: dot products, or f32 multiply-adds.
double arithmetic_peak(ThreadTeam& team, IsaLevel isa) {
  static const double result = std::max(measure_arithmetic(team, isa, Arithmetic::bf16),
                                        measure_arithmetic(team, isa, Arithmetic::f32));
  return result;
}

struct Shape {
  int heads, kv_heads, dim;
};
CodecPair codec_of(int index) {
  const PlaneCodec bf16{PlaneCodec::Kind::plain, Dtype::bf16}, f32{PlaneCodec::Kind::plain, Dtype::f32};
  const auto affine = [](int bits) { return PlaneCodec{PlaneCodec::Kind::affine, Dtype::bf16, bits, 64}; };
  const auto turbo = [](int bits) { return PlaneCodec{PlaneCodec::Kind::turbo_key, Dtype::bf16, bits, 32}; };
  const auto rot = [](int bits) { return PlaneCodec{PlaneCodec::Kind::rotated, Dtype::bf16, bits, 32}; };
  const CodecPair pairs[] = {{bf16, bf16},           {f32, f32},
                             {affine(8), affine(8)}, {affine(6), affine(6)},
                             {affine(5), affine(5)}, {affine(4), affine(4)},
                             {affine(3), affine(3)}, {affine(2), affine(2)},
                             {turbo(8), rot(3)},     {rot(5), rot(5)},
                             {rot(4), rot(4)},       {rot(8), rot(8)}};
  return pairs[index];
}
const char* const kCodecNames[] = {"bf16",    "f32",     "affine8",  "affine6", "affine5", "affine4",
                                   "affine3", "affine2", "turbo8,3", "rot5",    "rot4",    "rot8"};
const Shape kShapes[] = {{32, 8, 64}, {9, 3, 64}, {32, 8, 128}, {16, 1, 256}, {8, 8, 128}};

// One sequence of `context` tokens whose last `tokens` are the queries; `layers` layers in turn.
void attend(benchmark::State& bench, const Shape& shape, int codec, int context, int tokens, int layers,
            AttentionPrecision precision) {
  const IsaLevel isa = best_isa_level();
  ThreadTeam team(threads());
  kv::GroupGeometry geometry;
  geometry.layers = layers;
  geometry.kv_heads = shape.kv_heads;
  geometry.head_dim_k = geometry.head_dim_v = shape.dim;
  geometry.codec = codec_of(codec);
  const auto layout = kv::PageLayout::make(geometry, isa);
  const int pages = (context + geometry.page_tokens - 1) / geometry.page_tokens;
  Reservation memory(layout->page_bytes() * static_cast<size_t>(pages), nullptr, MemoryCategory::kv);
  memory.commit(memory.reserved());
  std::vector<std::byte*> table;
  for (int i = 0; i < pages; ++i)
    table.push_back(memory.data() + static_cast<size_t>(i) * layout->page_bytes());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(shape.dim));
  const auto& codecs = static_cast<const kv::CodecLayout&>(*layout);
  for (int slot = 0; slot < geometry.page_tokens; ++slot)
    for (int layer = 0; layer < layers; ++layer)
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (float& value : x) value = normal(random);
        codecs.append(table[0], layer, head, slot, x.data(), x.data());
      }
  for (int i = 1; i < pages; ++i) std::memcpy(table[static_cast<size_t>(i)], table[0], layout->page_bytes());

  Arena arena(size_t{1} << 32, nullptr, MemoryCategory::workspace);
  std::vector<program::Program> programs;
  program::ValueId q{};
  for (int layer = 0; layer < layers; ++layer) {
    program::ProgramBuilder builder;
    q = builder.input("q", Dtype::f32, Axis::tokens, {shape.heads, shape.dim});
    AttentionOptions options;
    options.layer = layer;
    options.heads = shape.heads;
    options.kv_heads = shape.kv_heads;
    options.head_dim_k = options.head_dim_v = shape.dim;
    options.scale = 1.0f / std::sqrt(static_cast<float>(shape.dim));
    options.precision = precision;
    options.max_context = context;
    builder.output("out", attention(builder, q, options, isa));
    programs.push_back(std::move(builder).plan({tokens, 1, 0}, threads()));
    programs.back().allocate(arena);
  }
  const size_t stride = programs[0].values()[static_cast<size_t>(q.index)].stride;
  std::byte* queries = arena.allocate(stride * static_cast<size_t>(tokens));
  for (size_t i = 0; i < stride * static_cast<size_t>(tokens) / 4; ++i)
    reinterpret_cast<float*>(queries)[i] = normal(random);
  for (auto& p : programs) p.bind(q, queries);

  std::vector<int32_t> row_of_token(static_cast<size_t>(tokens), 0), position;
  std::vector<program::KeyRange> ranges;
  double visible = 0;
  for (int t = 0; t < tokens; ++t) {
    position.push_back(context - tokens + t);
    ranges.push_back({0, position.back() + 1});
    visible += position.back() + 1;
  }
  const std::vector<int32_t> first_token{0, tokens};
  const std::vector<kv::RowPages> rows{{table.data(), pages, layout.get()}};
  program::StepState step;
  step.tokens = tokens;
  step.rows = 1;
  step.row_of_token = row_of_token;
  step.kv_position = position;
  step.first_token = first_token;
  step.key_ranges = {ranges};
  step.kv = {{rows}};

  const double bandwidth = read_bandwidth(team, isa), peak = arithmetic_peak(team, isa);
  program::CpuExecutor executor(team);
  double seconds = 0;
  int64_t runs = 0;
  for (auto _ : bench) {
    for (const auto& p : programs) seconds += seconds_of([&] { executor.run(p, step); });
    runs += layers;
  }
  seconds /= static_cast<double>(runs);
  const double bytes = static_cast<double>(layout->token_bytes()) / layers * context;
  const double operations = visible * shape.heads * shape.dim * 4;
  bench.counters["us"] = seconds * 1e6;
  bench.counters["GB/s"] = bytes / seconds * 1e-9;
  bench.counters["of_bandwidth"] = bytes / seconds / bandwidth;
  bench.counters["GFLOP/s"] = operations / seconds * 1e-9;
  bench.counters["of_peak"] = operations / seconds / peak;
  bench.counters["limit_GB/s"] = bandwidth * 1e-9;
  bench.counters["limit_GFLOP/s"] = peak * 1e-9;
}

int register_all() {
  for (size_t s = 0; s < std::size(kShapes); ++s) {
    const Shape& shape = kShapes[s];
    const std::string name = fmt::format("{}x{}x{}", shape.heads, shape.kv_heads, shape.dim);
    for (int context : {4096, 32768}) {
      for (int codec = 0; codec < static_cast<int>(std::size(kCodecNames)); ++codec) {
        if (s > 2 && codec != 0) continue;
        // Enough layers that no cache holds them.
        const double layer_bytes = 2.0 * shape.kv_heads * shape.dim * 2 * context;
        const int layers = std::max(2, static_cast<int>(6e8 / layer_bytes));
        benchmark::RegisterBenchmark(
            fmt::format("decode/{}/context:{}/{}", name, context, kCodecNames[codec]).c_str(),
            [=](benchmark::State& state) {
              attend(state, shape, codec, context, 1, layers, AttentionPrecision::bf16);
            })
            ->Unit(benchmark::kMillisecond);
      }
    }
    // A context that the caches hold: what the kernels alone can do.
    for (int codec = 0; codec < static_cast<int>(std::size(kCodecNames)); ++codec) {
      benchmark::RegisterBenchmark(fmt::format("cached/{}/context:1024/{}", name, kCodecNames[codec]).c_str(),
                                   [=](benchmark::State& state) {
                                     attend(state, shape, codec, 1024, 1, 1, AttentionPrecision::bf16);
                                   });
    }
    for (int codec : {0, 1, 2, 5, 8}) {
      if (s > 2 && codec != 0) continue;
      for (int context : {512, 4096}) {
        benchmark::RegisterBenchmark(
            fmt::format("prefill/{}/tokens:512/context:{}/{}", name, context, kCodecNames[codec]).c_str(),
            [=](benchmark::State& state) {
              attend(state, shape, codec, context, 512, 1,
                     codec == 1 ? AttentionPrecision::f32 : AttentionPrecision::bf16);
            })
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return 0;
}
const int registered = register_all();

}  // namespace
}  // namespace kvasir::ops
