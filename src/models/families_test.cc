// Every family against its publisher's implementation (tools/oracles/tiny_families.py), and against itself in
// other chunks, team sizes, batches and storage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/test_folder.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "models/gguf_config.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const json& cases() {
  static const json kCases = formats::read_json_file(fs::path(KVASIR_TEST_DATA) / "models" / "families.json");
  return kCases;
}

LoadOptions f32_options(int threads, int rows = 1) {
  LoadOptions options;
  options.activations = Activations::f32;
  options.threads = threads;
  options.context = 64;
  options.rows = rows;
  options.chunk = 64 * rows;
  options.logits = 64 * rows;
  options.page_tokens = 16;
  return options;
}

using Logits = std::vector<std::vector<float>>;

Logits run(const fs::path& path, const std::vector<int32_t>& ids, int threads, int64_t chunk) {
  const LoadOptions options = f32_options(threads);
  auto model = Model::load(path, options);
  TestRunner runner(*model, threads, 64, 1, 64);
  return runner.run(ids, chunk);
}

double largest_difference(const Logits& a, const Logits& b) {
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t)
    for (size_t i = 0; i < a[t].size(); ++i) largest = larger(largest, std::abs(a[t][i] - b[t][i]));
  return largest;
}

class Families : public testing::TestWithParam<size_t> {};

