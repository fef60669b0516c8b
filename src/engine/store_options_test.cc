// What identifies the tokenizer of a stored sequence.
#include "engine/store_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/test_folder.h"
#include "formats/gguf_writer.h"

namespace kvasir::engine {
namespace {

namespace fs = std::filesystem;

struct Words {
  std::vector<std::string> tokens = {"a", "b", "ab"};
  std::vector<std::string> merges = {"a b"};
  std::string chat_template = "x";
  std::string name = "model";
};

std::string hash_of_gguf(const fs::path& path, const Words& words) {
  formats::GgufWriter writer;
  writer.set_string("general.architecture", "llama");
  writer.set_string("general.name", words.name);
  writer.set_string("tokenizer.ggml.model", "gpt2");
  writer.set_strings("tokenizer.ggml.tokens", words.tokens);
  writer.set_strings("tokenizer.ggml.merges", words.merges);
  writer.set_string("tokenizer.chat_template", words.chat_template);
  writer.write(path);
  return tokenizer_hash(path);
}

TEST(TokenizerHash, OfGgufMetadata) {
  const TestFolder folder("tokenizer");
  const fs::path path = folder.path() / "m.gguf";
  const std::string base = hash_of_gguf(path, {});
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(hash_of_gguf(folder.path() / "other.gguf", {}), base);
  Words words;
  words.tokens[1] = "c";
  EXPECT_NE(hash_of_gguf(path, words), base);
  words = {};
  words.merges = {"b a"};
  EXPECT_NE(hash_of_gguf(path, words), base);
  words = {};
  words.tokens = {"a", "ba", "b"};  // the same characters in a row
  EXPECT_NE(hash_of_gguf(path, words), base);
  words = {};
  words.chat_template = "y";  // tokens that it makes are compared as tokens
  words.name = "another";
  EXPECT_EQ(hash_of_gguf(path, words), base);
}

TEST(TokenizerHash, OfAFolder) {
  const TestFolder folder("tokenizer");
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder.path() / name) << text; };
  write("config.json", R"({"model_type":"llama"})");
  write("model.safetensors", std::string(8, '\0').c_str());
  write("tokenizer.json", R"({"model":{"vocab":{"a":0}}})");
  const std::string base = tokenizer_hash(folder.path());
  EXPECT_EQ(base.size(), 16u);
  write("tokenizer_config.json", R"({"chat_template":"x"})");
  EXPECT_EQ(tokenizer_hash(folder.path()), base);
  write("tokenizer.json", R"({"model":{"vocab":{"b":0}}})");
  EXPECT_NE(tokenizer_hash(folder.path()), base);
  fs::remove(folder.path() / "tokenizer.json");
  EXPECT_EQ(tokenizer_hash(folder.path()), "");
}

}  // namespace
}  // namespace kvasir::engine
