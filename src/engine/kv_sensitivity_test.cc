#include "engine/kv_sensitivity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/logit_run.h"
#include "engine/tiny_models.h"

namespace kvasir::engine {
namespace {

TEST(KvSensitivity, DivergenceOfTwoRows) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 ln 2 - 1/4 ln 2. Logits have any offset.
  const float p[] = {std::log(0.5f) + 3, std::log(0.25f) + 3, std::log(0.25f) + 3};
  const float q[] = {std::log(0.25f) - 7, std::log(0.25f) - 7, std::log(0.5f) - 7};
  EXPECT_NEAR(kl_divergence(p, q), 0.25 * std::log(2.0), 1e-6);
  EXPECT_EQ(kl_divergence(p, p), 0.0);
}

TEST(KvSensitivity, FrontierKeepsWhatNothingBeats) {
  const auto kept =
      frontier({{"a", 100, 0.1}, {"b", 100, 0.2}, {"c", 50, 0.15}, {"d", 120, 0.1}, {"e", 60, 0.3}});
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].codec, "a");
  EXPECT_EQ(kept[1].codec, "c");
}

std::unique_ptr<Engine> open(const testing::TinyKind& kind, const kv::SchemeRequest& kv, bool apart) {
  EngineOptions options;
  options.load.context = 80;
  options.load.chunk = 32;
  options.load.logits = 8;
  options.load.activations = models::Activations::f32;
  options.load.kv = kv;
  options.load.layers_apart = apart;
  return Engine::open(testing::tiny_models().path(kind), options);
}

std::vector<float> logits(Engine& engine, std::span<const int32_t> ids) {
  Context context = engine.new_context();
  std::vector<float> all;
  LogitRun run;
  run.row = &context;
  run.ids = ids;
  run.visit = [&](int64_t, const float* row) { all.insert(all.end(), row, row + testing::kTinyVocab); };
  run_logits(engine, run);
  return all;
}

// Each figure equals what a model opened with that codec in that layer gives.
TEST(KvSensitivity, MeasuresOneLayerAndPlaneAtATime) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * 37 + i * i) % testing::kTinyVocab);
  for (const testing::TinyKind& kind : testing::kTinyKinds) {
    kv::SchemeRequest plain;
    plain.spec = "f32";
    const auto engine = open(kind, plain, true);
    const size_t before = engine->ledger().total();
    const std::vector<std::string> codecs = {"affine:4", "rot:2",
                                             "affine:8:128"};  // the last fits no head here
    const auto layers = measure_kv_sensitivity(*engine, ids, codecs, Dtype::f32, {}, {});
    EXPECT_EQ(engine->ledger().total(), before);
    const std::vector<float> want = logits(*engine, ids);
    ASSERT_EQ(layers.size(), engine->model().groups().size());
    for (const LayerSensitivity& layer : layers) {
      ASSERT_EQ(layer.keys.size(), 2u);
      ASSERT_EQ(layer.values.size(), 2u);
      // affine:4 with f32 scales: 32 bytes of codes and 8 of scale and bias; rot:2: 16 and 4.
      EXPECT_EQ(layer.keys[0].bytes, 40u);
      EXPECT_EQ(layer.values[1].bytes, 20u);
      for (const bool keys : {true, false}) {
        const MeasuredCodec& measured = keys ? layer.keys[1] : layer.values[1];
        kv::SchemeRequest request = plain;
        request.layers = {fmt::format("{}={}", layer.layer, keys ? "rot:2/f32" : "f32/rot:2")};
        const auto other = open(kind, request, false);
        const std::vector<float> got = logits(*other, ids);
        double sum = 0;
        const auto vocab = static_cast<size_t>(testing::kTinyVocab);
        for (size_t t = 0; t < ids.size(); ++t)
          sum += kl_divergence({want.data() + t * vocab, vocab}, {got.data() + t * vocab, vocab});
        EXPECT_DOUBLE_EQ(measured.kl, sum / 70) << kind.name << " layer " << layer.layer << " keys " << keys;
        EXPECT_GT(measured.kl, 0);
      }
      for (size_t i = 1; i < layer.pairs.size(); ++i) {
        EXPECT_LT(layer.pairs[i].bytes, layer.pairs[i - 1].bytes);
        EXPECT_GT(layer.pairs[i].kl, layer.pairs[i - 1].kl);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::engine
