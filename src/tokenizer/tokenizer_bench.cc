// Encoding and decoding speed, and the time that loading takes. tools/oracles/tokenizer_speed.py runs this
// beside the `tokenizers` package on the same text.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "tokenizer/gguf_adapter.h"
#include "tokenizer/test_strings.h"

namespace kvasir::tokenizer {
namespace {

constexpr size_t kMegabyte = 1 << 20;

// "prose": the texts in tests/data/text, one after another; "mixed": the strings of the exactness tests.
std::string text_of(const std::string& name) {
  std::string text;
  if (name == "prose") {
    std::vector<std::filesystem::path> files;
    for (const auto& f : std::filesystem::directory_iterator(std::string(KVASIR_TEST_DATA) + "/text")) {
      if (f.path().extension() == ".txt") files.push_back(f.path());
    }
    std::sort(files.begin(), files.end());
    std::string all;
    for (const auto& f : files) all += read_file(f, kMegabyte);
    while (text.size() < kMegabyte) text += all;
  } else if (name == "mixed") {
    const Fragments fragments = Fragments::load(std::string(KVASIR_TEST_DATA) + "/tokenizer/fragments.json");
    for (uint64_t i = 0; text.size() < kMegabyte; ++i) text += test_string(i, fragments, {});
  } else {
    text.assign(kMegabyte, name == "one_word" ? 'a' : ' ');
  }
  return text;
}

// A GGUF model, or a tokenizer.json (`make models` puts those of real models into models/tokenizers;
// tools/oracles/tokenizer_speed.py one of each kind into models/tokenizers/kinds).
std::string model_path(const std::string& name) {
  const std::string path = std::string(KVASIR_MODELS_DIR) + "/" + name;
  return std::filesystem::exists(path + ".json") ? path + ".json" : path + ".gguf";
}

Tokenizer open(const std::string& name) {
  const std::string path = model_path(name);
  if (path.ends_with(".gguf")) return tokenizer_from_gguf(formats::GgufFile::open(path));
  const std::string text = read_file(path, size_t{1} << 28);
  TokenizerFiles files;
  files.tokenizer_json = text;
  return Tokenizer::from_files(files);
}

void encode(benchmark::State& state, const std::string& model, const std::string& text_name) {
  if (!std::filesystem::exists(model_path(model))) return state.SkipWithError("the model is not here");
  const Tokenizer t = open(model);
  const std::string text = text_of(text_name);
  size_t ids = 0;
  for (auto _ : state) {
    ids = t.encode(text, {.add_special = false}).size();
    benchmark::DoNotOptimize(ids);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(ids);
}

void decode(benchmark::State& state, const std::string& model) {
  if (!std::filesystem::exists(model_path(model))) return state.SkipWithError("the model is not here");
  const Tokenizer t = open(model);
  const std::string text = text_of("prose");
  const std::vector<int32_t> ids = t.encode(text, {.add_special = false});
  for (auto _ : state) {
    StreamDecoder stream(t);
    size_t bytes = 0;
    for (int32_t id : ids) bytes += stream.push(id).size();
    benchmark::DoNotOptimize(bytes);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void load(benchmark::State& state, const std::string& model) {
  if (!std::filesystem::exists(model_path(model))) return state.SkipWithError("the model is not here");
  if (model_path(model).ends_with(".gguf")) {
    const formats::GgufFile file = formats::GgufFile::open(model_path(model));
    for (auto _ : state) benchmark::DoNotOptimize(tokenizer_from_gguf(file).vocab_size());
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(open(model).vocab_size());
}

const bool kRegistered = [] {
  std::vector<std::string> models = {
      "SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-Q4_K_M", "tokenizers/deepseek_v3", "tokenizers/qwen2",
      "tokenizers/qwen35",          "tokenizers/tekken",   "tokenizers/mistral_v3"};
  std::error_code none;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(KVASIR_MODELS_DIR) + "/tokenizers/kinds", none))
    models.push_back("tokenizers/kinds/" + file.path().stem().string());
  for (const std::string& name : models) {
    for (const char* text : {"prose", "mixed", "one_word", "spaces"}) {
      const std::string text_name = text;
      benchmark::RegisterBenchmark(("encode/" + name + "/" + text_name).c_str(), [=](benchmark::State& s) {
        encode(s, name, text_name);
      })->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(("stream/" + name).c_str(), [=](benchmark::State& s) {
      decode(s, name);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("load/" + name).c_str(), [=](benchmark::State& s) {
      load(s, name);
    })->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace kvasir::tokenizer