TEST_P(Families, MatchesThePublisher) {
  const json& c = cases()["cases"][GetParam()];
  const std::string case_name = c["name"];
  const TestFolder folder("models");
  synthesize(c["config"], synth_format("f32"), c["seed"].get<uint64_t>(), folder.path());
  const auto ids = cases()["tokens"].get<std::vector<int32_t>>();
  const Logits whole = run(folder.path(), ids, 1, 64);

  static const formats::SafetensorsFile kGoldens =
      formats::SafetensorsFile::open(fs::path(KVASIR_TEST_DATA) / "models" / "families.safetensors");
  const formats::SafetensorsTensor* golden = kGoldens.find(case_name);
  ASSERT_NE(golden, nullptr);
  const auto step = cases()["step"].get<int64_t>();
  const auto* want = reinterpret_cast<const float*>(kGoldens.data(*golden).data());
  const int64_t columns = golden->shape[1];
  ASSERT_EQ(static_cast<int64_t>(whole.size()), golden->shape[0]);
  const double tolerance = 2e-4 * c["max_abs"].get<double>();
  double largest = 0;
  for (int64_t t = 0; t < golden->shape[0]; ++t)
    for (int64_t i = 0; i < columns; ++i)
      largest = larger(largest, std::abs(whole[static_cast<size_t>(t)][static_cast<size_t>(i * step)] -
                                         want[t * columns + i]));
  EXPECT_LE(largest, tolerance) << case_name;

  // Equal bits for every chunking and team.
  EXPECT_EQ(run(folder.path(), ids, 2, 64), whole) << case_name;
  for (int64_t chunk : {1, 7, 16})
    EXPECT_EQ(run(folder.path(), ids, chunk == 7 ? 2 : 1, chunk), whole) << case_name << " chunk " << chunk;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Families, testing::Range<size_t>(0, cases()["cases"].size()),
                         [](const testing::TestParamInfo<size_t>& parameter) {
                           std::string name = cases()["cases"][parameter.param]["name"];
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(FamiliesList, EveryRowOfTheTableHasTwoShapes) {
  std::map<std::string, int> count;
  for (const json& c : cases()["cases"]) ++count[c["config"]["model_type"].get<std::string>()];
  for (const std::string& family : synth_families()) EXPECT_GE(count[family], 2) << family;
  EXPECT_GE(count["iquestcoder"], 2);
}

TEST(Families, RowsOfABatchAreSoloRuns) {
  std::vector<std::vector<int32_t>> prompts(3);
  for (size_t r = 0; r < 3; ++r)
    for (size_t i = 0; i < 9 + 11 * r; ++i)
      prompts[r].push_back(static_cast<int32_t>((i * 31 + r * 7 + 3) % 128));
  for (const std::string& family : synth_families()) {
    const TestFolder folder("models");
    synthesize(synth_config(family, "tiny"), synth_format("f32"), 3, folder.path());
    auto model = Model::load(folder.path(), f32_options(2, 3));
    TestRunner batch(*model, 2, 64, 3, 192);
    const Logits together = batch.step(prompts);
    size_t at = 0;
    for (const auto& prompt : prompts) {
      const Logits alone = run(folder.path(), prompt, 1, 5);
      for (const auto& row : alone) ASSERT_EQ(together[at++], row) << family;
    }
  }
}

// transformers' xIELU has parameters of one element and plain numbers beside them, and loads nothing else.
TEST(Families, ScalarsHaveThePublishersShapes) {
  const TestFolder folder("models");
  synthesize(synth_config("apertus", "tiny"), synth_format("f32"), 5, folder.path());
  const auto file = formats::SafetensorsFile::open(folder.path() / "model.safetensors");
  for (const auto& [scalar, rank] : {std::pair{"alpha_p", 1}, {"alpha_n", 1}, {"beta", 0}, {"eps", 0}})
    EXPECT_EQ(file.find(fmt::format("model.layers.0.mlp.act_fn.{}", scalar))->shape.size(), rank) << scalar;
}

TEST(Families, GgufAndSafetensorsOfTheSameWeightsAgree) {
  const auto ids = cases()["tokens"].get<std::vector<int32_t>>();
  std::vector<json> configs;
  auto add = [&](std::string_view family, json change = json::object()) {
    change.update({{"num_hidden_layers", 4}, {"vocab_size", 48}});
    configs.push_back(synth_config(family, "tiny", change));
  };
  // Those that share an architecture with another.
  std::set<std::string_view> families = {"internlm3", "mistral", "olmo3"};
  for (const GgufArchitecture& architecture : gguf_architectures()) families.insert(architecture.model_type);
  families.erase("phi3");  // its factors are tensors: below
  for (const std::string_view family : families) add(family);
  add("cohere", {{"use_qk_norm", false}});
  add("stablelm", {{"qk_layernorm", true}, {"use_parallel_residual", true}});
  const json yarn = {{"rope_type", "yarn"},
                     {"rope_theta", 10000.0},
                     {"factor", 4.0},
                     {"original_max_position_embeddings", 16},
                     {"beta_fast", 24.0}};
  json ministral = yarn;
  ministral.update({{"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.3}});
  add("ministral3", {{"rope_parameters", ministral}});
  for (const char* family : {"gemma", "gemma2", "glm4", "stablelm", "starcoder2"}) {
    add(family, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}});
    json scaling = yarn;
    scaling.erase("rope_theta");
    add(family, {{"rope_scaling", scaling}});
  }
  json louder = yarn;
  louder["attention_factor"] = 1.4;
  add("llama", {{"rope_parameters", louder}});
  for (const json& config : configs) {
    const TestFolder folder("models");
    const std::string family = config.dump();
    synthesize(config, synth_format("f32"), 5, folder.path() / "hf");
    synthesize(config, synth_format("gguf-f32"), 5, folder.path() / "model.gguf");
    const Logits a = run(folder.path() / "hf", ids, 1, 64), b = run(folder.path() / "model.gguf", ids, 1, 64);
    double scale = 0;
    for (const auto& row : a)
      for (float v : row) scale = larger(scale, std::abs(v));
    EXPECT_LE(largest_difference(a, b), 1e-5 * scale) << family;
  }
}

TEST(Families, WhatNoGgufArchitectureHoldsIsRefused) {
  const TestFolder folder("models");
  auto message = [&](std::string_view family, const json& change) -> std::string {
    try {
      synthesize(synth_config(family, "tiny", change), synth_format("gguf-f32"), 1, folder.path() / "m.gguf");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      return error.what();
    }
    return "written";
  };
  EXPECT_EQ(message("mistral", json::object()), "written");
  EXPECT_EQ(message("iquestcoder", json::object()), "written");
  EXPECT_THAT(
      message("mistral", {{"sliding_window", 8}}),
      testing::HasSubstr("architecture llama, which has no sliding windows, and sliding_window is 8"));
  const json slides(4, "sliding_attention");
  EXPECT_THAT(message("llama", {{"sliding_window", 8}, {"layer_types", slides}}),
              testing::HasSubstr("llama"));
  for (const char* family : {"glm", "helium", "lille-130m", "mimo", "nanochat", "plamo", "telechat3"})
    EXPECT_THAT(message(family, json::object()), testing::HasSubstr("has no GGUF architecture")) << family;
}

// Names of the layout from before the family had a class in transformers.
TEST(Families, NanochatsOriginalNamesAreTheSameModel) {
  const auto ids = cases()["tokens"].get<std::vector<int32_t>>();
  const TestFolder folder("models");
  synthesize(synth_config("nanochat", "tiny"), synth_format("f32"), 5, folder.path() / "hf");
  const auto file = formats::SafetensorsFile::open(folder.path() / "hf" / "model.safetensors");
  std::vector<formats::SafetensorsToWrite> tensors;
  for (const formats::SafetensorsTensor& tensor : file.tensors()) {
    std::string name(tensor.name);
    for (const auto& [from, to] : {std::pair{"model.embed_tokens", "transformer.wte"},
                                   {"model.layers.", "transformer.h."},
                                   {"self_attn.q_proj", "attn.c_q"},
                                   {"self_attn.k_proj", "attn.c_k"},
                                   {"self_attn.v_proj", "attn.c_v"},
                                   {"self_attn.o_proj", "attn.c_proj"},
                                   {"mlp.fc1", "mlp.c_fc"},
                                   {"mlp.fc2", "mlp.c_proj"}})
      if (const size_t at = name.find(from); at != name.npos)
        name.replace(at, std::string_view(from).size(), to);
    const auto bytes = file.data(tensor);
    tensors.push_back({name,
                       tensor.dtype,
                       {tensor.shape.begin(), tensor.shape.end()},
                       formats::produce_bytes({bytes.begin(), bytes.end()})});
  }
  fs::create_directories(folder.path() / "original");
  formats::write_safetensors_model(folder.path() / "original", std::move(tensors));
  fs::copy(folder.path() / "hf" / "config.json", folder.path() / "original" / "config.json");
  EXPECT_EQ(run(folder.path() / "original", ids, 1, 64), run(folder.path() / "hf", ids, 1, 64));
}

TEST(Families, GgufKeepsTheFactorsOfRopeAsTensors) {
  const auto ids = cases()["tokens"].get<std::vector<int32_t>>();
  for (const char* name : {"llama-llama3", "phi3"}) {
    for (const json& c : cases()["cases"]) {
      if (c["name"] != name) continue;
      const TestFolder folder("models");
      synthesize(c["config"], synth_format("f32"), 5, folder.path() / "hf");
      synthesize(c["config"], synth_format("gguf-f32"), 5, folder.path() / "model.gguf");
      const Logits a = run(folder.path() / "hf", ids, 1, 64),
                   b = run(folder.path() / "model.gguf", ids, 1, 64);
      EXPECT_LE(largest_difference(a, b), 3e-5) << name;
    }
  }
}

}  // namespace
}  // namespace kvasir::models
