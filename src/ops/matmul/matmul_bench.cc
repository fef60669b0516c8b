// Per format, activation mode and number of rows: bytes of weights per second and operations per second, each
// also as a fraction of this machine's limit, measured in the same run.
//
//   matmul_op_bench --benchmark_filter='q4_0/int8/.*'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>

#include "base/memory.h"
#include "base/topology.h"
#include "ops/machine_limits/machine_limits.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_op.h"
#include "ops/matmul/random_weight.h"
#include "ops/matmul/weight_cases.h"
#include "ops/op_test_program.h"

namespace kvasir::ops {
namespace {

constexpr int64_t kCols = 2048;
// Few rows stream a weight that no cache holds; many rows use one of a usual size.
constexpr int64_t kFewRows = 64;
constexpr size_t kStreamedBytes = size_t{320} << 20;
constexpr int64_t kUsualRows = 4096;

ThreadTeam& team() {
  static const Topology topology = discover_topology();
  static ThreadTeam instance(default_threads(topology), topology.cpus);
  return instance;
}

double read_limit() {
  static const double limit = measure_read_bandwidth(team(), best_isa_level());
  return limit;
}
double arithmetic_limit(ActivationMode mode) {
  static std::map<ActivationMode, double> limits;
  if (limits[mode] == 0)
    limits[mode] = measure_arithmetic(team(), best_isa_level(),
                                      mode == ActivationMode::f32    ? Arithmetic::f32
                                      : mode == ActivationMode::bf16 ? Arithmetic::bf16
                                                                     : Arithmetic::int8);
  return limits[mode];
}

struct Weight {
  Reservation memory;
  PackedMatrix matrix;
  double pack_seconds = 0;
  double stored = 0;
};

// The last weight made: benchmarks of one format follow each other.
const Weight& weight(const WeightCase& c, int64_t rows) {
  static std::string key;
  static std::unique_ptr<Weight> last;
  const std::string wanted = case_name(c) + std::to_string(rows);
  if (key == wanted) return *last;
  last.reset();
  key = wanted;
  last = std::make_unique<Weight>();
  // A source of 256 rows, repeated: only the packed form must be large.
  const RandomWeight source = make_weight(c, 256, kCols, 1);
  std::vector<PackPart> parts(1);
  parts[0].source = source.source();
  for (int64_t r = 0; r < rows; ++r) parts[0].row_map.push_back(static_cast<int32_t>(r % 256));
  const size_t bytes = PackedMatrix::packed_bytes(parts);
  last->memory = Reservation(bytes, nullptr, MemoryCategory::weights);
  last->memory.commit(bytes);
  const auto start = std::chrono::steady_clock::now();
  last->matrix = PackedMatrix::pack(parts, {last->memory.data(), bytes}, team());
  last->pack_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  last->stored = static_cast<double>(last->matrix.stored_bytes());
  return *last;
}

void run(benchmark::State& state, const WeightCase& c, ActivationMode mode, int64_t rows) {
  const double read = read_limit(), peak = arithmetic_limit(mode);
  formats::WeightSource one = make_weight(c, 1, kCols, 1).source();
  const auto row_bytes = static_cast<double>(one.stored_bytes());
  const int64_t out = rows < kFewRows
                          ? static_cast<int64_t>(static_cast<double>(kStreamedBytes) / row_bytes) / 16 * 16
                          : kUsualRows;
  const Weight& w = weight(c, out);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> input(static_cast<size_t>(rows * kCols));
  for (float& x : input) x = normal(random);
  AlignedBytes prepared(prepared_row_bytes(kCols, mode) * static_cast<size_t>(rows));
  Matmul product;
  product.input.mode = mode;
  product.input.rows = rows;
  product.input.cols = kCols;
  product.input.stride = prepared_row_bytes(kCols, mode);
  product.input.data = prepared.span().data();
  if (mode == ActivationMode::f32)
    std::memcpy(prepared.span().data(), input.data(), input.size() * 4);
  else
    prepare_activations(mode, input.data(), kCols, kCols, 0, rows, prepared.span().data(),
                        product.input.stride, best_isa_level());
  std::vector<float> result(static_cast<size_t>(rows * out));
  product.weight = &w.matrix;
  product.out = result.data();
  product.out_stride = out;
  product.isa = best_isa_level();
  team().run([&](int member) { matmul(product, member, team().size()); });
  double best = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    team().run([&](int member) { matmul(product, member, team().size()); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const double bytes = w.stored, operations = 2.0 * static_cast<double>(rows * out * kCols);
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["of_read"] = bytes / best / read;
  state.counters["GOP/s"] = operations / best * 1e-9;
  state.counters["of_peak"] = operations / best / peak;
  state.counters["pack_GB/s"] = w.stored / w.pack_seconds * 1e-9;
}

// f32 rows to prepared rows.
void prepare(benchmark::State& state, ActivationMode mode) {
  const int64_t rows = 64;
  std::vector<float> input(static_cast<size_t>(rows * kCols), 1.25f);
  AlignedBytes prepared(prepared_row_bytes(kCols, mode) * static_cast<size_t>(rows));
  for (auto _ : state)
    prepare_activations(mode, input.data(), kCols, kCols, 0, rows, prepared.span().data(),
                        prepared_row_bytes(kCols, mode), best_isa_level());
  state.counters["ns_per_element"] =
      benchmark::Counter(static_cast<double>(rows * kCols) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Rows of an embedding: random ones, so each comes from memory.
void embedding(benchmark::State& state, formats::StorageFormat format) {
  const int64_t tokens = state.range(0), vocab = 49152;
  const RandomWeight source(format, vocab, kCols, 1);
  const size_t bytes = PackedMatrix::packed_bytes(source.source());
  Reservation memory(bytes, nullptr, MemoryCategory::weights);
  memory.commit(bytes);
  const PackedMatrix table = PackedMatrix::pack(source.source(), {memory.data(), bytes}, team());
  TestProgram program(
      {}, [&](program::ProgramBuilder& b, auto&) { return gather_rows(b, table, 1.0f, best_isa_level()); }, 1,
      tokens);
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  program.step().token_ids = ids;
  for (auto _ : state) program.run();
  const double row = static_cast<double>(table.stored_bytes()) / vocab + kCols * sizeof(float);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(tokens) * row * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK_CAPTURE(embedding, q4_0, formats::StorageFormat::q4_0)->Arg(1)->Arg(512);
BENCHMARK_CAPTURE(embedding, bf16, formats::StorageFormat::bf16)->Arg(1)->Arg(512);

const bool registered = [] {
  for (ActivationMode mode : {ActivationMode::bf16, ActivationMode::int8, ActivationMode::int16})
    benchmark::RegisterBenchmark(("prepare/" + std::string(name(mode))).c_str(), prepare, mode);
  for (const WeightCase& c : weight_cases())
    for (int64_t rows : {1, 2, 4, 8, 16, 64, 512})
      for (ActivationMode mode : {ActivationMode::f32, ActivationMode::bf16, ActivationMode::int8})
        if (supports(mode, c.format))
          benchmark::RegisterBenchmark(
              (case_name(c) + "/" + std::string(name(mode)) + "/" + std::to_string(rows)).c_str(), run, c,
              mode, rows)
              ->Unit(benchmark::kMillisecond)
              ->MinTime(0.15)
              ->UseRealTime();
  return true;
}();

}  // namespace
}  // namespace kvasir::ops
