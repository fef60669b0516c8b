// A model over an affine cache gives what mlx-lm gives over its QuantizedKVCache
// (tools/oracles/mlx_quantized_cache.py wrote the figures, on the CPU).
#include <gtest/gtest.h>

#include <cmath>

#include "engine/logit_run.h"
#include "engine/tiny_models.h"
#include "formats/json.h"

namespace kvasir::engine {
namespace {

std::vector<std::vector<float>> logits(const std::filesystem::path& path, std::span<const int32_t> ids,
                                       const std::string& spec) {
  EngineOptions options;
  options.load.context = static_cast<int64_t>(ids.size());
  options.load.chunk = 16;
  options.load.logits = 16;
  options.load.activations = models::Activations::f32;
  options.load.kv.spec = spec;
  const auto engine = Engine::open(path, options);
  Context context = engine->new_context();
  std::vector<std::vector<float>> rows;
  LogitRun run;
  run.row = &context;
  run.ids = ids;
  const auto vocab = static_cast<size_t>(engine->model().info().vocab);
  run.visit = [&](int64_t, const float* row) { rows.emplace_back(row, row + vocab); };
  run_logits(*engine, run);
  return rows;
}

TEST(MlxCache, AffineCachesGiveMlxLogits) {
  const nlohmann::json golden = formats::read_json_file(
      std::filesystem::path(KVASIR_TEST_DATA) / "kv_codecs" / "mlx_quantized_cache.json", size_t{4} << 20);
  const std::filesystem::path path = testing::tiny_models().folder() / "mlx";
  models::synthesize(models::synth_config("llama", "tiny", golden["settings"]), models::synth_format("f32"),
                     golden["seed"].get<uint64_t>(), path);
  const auto ids = golden["tokens"].get<std::vector<int32_t>>();
  const auto exact = logits(path, ids, "f32");
  int equal = 0;
  for (const auto& c : golden["cases"]) {
    // mlx keeps scales and biases in the dtype of the keys.
    const std::string spec = fmt::format("affine:{}:{}:f32", c["bits"].get<int>(), c["group"].get<int>());
    const auto got = logits(path, ids, spec);
    double off = 0, loss = 0;
    for (size_t t = 0; t < ids.size(); ++t)
      for (size_t i = 0; i < got[t].size(); ++i) {
        const double want = c["logits"][t][i].get<double>();
        off = std::max(off, std::abs(static_cast<double>(got[t][i]) - want));
        loss = std::max(loss, std::abs(static_cast<double>(exact[t][i]) - want));
      }
    // Two float32 implementations differ in the last bits of a key, and now and then that moves a code that
    // lies on a boundary by one; everything else is equal. Quantization itself moves logits far more.
    EXPECT_LT(off, loss / 10) << spec;
    equal += off < 2e-5;
  }
  EXPECT_GE(equal, 6);  // of 8
}

}  // namespace
}  // namespace kvasir::engine
