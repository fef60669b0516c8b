#include "models/mlx_lm.h"

#include <algorithm>
#include <array>

namespace kvasir::models {
namespace {

constexpr auto kFamilies = std::to_array<MlxLmFamily>({
    {"apertus", false},
    {"cohere", false},
    {"cohere2", true},
    {"ernie4_5", false},
    {"exaone", false},
    {"exaone4", true},
    {"gemma", false},
    {"gemma2", false},
    {"gemma3_text", true},
    {"glm4", false},
    {"granite", false},
    {"helium", false},
    {"hunyuan_v1_dense", false},
    {"internlm2", false},
    {"internlm3", false},
    {"lille-130m", false},
    {"llama", false},
    {"mimo", false},
    {"minicpm", false},
    {"ministral3", false},
    {"mistral", false},
    {"nemotron", false},
    {"olmo2", false},
    {"olmo3", true},
    {"phi", false},
    {"phi3", false},
    {"plamo", false},
    {"qwen2", false},
    {"qwen3", false},
    {"qwen3_moe", false},
    {"seed_oss", false},
    {"smollm3", false},
    {"stablelm", false},
    {"starcoder2", false},
    {"telechat3", false},
});

}  // namespace

const MlxLmFamily* mlx_lm_family(std::string_view model_type) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                  [&](const MlxLmFamily& family) { return family.model_type == model_type; });
  return found == kFamilies.end() ? nullptr : &*found;
}

}  // namespace kvasir::models
