// A model over an affine cache gives what mlx-lm gives over its QuantizedKVCache
// (tools/oracles/mlx_quantized_cache.py wrote the figures, on the CPU).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "engine/logit_run.h"
#include "engine/tiny_models.h"
#include "formats/json.h"

namespace kvasir::engine {
namespace {

constexpr int kDim = 64;  // one head, two layers: golden["settings"]

struct Computed {
  std::vector<std::vector<float>> logits;  // [tokens]
  std::vector<std::vector<int>> codes;     // [layers * 2, keys then values][tokens * kDim]
};

Computed compute(const std::filesystem::path& path, std::span<const int32_t> ids, int bits, int group) {
  EngineOptions options;
  options.load.context = static_cast<int64_t>(ids.size());
  options.load.chunk = 16;
  options.load.logits = 16;
  options.load.activations = models::Activations::f32;
  // mlx keeps scales and biases in the dtype of the keys.
  options.load.kv.spec = fmt::format("affine:{}:{}:f32", bits, group);
  const auto engine = Engine::open(path, options);
  Context context = engine->new_context();
  Computed out;
  LogitRun run;
  run.row = &context;
  run.ids = ids;
  const auto vocab = static_cast<size_t>(engine->model().info().vocab);
  run.visit = [&](int64_t, const float* row) { out.logits.emplace_back(row, row + vocab); };
  run_logits(*engine, run);
  // Canonical bytes of a token: of each layer the keys' codes, scales and biases, then the values'.
  const size_t row_codes = static_cast<size_t>(kDim * bits) / 8,
               row = row_codes + 2 * 4 * static_cast<size_t>(kDim / group);
  const auto tokens = static_cast<int32_t>(ids.size());
  const std::vector<std::byte> bytes = context.sequence.bytes(0, 0, tokens);
  EXPECT_EQ(bytes.size(), ids.size() * 4 * row);
  for (size_t plane = 0; plane < 4; ++plane) {
    std::vector<int>& codes = out.codes.emplace_back();
    for (size_t t = 0; t < ids.size(); ++t) {
      const std::byte* stream = bytes.data() + (t * 4 + plane) * row;
      for (int c = 0; c < kDim; ++c) {
        int code = 0;
        for (int b = 0; b < bits; ++b) {
          const auto at = static_cast<size_t>(c * bits + b);
          code |= ((std::to_integer<int>(stream[at / 8]) >> (at % 8)) & 1) << b;
        }
        codes.push_back(code);
      }
    }
  }
  return out;
}

// P5: on equal inputs the encoders agree to the bit. Here the inputs differ in their last bits, as two
// float32 implementations of a layer do, so a code may be another where mlx's element lies on the middle
// between two: the golden names those ties. Nothing else differs: codes of other elements are equal, and
// logits agree to 2e-5 up to the first token of which a tie went the other way.
TEST(MlxCache, AffineCachesGiveMlxLogits) {
  const nlohmann::json golden = formats::read_json_file(
      std::filesystem::path(KVASIR_TEST_DATA) / "kv_codecs" / "mlx_quantized_cache.json", size_t{4} << 20);
  const std::filesystem::path path = testing::tiny_models().folder() / "mlx";
  models::synthesize(models::synth_config("llama", "tiny", golden["settings"]), models::synth_format("f32"),
                     golden["seed"].get<uint64_t>(), path);
  const auto ids = golden["tokens"].get<std::vector<int32_t>>();
  size_t untouched = 0;
  for (const auto& c : golden["cases"]) {
    const int bits = c["bits"].get<int>(), group = c["group"].get<int>();
    SCOPED_TRACE(fmt::format("affine:{}:{}", bits, group));
    const Computed got = compute(path, ids, bits, group);
    std::set<std::array<size_t, 4>> ties;
    for (const auto& tie : c["ties"]) ties.insert(tie.get<std::array<size_t, 4>>());
    // Layer after layer: a tie of one layer moves what the next one gets from this token on.
    size_t equal = ids.size();
    for (size_t layer = 0; layer < 2; ++layer) {
      const size_t compared = equal;
      for (size_t plane = 0; plane < 2; ++plane) {
        const auto hex = c["codes"][layer * 2 + plane].get<std::string>();
        for (size_t i = 0; i < compared * kDim; ++i) {
          const int want = std::stoi(hex.substr(2 * i, 2), nullptr, 16);
          const int code = got.codes[layer * 2 + plane][i];
          if (code == want) continue;
          EXPECT_TRUE(ties.contains({layer, plane, i / kDim, i % kDim}))
              << "layer " << layer << (plane == 0 ? " key" : " value") << " token " << i / kDim << " channel "
              << i % kDim << ": " << code << ", not " << want;
          EXPECT_EQ(std::abs(code - want), 1);
          equal = std::min(equal, i / kDim);
        }
      }
    }
    untouched += equal;
    for (size_t t = 0; t < equal; ++t)
      for (size_t i = 0; i < got.logits[t].size(); ++i)
        ASSERT_NEAR(got.logits[t][i], c["logits"][t][i].get<double>(), 2e-5) << "token " << t;
  }
  // The seed was chosen so that ties are rare and rarely fall: most of the 8 x 36 tokens are compared.
  EXPECT_GE(untouched, 200u);
}

}  // namespace
}  // namespace kvasir::engine
