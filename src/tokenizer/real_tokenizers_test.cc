// Vocabularies of real models, where tools/oracles/tokenizer_real_goldens.py has put them
// (models/tokenizers): too large to be in the repository. The hashes are of the publishers' ids.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/gguf_adapter.h"
#include "tokenizer/test_strings.h"
#include "tokenizer/tokenizer.h"

namespace kvasir::tokenizer {
namespace {

const std::string kData = std::string(KVASIR_TEST_DATA) + "/tokenizer/";

class RealTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, SameIdsAsThePublisher) {
  const std::string path = std::string(KVASIR_MODELS_DIR) + "/tokenizers/" + GetParam();
  ASSERT_TRUE(std::filesystem::exists(path)) << path << ": `make models` fetches it";
  const bool gguf = path.ends_with(".gguf");
  const Tokenizer t = [&] {
    if (gguf) return tokenizer_from_gguf(formats::GgufFile::open(path));
    const std::string text = read_file(path, size_t{1} << 28);
    TokenizerFiles files;
    files.tokenizer_json = text;
    return Tokenizer::from_files(files);
  }();
  const auto all = nlohmann::json::parse(read_file(kData + "real.json", 1 << 20));
  const auto& entry = all.at("cases").at(GetParam());
  const auto specials = entry.at("specials").get<std::vector<std::string>>();
  const auto hashes = entry.at("hashes").get<std::vector<std::string>>();
  const Fragments fragments = Fragments::load(kData + "fragments.json");
  const size_t block = all.at("block");
  for (size_t b = 0; b < hashes.size(); ++b) {
    uint64_t state = kHashStart;
    for (size_t i = b * block; i < (b + 1) * block; ++i) {
      const std::string text = test_string(i, fragments, specials);
      state = hash_ids(state, t.encode(text, {.add_special = false, .parse_special = !gguf}));
    }
    ASSERT_EQ(fmt::format("{:016x}", state), hashes[b])
        << "strings " << b * block << " to " << (b + 1) * block;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer,
                         testing::Values("deepseek_v3.json", "qwen2.json", "qwen35.json", "tekken.json",
                                         "mistral_v3.gguf"),
                         [](const auto& p) {
                           const std::string name = p.param;
                           return name.substr(0, name.find('.'));
                         });

}  // namespace
}  // namespace kvasir::tokenizer
