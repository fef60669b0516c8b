// MLX-quantized checkpoints of every mode against mlx-lm in float32 (tools/oracles/mlx_quantized.py).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_folder.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const json& cases() {
  static const json kCases = formats::read_json_file(fs::path(KVASIR_TEST_DATA) / "models" / "mlx.json");
  return kCases;
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, largest] : cases()["max_abs"].items()) out.push_back(name);
  return out;
}

class MlxCheckpoint : public testing::TestWithParam<std::string> {
 protected:
  // "mlx-nvfp4", or with another family than llama "qwen3_moe-mlx-nvfp4".
  fs::path synthesized(const std::string& name) const {
    const fs::path path = folder_ / name;
    const size_t dash = name.starts_with("qwen3_moe-") ? name.find('-') : std::string::npos;
    const std::string family = dash == std::string::npos ? "llama" : name.substr(0, dash);
    const std::string mode = dash == std::string::npos ? name : name.substr(dash + 1);
    synthesize(synth_config(family, "tiny", cases()["sizes"][family]), synth_format(mode),
               cases()["seed"].get<uint64_t>(), path);
    return path;
  }
  // Modules of several modes, with what the configuration says of each.
  fs::path mixed() const {
    const fs::path base = synthesized("mlx-affine-4-64"), out = folder_ / "mixed";
    json config = formats::read_json_file(base / "config.json");
    const auto owner = [](std::string_view tensor) {
      for (const auto& [path, change] : cases()["mixed"].items())
        if (tensor.starts_with(path + ".")) return path;
      return std::string();
    };
    std::vector<formats::SafetensorsToWrite> tensors;
    const auto take = [&](const fs::path& from, const std::string& wanted) {
      const auto model = formats::SafetensorsModel::open_folder(from);
      for (const formats::SafetensorsTensor& tensor : model.tensors()) {
        if (owner(tensor.name) != wanted) continue;
        const auto data = model.data(tensor);
        tensors.push_back({std::string(tensor.name),
                           tensor.dtype,
                           {tensor.shape.begin(), tensor.shape.end()},
                           formats::produce_bytes({data.begin(), data.end()})});
      }
    };
    take(base, "");
    for (const auto& [path, change] : cases()["mixed"].items()) {
      take(synthesized(change["from"]), path);
      for (const char* key : {"quantization", "quantization_config"})
        if (config.contains(key)) config[key][path] = change["stated"];
    }
    fs::create_directories(out);
    formats::write_safetensors_model(out, std::move(tensors), {{"format", "mlx"}});
    std::ofstream(out / "config.json") << config.dump();
    return out;
  }
  static std::vector<std::vector<float>> run(const fs::path& path, int threads, int64_t chunk) {
    const auto model = Model::load(path, small_options(Activations::f32, threads));
    return TestRunner(*model, threads, 64, 1, 32).run(cases()["tokens"].get<std::vector<int32_t>>(), chunk);
  }

  const TestFolder temporary_{"mlx"};
  const fs::path& folder_ = temporary_.path();
};

TEST_P(MlxCheckpoint, MatchesMlxLm) {
  const std::string name = GetParam();
  const fs::path path = name == "mixed" ? mixed() : synthesized(name);
  static const formats::SafetensorsFile kGoldens =
      formats::SafetensorsFile::open(fs::path(KVASIR_TEST_DATA) / "models" / "mlx.safetensors");
  const formats::SafetensorsTensor* golden = kGoldens.find(name);
  ASSERT_NE(golden, nullptr);
  const auto* want = reinterpret_cast<const float*>(kGoldens.data(*golden).data());
  const auto step = cases()["step"].get<int64_t>();
  const auto got = run(path, 1, 32);
  ASSERT_EQ(static_cast<int64_t>(got.size()), golden->shape[0]);
  double largest = 0;
  for (int64_t t = 0; t < golden->shape[0]; ++t)
    for (int64_t i = 0; i < golden->shape[1]; ++i)
      largest = larger(largest, std::abs(got[static_cast<size_t>(t)][static_cast<size_t>(i * step)] -
                                         want[t * golden->shape[1] + i]));
  EXPECT_LE(largest, 2e-4 * cases()["max_abs"][name].get<double>());
  for (const auto& [threads, chunk] : {std::pair{2, 24}, {1, 1}, {2, 7}})
    EXPECT_EQ(run(path, threads, chunk), got) << threads << " threads, chunks of " << chunk;
}

INSTANTIATE_TEST_SUITE_P(Modes, MlxCheckpoint, testing::ValuesIn(names()),
                         [](const testing::TestParamInfo<std::string>& parameter) {
                           std::string name = parameter.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace kvasir::models
