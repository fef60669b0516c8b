// The starter models against transformers' own float32 logits of the same files (tests/data/real/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

struct Golden {
  nlohmann::json values;
  std::vector<int32_t> tokens;
  std::filesystem::path model;
};

Golden read_golden(const std::string& name) {
  const std::filesystem::path data = std::filesystem::path(KVASIR_TEST_DATA) / "real";
  Golden golden;
  golden.values = nlohmann::json::parse(std::ifstream(data / (name + ".golden.json")));
  golden.tokens =
      nlohmann::json::parse(std::ifstream(data / (name + ".tokens.json"))).get<std::vector<int32_t>>();
  // Half of the golden's tokens: twice the longest window, and a quarter of the time.
  golden.tokens.resize(golden.values["tokens"].get<size_t>() / 2);
  golden.model = std::filesystem::path(KVASIR_MODELS_DIR) / golden.values["model"].get<std::string>();
  return golden;
}

struct Differences {
  double log_prob = 0;  // largest
  double kl = 0;        // mean over positions, of the golden's ids
  double top1 = 0;      // share of positions whose most likely id agrees
};

Differences compare(const Golden& golden, Activations mode, int threads) {
  LoadOptions options;
  options.activations = mode;
  options.threads = threads;
  options.context = static_cast<int64_t>(golden.tokens.size());
  options.chunk = 256;
  options.logits = 256;
  MemoryLedger ledger;
  options.ledger = &ledger;
  auto model = Model::load(golden.model, options);
  EXPECT_EQ(ledger.bytes(MemoryCategory::weights), model->memory().weights_bytes);
  EXPECT_EQ(ledger.bytes(MemoryCategory::workspace), model->memory().workspace_bytes);
  TestRunner runner(*model, threads, options.context, 1, options.chunk);
  Differences out;
  auto positions = golden.values["positions"].get<std::vector<int64_t>>();
  std::erase_if(positions, [&](int64_t p) { return p >= static_cast<int64_t>(golden.tokens.size()); });
  size_t at = 0;
  for (size_t begin = 0; begin < golden.tokens.size(); begin += 256) {
    const size_t end = std::min<size_t>(begin + 256, golden.tokens.size());
    const auto logits = runner.step({{golden.tokens.begin() + static_cast<int64_t>(begin),
                                      golden.tokens.begin() + static_cast<int64_t>(end)}});
    for (; at < positions.size() && positions[at] < static_cast<int64_t>(end); ++at) {
      const std::vector<float>& row = logits[static_cast<size_t>(positions[at]) - begin];
      double largest = row[0], sum = 0;
      size_t best = 0;
      for (size_t i = 0; i < row.size(); ++i)
        if (row[i] > row[best]) best = i;
      largest = row[best];
      for (float v : row) sum += std::exp(v - largest);
      const auto ids = golden.values["ids"][at].get<std::vector<size_t>>();
      const auto want = golden.values["log_probs"][at].get<std::vector<double>>();
      for (size_t i = 0; i < ids.size(); ++i) {
        const double got = row[ids[i]] - largest - std::log(sum);
        out.log_prob = larger(out.log_prob, std::abs(got - want[i]));
        out.kl += std::exp(want[i]) * (want[i] - got);
      }
      out.top1 += best == ids[0] ? 1 : 0;
    }
  }
  out.kl /= static_cast<double>(positions.size());
  out.top1 /= static_cast<double>(positions.size());
  printf("%s %s: largest log-prob difference %.6f, KL %.3e, top-1 %.4f\n", golden.model.filename().c_str(),
         std::string(name(mode)).c_str(), out.log_prob, out.kl, out.top1);
  return out;
}

// Tolerances: the goldens are rounded to 1e-5; f32 logits may differ by 2e-4 of the largest logit, a
// log-probability by twice that.
void expect_parity(const std::string& name) {
  const Golden golden = read_golden(name);
  ASSERT_TRUE(std::filesystem::exists(golden.model)) << golden.model << ": `make models` fetches it";
  const double scale = golden.values["max_abs_logit"].get<double>();
  const Differences f32 = compare(golden, Activations::f32, 2);
  EXPECT_LE(f32.log_prob, 4e-4 * scale + 1e-5);
  EXPECT_LE(f32.kl, 1e-4);
  EXPECT_GE(f32.top1, 0.98);
  const Differences bf16 = compare(golden, Activations::bf16, 2);
  EXPECT_LE(bf16.kl, 1e-3);
  EXPECT_GE(bf16.top1, 0.98);
  // Sixteen bits are eight more than bf16 has, so no further from f32 than it.
  const Differences int16 = compare(golden, Activations::int16, 2);
  EXPECT_LE(int16.log_prob, bf16.log_prob);
  EXPECT_LE(int16.kl, 1e-3);
  EXPECT_GE(int16.top1, 0.98);
  // llama.cpp's mean KL on all of the text is 3.45e-3 for SmolLM2 and 8.56e-3 for Gemma 3 (docs/accuracy.md).
  const Differences int8 = compare(golden, Activations::int8, 2);
  EXPECT_LE(int8.kl, 3.45e-3);
  EXPECT_GE(int8.top1, 0.96);
}

TEST(RealModel, SmolLM2MatchesTransformers) {
  expect_parity("smollm2");
}
TEST(RealModel, Gemma3MatchesTransformers) {
  expect_parity("gemma3");
}

}  // namespace
}  // namespace kvasir::models
