#include "hub/local_stores.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir::hub {
namespace {

const std::string kDigest(64, 'd');

TEST(LocalStores, OllamaManifest) {
  const std::string layers =
      R"({"schemaVersion":2,"layers":[{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:x"},
    {"mediaType":"application/vnd.ollama.image.model","digest":"sha256:)" +
      kDigest + R"(","size":5}]})";
  EXPECT_EQ(parse_ollama_manifest(layers, "m"), "sha256-" + kDigest);
  const auto model = [](const std::string& digest) {
    return R"({"mediaType":"application/vnd.ollama.image.model","digest":")" + digest + "\"}";
  };
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("x"), std::string(R"({"layers":[]})"),
        std::string(R"({"layers":[5]})"), "{\"layers\":[" + model("sha256:../../../etc/passwd") + "]}",
        "{\"layers\":[" + model("md5:" + kDigest) + "]}",
        "{\"layers\":[" + model("sha256:" + kDigest) + "," + model("sha256:" + kDigest) + "]}"})
    EXPECT_THROW((void)parse_ollama_manifest(text, "m"), Error) << text;
}

LocalModel gguf(const std::string& name, const std::string& quant) {
  LocalModel model;
  model.name = name;
  model.quant = quant;
  model.path = "/x/" + name + ".gguf";
  model.files = {model.path};
  return model;
}

TEST(LocalStores, Choose) {
  std::vector<LocalModel> models = {gguf("m-Q8_0", "Q8_0"), gguf("m-Q4_K_M", "Q4_K_M")};
  ModelReference reference;
  reference.repo = "org/name";
  EXPECT_THROW((void)choose(models, reference), Error);
  reference.quant = "q4_k_m";
  EXPECT_EQ(choose(models, reference), &models[1]);
  reference.quant = "Q4_K_S";
  EXPECT_EQ(choose(models, reference), nullptr);
  reference.quant = "";
  reference.file = "m-Q8_0.gguf";
  EXPECT_EQ(choose(models, reference), &models[0]);
  reference.file = "";
  // Safetensors are what the plain name means.
  LocalModel folder;
  folder.name = "org/name";
  folder.path = "/x";
  folder.files = {"/x/config.json"};
  models.push_back(folder);
  EXPECT_EQ(choose(models, reference), &models[2]);
  EXPECT_EQ(choose(std::span(models).first(1), reference), &models[0]);
  EXPECT_EQ(choose({}, reference), nullptr);
}

}  // namespace
}  // namespace kvasir::hub
