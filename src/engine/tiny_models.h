// For tests: checkpoints of random weights that load and run in milliseconds, and the ways in which a cache
// can store their rows.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "base/test_seeds.h"
#include "engine/engine.h"
#include "models/synth.h"

namespace kvasir::engine::testing {

inline constexpr int kTinyVocab = 96;

// One layer kind each, with head dims that every codec takes.
struct TinyKind {
  const char* name;
  const char* family;
  const char* overrides;
};
inline constexpr TinyKind kTinyKinds[] = {
    {"full", "llama", R"({"num_hidden_layers":2,"head_dim":64})"},
    {"windowed", "mistral", R"({"num_hidden_layers":2,"head_dim":64,"sliding_window":21})"},
    {"mixed", "gemma3_text",
     R"({"num_hidden_layers":3,"head_dim":64,"query_pre_attn_scalar":64,"sliding_window":18})"},
};

class TinyModels {
 public:
  TinyModels() {
    for (const TinyKind& kind : kTinyKinds) {
      nlohmann::json overrides = nlohmann::json::parse(kind.overrides);
      overrides["vocab_size"] = kTinyVocab;
      overrides["hidden_size"] = 32;
      overrides["num_attention_heads"] = 2;
      overrides["num_key_value_heads"] = 1;
      overrides["intermediate_size"] = 64;
      overrides["max_position_embeddings"] = 512;
      models::synthesize(models::synth_config(kind.family, "tiny", overrides),
                         models::synth_format("mlx-affine-8-32"), 1, path(kind));
    }
  }
  std::filesystem::path path(const TinyKind& kind) const { return folder() / kind.name; }
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  TestFolder folder_{"tiny"};
};

inline const TinyModels& tiny_models() {
  static const TinyModels kModels;
  return kModels;
}

inline std::vector<int32_t> random_ids(std::mt19937_64& random, size_t count, int32_t vocab = kTinyVocab) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

// Every plane codec, alone and in pairs.
inline const std::vector<std::string>& kv_specs() {
  static const std::vector<std::string> kSpecs = {"f32",
                                                  "f16",
                                                  "bf16",
                                                  "affine:8",
                                                  "affine:6:32",
                                                  "affine:5",
                                                  "affine:4",
                                                  "affine:3:32",
                                                  "affine:2",
                                                  "affine:4:64:bf16",
                                                  "turbo",
                                                  "turbo:5,4",
                                                  "turbo:4,2",
                                                  "turbo:2,5",
                                                  "rot:8",
                                                  "rot:5",
                                                  "rot:4",
                                                  "rot:3",
                                                  "rot:2",
                                                  "affine:8/rot:4",
                                                  "turbokey:4/affine:6",
                                                  "f16/rot:3",
                                                  "rot:5/bf16",
                                                  "turbo:8,8",
                                                  "q8_0",
                                                  "rot:q8_0",
                                                  "q8_0/rot:4",
                                                  "rot:q5_0/q4_0"};
  return kSpecs;
}

using kvasir::property_seeds;

}  // namespace kvasir::engine::testing
