// Attention alone: decode over long contexts (bytes against the machine's read bandwidth) and prefill
// (operations against its bf16 rate), both limits measured in the same process. KVASIR_BENCH_THREADS sets the
// team (default 2).
#include <benchmark/benchmark.h>

#include <algorithm>
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

// The better of the two rates at which bf16 products can be had: dot products, or f32 multiply-adds.
double arithmetic_peak(ThreadTeam& team, IsaLevel isa) {
  static const double result = std::max(measure_arithmetic(team, isa, Arithmetic::bf16),
                                        measure_arithmetic(team, isa, Arithmetic::f32));
  return result;
}

struct Shape {
  int heads, kv_heads, dim;
};
struct NamedCodec {
  std::string name;
  CodecPair codec;
};
// By the names of --kv.
const std::vector<NamedCodec>& codecs() {
  static const std::vector<NamedCodec> all = [] {
    const auto plane = [](PlaneCodec::Kind kind, int bits, int group) {
      return PlaneCodec{kind, Dtype::bf16, bits, group};
    };
    std::vector<NamedCodec> out;
    const auto both = [&](std::string name, const PlaneCodec& codec) {
      out.push_back({std::move(name), {codec, codec}});
    };
    both("bf16", plane(PlaneCodec::Kind::plain, 0, 0));
    both("f32", {PlaneCodec::Kind::plain, Dtype::f32});
    for (int bits : {8, 6, 5, 4, 3, 2})
      both(fmt::format("affine:{}", bits), plane(PlaneCodec::Kind::affine, bits, 64));
    for (const auto& [k, v] : {std::pair{8, 8}, {8, 5}, {8, 4}, {8, 3}, {5, 4}, {4, 3}})
      out.push_back({fmt::format("turbo:{},{}", k, v),
                     {plane(PlaneCodec::Kind::turbo_key, k, 32), plane(PlaneCodec::Kind::rotated, v, 32)}});
    for (int bits : {8, 5, 4, 3, 2})
      both(fmt::format("rot:{}", bits), plane(PlaneCodec::Kind::rotated, bits, 32));
    for (int bits : {8, 6, 5, 4, 3}) both(fmt::format("q{}_0", bits), plane(PlaneCodec::Kind::q_0, bits, 32));
    for (int bits : {8, 6, 5, 4, 3})
      both(fmt::format("rot:q{}_0", bits), plane(PlaneCodec::Kind::rotated_q_0, bits, 32));
    return out;
  }();
  return all;
}
const Shape kShapes[] = {{32, 8, 64}, {9, 3, 64}, {32, 8, 128}, {16, 1, 256}, {8, 8, 128}};

