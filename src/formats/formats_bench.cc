// How fast the scalar de-quantizers are (they run at load for small tensors and in tests; packing has its own
// code), and how fast a large vocabulary's header is read.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "formats/dequantize.h"
#include "formats/gguf.h"
#include "formats/random_rows.h"

namespace kvasir::formats {
namespace {

void dequantize(benchmark::State& state, StorageFormat format) {
  constexpr int64_t kCols = 4096;
  const StorageFormatInfo& storage = info(format);
  std::vector<std::byte> bytes(static_cast<size_t>(kCols / storage.block_elements * storage.block_bytes));
  RandomRows(format, 0.05f, 1).fill(0, kCols, bytes);
  WeightSource source;
  source.format = format;
  source.rows = 1;
  source.cols = kCols;
  source.row_bytes = bytes.size();
  source.data = bytes.data();
  std::vector<float> out(kCols);
  for (auto _ : state) {
    dequantize_row(source, 0, out);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations() * kCols);
}

void dequantize_mlx(benchmark::State& state, int bits) {
  constexpr int64_t kCols = 4096;
  std::vector<std::byte> codes(static_cast<size_t>(kCols * bits / 8)), scales(kCols / 64 * 2),
      biases(kCols / 64 * 2);
  RandomRows(StorageFormat::mlx_affine, 0.05f, 1)
      .fill_mlx(0, kCols, bits, 64, Dtype::bf16, {codes, scales, biases});
  WeightSource source;
  source.format = StorageFormat::mlx_affine;
  source.rows = 1;
  source.cols = kCols;
  source.bits = bits;
  source.group_size = 64;
  source.scale_dtype = Dtype::bf16;
  source.row_bytes = codes.size();
  source.data = codes.data();
  source.scales = scales.data();
  source.biases = biases.data();
  std::vector<float> out(kCols);
  for (auto _ : state) {
    dequantize_row(source, 0, out);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations() * kCols);
}

// Opens the GGUF file named by the environment variable KVASIR_BENCH_GGUF, with its list of tokens.
void open_gguf(benchmark::State& state) {
  const char* path = std::getenv("KVASIR_BENCH_GGUF");
  if (path == nullptr) {
    state.SkipWithError("KVASIR_BENCH_GGUF names no file");
    return;
  }
  for (auto _ : state) {
    const GgufFile file = GgufFile::open(path);
    benchmark::DoNotOptimize(file.find_strings("tokenizer.ggml.tokens"));
  }
}
BENCHMARK(open_gguf)->Unit(benchmark::kMillisecond);

const bool kRegistered = [] {
  for (const StorageFormatInfo& storage : all_storage_formats()) {
    if (storage.block_elements == 0 || (storage.block_elements == 1 && !can_encode(storage.format))) continue;
    benchmark::RegisterBenchmark(("dequantize/" + std::string(storage.name)).c_str(), dequantize,
                                 storage.format);
  }
  for (const int bits : {2, 3, 4, 5, 6, 8})
    benchmark::RegisterBenchmark(("dequantize/mlx-affine-" + std::to_string(bits)).c_str(), dequantize_mlx,
                                 bits);
  return true;
}();

}  // namespace
}  // namespace kvasir::formats
