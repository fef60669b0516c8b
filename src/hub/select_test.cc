#include "hub/select.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir::hub {
namespace {

RemoteFile file(const std::string& path, uint64_t size) {
  return {path, size, std::string(64, 'a')};
}

TEST(Select, QuantInName) {
  const std::pair<const char*, const char*> cases[] = {
      {"Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"},
      {"qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"},
      {"SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"},
      {"model-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"},
      {"model-UD-Q4_K_XL-00001-of-00002", "UD-Q4_K_XL"},
      {"gemma-3-1b-it-BF16.gguf", "BF16"},
      {"model.f16.gguf", "F16"},
      {"ggml-model-IQ4_NL.gguf", "IQ4_NL"},
      {"gpt-oss-20b-MXFP4.gguf", "MXFP4"},
      {"gpt-oss-20b-mxfp4_moe.gguf", "MXFP4_MOE"},
      {"model-TQ1_0.gguf", "TQ1_0"},
      {"Q8_0/model-Q4_0.gguf", "Q4_0"},  // the last one counts
      {"model.gguf", ""},
      {"Q40-model.gguf", ""},
      {"XQ4_0.gguf", ""},
      {"model-Q4_0_old.gguf", ""},
  };
  for (const auto& [name, quant] : cases) EXPECT_EQ(quant_in_name(name), quant) << name;
}

TEST(Select, Groups) {
  const std::vector<RemoteFile> files = {
      file("README.md", 1),
      file("big/m-Q8_0-00001-of-00002.gguf", 50),
      file("big/m-Q8_0-00002-of-00002.gguf", 40),
      file("broken-Q2_K-00001-of-00003.gguf", 5),
      file("broken-Q2_K-00003-of-00003.gguf", 5),
      file("imatrix.gguf", 3),
      file("m-BF16.gguf", 200),
      file("m-Q4_0.gguf", 30),
      file("mmproj-m-F16.gguf", 20),
  };
  const std::vector<GgufGroup> groups = gguf_groups(files);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].quant, "BF16");
  EXPECT_TRUE(groups[0].is_unquantized());
  EXPECT_EQ(groups[1].quant, "Q8_0");
  EXPECT_EQ(groups[1].bytes, 90u);
  ASSERT_EQ(groups[1].parts.size(), 2u);
  EXPECT_EQ(groups[1].parts[0].path, "big/m-Q8_0-00001-of-00002.gguf");
  EXPECT_TRUE(groups[1].complete);
  EXPECT_FALSE(groups[1].is_unquantized());
  EXPECT_EQ(groups[2].quant, "Q4_0");
  EXPECT_FALSE(groups[3].complete);
}

TEST(Select, FolderSaysTheQuant) {
  const std::vector<GgufGroup> groups = gguf_groups(std::vector<RemoteFile>{file("Q5_K_M/model.gguf", 1)});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].quant, "Q5_K_M");
}

TEST(Select, FindQuant) {
  const std::vector<GgufGroup> groups = gguf_groups(
      std::vector<RemoteFile>{file("m-IQ4_XS.gguf", 1), file("m-Q4_K_M.gguf", 2), file("m-Q4_K_S.gguf", 3),
                              file("m-Q8_0.gguf", 4), file("m-UD-Q4_K_M.gguf", 5)});
  EXPECT_EQ(find_quant(groups, "q4_k_m", "r").parts[0].path, "m-Q4_K_M.gguf");
  EXPECT_EQ(find_quant(groups, "Q8", "r").parts[0].path, "m-Q8_0.gguf");
  EXPECT_EQ(find_quant(groups, "IQ4", "r").parts[0].path, "m-IQ4_XS.gguf");
  EXPECT_EQ(find_quant(groups, "UD-Q4_K_M", "r").parts[0].path, "m-UD-Q4_K_M.gguf");
  EXPECT_EQ(find_quant(groups, "m-q4_k_s", "r").parts[0].path, "m-Q4_K_S.gguf");
  for (const char* quant : {"Q4_K", "Q4", "Q5_0", "K_M"})
    EXPECT_THROW((void)find_quant(groups, quant, "r"), Error) << quant;
}

TEST(Select, SafetensorsWeights) {
  Listing listing;
  listing.repo = "org/name";
  for (const char* path : {"a.safetensors", "dir/model.safetensors", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors"})
    listing.files.push_back(file(path, 1));
  EXPECT_EQ(safetensors_weights(listing, {}).size(), 2u);
  const std::vector<std::string> index = {"a.safetensors"};
  EXPECT_EQ(safetensors_weights(listing, index)[0].path, "a.safetensors");
  const std::vector<std::string> missing = {"b.safetensors"};
  EXPECT_THROW((void)safetensors_weights(listing, missing), Error);
  listing.files.push_back(file("model.safetensors", 1));
  EXPECT_EQ(safetensors_weights(listing, {}).size(), 1u);
}

TEST(Select, Index) {
  EXPECT_EQ(files_of_index(R"({"weight_map":{"x":"b","y":"a","z":"b"}})", "i"),
            (std::vector<std::string>{"a", "b"}));
  for (const char* text : {"{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"x":5}})",
                           R"({"weight_map":{"x":"../a"}})", R"({"weight_map":{"x":"d/a"}})"})
    EXPECT_THROW((void)files_of_index(text, "i"), Error) << text;
}

TEST(Select, TextSide) {
  for (const char* path :
       {"config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "vocab.txt", "x.tiktoken",
        "chat_template.jinja", "additional_chat_templates/tool.jinja", "model.safetensors.index.json"})
    EXPECT_TRUE(is_text_side(path)) << path;
  for (const char* path :
       {"README.md", "model.safetensors", "pytorch_model.bin", "onnx/config.json", "original/params.json",
        "LICENSE.txt", "code.py", "additional_chat_templates/x.json"})
    EXPECT_FALSE(is_text_side(path)) << path;
}

}  // namespace
}  // namespace kvasir::hub