// One sequence of `context` tokens whose last `tokens` are the queries; `layers` layers in turn.
class Case {
 public:
  Case(ThreadTeam& team, const Shape& shape, const CodecPair& codec, int context, int tokens, int layers,
       AttentionPrecision precision, int window = 0, int page_tokens = 64)
      : team_(team), executor_(team), layers_(layers) {
    const IsaLevel isa = best_isa_level();
    kv::GroupGeometry geometry;
    geometry.layers = layers;
    geometry.kv_heads = shape.kv_heads;
    geometry.head_dim_k = geometry.head_dim_v = shape.dim;
    geometry.codec = codec;
    geometry.page_tokens = page_tokens;
    layout_ = kv::PageLayout::make(geometry, isa);
    const int pages = (context + page_tokens - 1) / page_tokens;
    memory_ = Reservation(layout_->page_bytes() * static_cast<size_t>(pages), nullptr, MemoryCategory::kv);
    memory_.commit(memory_.reserved());
    for (int i = 0; i < pages; ++i)
      table_.push_back(memory_.data() + static_cast<size_t>(i) * layout_->page_bytes());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(shape.dim));
    const auto& codecs = static_cast<const kv::CodecLayout&>(*layout_);
    for (int slot = 0; slot < page_tokens; ++slot)
      for (int layer = 0; layer < layers; ++layer)
        for (int head = 0; head < shape.kv_heads; ++head) {
          for (float& value : x) value = normal(random);
          codecs.append(table_[0], layer, head, slot, x.data(), x.data());
        }
    for (int i = 1; i < pages; ++i)
      std::memcpy(table_[static_cast<size_t>(i)], table_[0], layout_->page_bytes());

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
      programs_.push_back(std::move(builder).plan({tokens, 1, 0}, team.size()));
      programs_.back().allocate(arena_);
    }
    const size_t stride = programs_[0].values()[static_cast<size_t>(q.index)].stride;
    std::byte* queries = arena_.allocate(stride * static_cast<size_t>(tokens));
    for (size_t i = 0; i < stride * static_cast<size_t>(tokens) / 4; ++i)
      reinterpret_cast<float*>(queries)[i] = normal(random);
    for (auto& p : programs_) p.bind(q, queries);

    row_of_token_.assign(static_cast<size_t>(tokens), 0);
    double keys = 0;
    for (int t = 0; t < tokens; ++t) {
      position_.push_back(context - tokens + t);
      const int end = position_.back() + 1, begin = window == 0 ? 0 : std::max(0, end - window);
      ranges_.push_back({begin, end});
      keys += end - begin;
    }
    first_token_ = {0, tokens};
    rows_ = {{table_.data(), pages, layout_.get()}};
    step_.tokens = tokens;
    step_.rows = 1;
    step_.row_of_token = row_of_token_;
    step_.kv_position = position_;
    step_.first_token = first_token_;
    step_.key_ranges = {ranges_};
    step_.kv = {{rows_}};
    bytes_ = static_cast<double>(layout_->token_bytes()) / layers * (window == 0 ? context : window);
    operations_ = keys * shape.heads * shape.dim * 4;
  }

  // Seconds of one layer's attention: the best of one round of layers, since other work may run on the
  // machine.
  double attend() {
    double best = 1e9;
    for (const auto& p : programs_) best = std::min(best, seconds_of([&] { executor_.run(p, step_); }));
    return best;
  }
  // Seconds of reading as many bytes as one layer's attention must, out of the same memory.
  double read() {
    const size_t bytes = memory_.reserved() / static_cast<size_t>(layers_) / 4096 * 4096;
    double best = 1e9;
    for (int layer = 0; layer < layers_; ++layer) {
      const std::byte* data = memory_.data() + bytes * static_cast<size_t>(layer);
      best = std::min(best, seconds_of([&] {
                        team_.run([&](int member) {
                          const WorkRange range =
                              split_work(static_cast<int64_t>(bytes), team_.size(), member, 4096);
                          benchmark::DoNotOptimize(kernels_.read(
                              data + range.begin, static_cast<size_t>(range.end - range.begin)));
                        });
                      }));
    }
    return best * bytes_ / static_cast<double>(bytes);
  }
  double bytes() const { return bytes_; }
  double operations() const { return operations_; }

 private:
  ThreadTeam& team_;
  program::CpuExecutor executor_;
  int layers_;
  const LimitKernels& kernels_ = limit_kernels(best_isa_level());
  std::unique_ptr<kv::PageLayout> layout_;
  Reservation memory_;
  std::vector<std::byte*> table_;
  Arena arena_{size_t{1} << 32, nullptr, MemoryCategory::workspace};
  std::vector<program::Program> programs_;
  std::vector<int32_t> row_of_token_, position_, first_token_;
  std::vector<program::KeyRange> ranges_;
  std::vector<kv::RowPages> rows_;
  program::StepState step_;
  double bytes_ = 0, operations_ = 0;
};

ThreadTeam& shared_team() {
  static ThreadTeam team(threads());
  return team;
}

// Attention and the reading of its bytes in turn, so that what else runs on the machine meets both. The best
// of each counts.
void decode(benchmark::State& bench, const Shape& shape, const CodecPair& codec, int context, int layers,
            int window = 0, int page_tokens = 64) {
  Case it(shared_team(), shape, codec, context, 1, layers, AttentionPrecision::bf16, window, page_tokens);
  double attend = 1e9, read = 1e9;
  for (auto _ : bench) {
    attend = std::min(attend, it.attend());
    read = std::min(read, it.read());
  }
  bench.counters["us"] = attend * 1e6;
  bench.counters["GB/s"] = it.bytes() / attend * 1e-9;
  bench.counters["limit_GB/s"] = it.bytes() / read * 1e-9;
  bench.counters["of_bandwidth"] = read / attend;
}

