// The names of tensors in GGUF files against those of the `gguf` package, by the publisher's names
// (tools/oracles/gguf_names.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/test_folder.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "models/gguf_config.h"
#include "models/synth.h"

namespace kvasir::models {
namespace {

using nlohmann::json;

// "blk.3.attn_q.weight" -> "blk.{i}.attn_q.weight"
std::string numbered(std::string_view name) {
  static const std::regex kNumber(R"(\.\d+(?=\.))");
  return std::regex_replace(std::string(name), kNumber, ".{i}");
}

TEST(GgufNames, AreThoseOfThePublishersTensorsInTheGgufPackage) {
  const json table =
      formats::read_json_file(std::filesystem::path(KVASIR_TEST_DATA) / "models" / "gguf_names.json");
  std::set<std::string> architectures;
  for (const auto& [family, entry] : table.items()) {
    SCOPED_TRACE(family);
    architectures.insert(entry["architecture"].get<std::string>());
    const TestFolder folder("gguf_names");
    const json config = synth_config(family, "tiny", entry["sets"]);
    synthesize(config, synth_format("f32"), 1, folder.path() / "hf");
    synthesize(config, synth_format("gguf-f32"), 1, folder.path() / "m.gguf");
    const auto file = formats::GgufFile::open(folder.path() / "m.gguf");
    EXPECT_EQ(file.string("general.architecture"), entry["architecture"]);
    std::set<std::string> theirs, expected, written;
    const auto hf = formats::SafetensorsModel::open_folder(folder.path() / "hf");
    for (const formats::SafetensorsTensor& tensor : hf.tensors()) theirs.insert(numbered(tensor.name));
    for (const auto& [name, in_gguf] : entry["names"].items()) {
      EXPECT_TRUE(theirs.erase(name)) << "no tensor " << name << ": make the table again";
      for (const json& tensor : in_gguf) expected.insert(tensor.get<std::string>());
    }
    EXPECT_TRUE(theirs.empty()) << "not in the table: " << *theirs.begin();
    for (const formats::GgufTensor& tensor : file.tensors()) written.insert(numbered(tensor.name));
    written.erase("rope_factors_long.weight");  // of no tensor of the publisher
    written.erase("rope_factors_short.weight");
    EXPECT_EQ(written, expected);
  }
  for (const GgufArchitecture& architecture : gguf_architectures())
    EXPECT_TRUE(architectures.contains(std::string(architecture.name))) << architecture.name;
}

}  // namespace
}  // namespace kvasir::models