// A quantized cache and bf16 in turn.
void against_bf16(benchmark::State& bench, const Shape& shape, const CodecPair& codec, int context,
                  int layers) {
  Case plain(shared_team(), shape, codecs().front().codec, context, 1, layers, AttentionPrecision::bf16);
  Case coded(shared_team(), shape, codec, context, 1, layers, AttentionPrecision::bf16);
  double plain_time = 1e9, time = 1e9;
  for (auto _ : bench) {
    plain_time = std::min(plain_time, plain.attend());
    time = std::min(time, coded.attend());
  }
  bench.counters["us"] = time * 1e6;
  bench.counters["bf16_us"] = plain_time * 1e6;
  bench.counters["times_bf16"] = plain_time / time;
}

void prefill(benchmark::State& bench, const Shape& shape, const CodecPair& codec, int context, int tokens) {
  const bool wide = codec.k.kind == PlaneCodec::Kind::plain && codec.k.plain == Dtype::f32;
  const AttentionPrecision precision = wide ? AttentionPrecision::f32 : AttentionPrecision::bf16;
  Case it(shared_team(), shape, codec, context, tokens, 1, precision);
  const double peak = arithmetic_peak(shared_team(), best_isa_level());
  double attend = 1e9;
  for (auto _ : bench) attend = std::min(attend, it.attend());
  bench.counters["us"] = attend * 1e6;
  bench.counters["GFLOP/s"] = it.operations() / attend * 1e-9;
  bench.counters["limit_GFLOP/s"] = peak * 1e-9;
  bench.counters["of_peak"] = it.operations() / attend / peak;
}

int register_all() {
  const CodecPair& bf16 = codecs().front().codec;
  for (size_t s = 0; s < std::size(kShapes); ++s) {
    const Shape& shape = kShapes[s];
    const std::string name = fmt::format("{}x{}x{}", shape.heads, shape.kv_heads, shape.dim);
    for (int context : {4096, 8192, 32768}) {
      for (const NamedCodec& named : codecs()) {
        const CodecPair& codec = named.codec;
        const bool is_bf16 = named.name == "bf16";
        if (s > 2 && !is_bf16) continue;
        // Enough layers that no cache holds them.
        const double layer_bytes = 2.0 * shape.kv_heads * shape.dim * 2 * context;
        const int layers = std::max(2, static_cast<int>(6e8 / layer_bytes));
        benchmark::RegisterBenchmark(
            fmt::format("decode/{}/context:{}/{}", name, context, named.name).c_str(),
            [=](benchmark::State& state) { decode(state, shape, codec, context, layers); })
            ->Unit(benchmark::kMillisecond);
        if (is_bf16 || context == 8192) continue;
        benchmark::RegisterBenchmark(
            fmt::format("times_bf16/{}/context:{}/{}", name, context, named.name).c_str(),
            [=](benchmark::State& state) { against_bf16(state, shape, codec, context, layers); })
            ->Unit(benchmark::kMillisecond);
      }
    }
    for (int page : {16, 256})
      benchmark::RegisterBenchmark(
          fmt::format("decode/{}/context:8192/page:{}/bf16", name, page).c_str(),
          [=](benchmark::State& state) { decode(state, shape, bf16, 8192, 36, 0, page); })
          ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(fmt::format("decode/{}/context:32768/window:512/bf16", name).c_str(),
                                 [=](benchmark::State& state) { decode(state, shape, bf16, 32768, 4, 512); })
        ->Unit(benchmark::kMillisecond);
    // A context that the caches hold: what the kernels alone can do.
    for (const NamedCodec& named : codecs()) {
      const CodecPair& codec = named.codec;
      benchmark::RegisterBenchmark(fmt::format("cached/{}/context:1024/{}", name, named.name).c_str(),
                                   [=](benchmark::State& state) { decode(state, shape, codec, 1024, 1); });
    }
    const auto prompts = {"bf16", "f32", "affine:8", "affine:4", "turbo:8,3", "rot:5"};
    for (const NamedCodec& named : codecs()) {
      if (std::find(prompts.begin(), prompts.end(), named.name) == prompts.end()) continue;
      const CodecPair& codec = named.codec;
      if (s > 2 && named.name != "bf16") continue;
      for (int context : {512, 4096, 8192})
        benchmark::RegisterBenchmark(
            fmt::format("prefill/{}/tokens:512/context:{}/{}", name, context, named.name).c_str(),
            [=](benchmark::State& state) { prefill(state, shape, codec, context, 512); })
            ->Unit(benchmark::kMillisecond);
    }
  }
  return 0;
}
const int registered = register_all();

}  // namespace
}  // namespace kvasir::ops
