#include "hub/local_stores.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/test_folder.h"

namespace kvasir::hub {
namespace {

const std::string kDigest(64, 'd');

TEST(LocalStores, OllamaManifest) {
  const std::string layers =
      R"({"schemaVersion":2,"layers":[{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:x"},
    {"mediaType":"application/vnd.ollama.image.model","digest":"sha256:)" +
      kDigest + R"(","size":5}]})";
  EXPECT_EQ(parse_ollama_manifest(layers, "m").model, "sha256-" + kDigest);
  EXPECT_EQ(parse_ollama_manifest(layers, "m").projector, "");
  const auto model = [](const std::string& digest) {
    return R"({"mediaType":"application/vnd.ollama.image.model","digest":")" + digest + "\"}";
  };
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("x"), std::string(R"({"layers":[]})"),
        std::string(R"({"layers":[5]})"), "{\"layers\":[" + model("sha256:../../../etc/passwd") + "]}",
        "{\"layers\":[" + model("md5:" + kDigest) + "]}",
        "{\"layers\":[" + model("sha256:" + kDigest) + "," + model("sha256:" + kDigest) + "]}"})
    EXPECT_THROW((void)parse_ollama_manifest(text, "m"), Error) << text;
  const std::string eyes(64, 'e');
  const OllamaBlobs blobs = parse_ollama_manifest(
      "{\"layers\":[" + model("sha256:" + kDigest) +
          R"(,{"mediaType":"application/vnd.ollama.image.projector","digest":"sha256:)" + eyes + "\"}]}",
      "m");
  EXPECT_EQ(blobs.model, "sha256-" + kDigest);
  EXPECT_EQ(blobs.projector, "sha256-" + eyes);
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

// What downloads left is listed beside the models, and stands in for a repository that has none.
TEST(LocalStores, IncompleteDownloads) {
  namespace fs = std::filesystem;
  const TestFolder folder("stores");
  const HubCache cache(folder.path());
  const std::string digest(40, 'a'), other(40, 'b'), commit(40, 'c');
  const auto write = [](const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  };
  fs::create_directories(cache.repo_folder("org/empty") / "blobs");
  write(cache.incomplete("org/cut", digest), "12345");
  write(cache.incomplete("org/cut", digest).string() + "-9", "12");
  write(cache.blob("org/small", digest), "{}");
  cache.link("org/small", commit, "config.json", digest);
  write(cache.blob("org/model", digest), "GGUF");
  cache.link("org/model", commit, "m-Q8_0.gguf", digest);
  write(cache.blob("org/part", digest), "GGUF");
  cache.link("org/part", commit, "m-Q8_0-00001-of-00002.gguf", digest);
  write(cache.incomplete("org/part", other), "123");

  const std::vector<LocalModel> models = scan_huggingface(cache);
  std::vector<std::string> names;
  names.reserve(models.size());
  for (const LocalModel& model : models) names.push_back(model.name);
  ASSERT_EQ(names, (std::vector<std::string>{"org/cut", "org/model:Q8_0", "org/part:Q8_0",
                                             "org/part:incomplete", "org/small"}));
  EXPECT_TRUE(models[0].incomplete && models[3].incomplete && models[4].incomplete);
  EXPECT_FALSE(models[1].incomplete || models[2].incomplete);
  EXPECT_EQ(models[0].bytes, 7u);
  EXPECT_EQ(models[0].files.size(), 2u);
  EXPECT_EQ(models[3].bytes, 3u);
  EXPECT_EQ(models[4].bytes, 2u);
  EXPECT_EQ(models[4].commit, commit);
  EXPECT_TRUE(models[2].problem_by_name && !models[1].problem_by_name);
  // Names that a reference is resolved among are those of models.
  EXPECT_TRUE(scan_repository(cache, "org/cut", {}).empty());
}

// One snapshot stands for a repository: main's, else the newest; where that holds no model, the newest that
// does.
TEST(LocalStores, CanonicalRevisions) {
  namespace fs = std::filesystem;
  const TestFolder folder("revisions");
  const HubCache cache(folder.path());
  const std::string old_commit(40, '1'), new_commit(40, '2'), blob(40, 'a');
  const auto snapshot = [&](const std::string& repo, const std::string& commit, const char* file, int hours) {
    fs::create_directories(cache.repo_folder(repo) / "blobs");
    std::ofstream(cache.blob(repo, blob), std::ios::binary) << "GGUF";
    cache.link(repo, commit, file, blob);
    fs::last_write_time(cache.snapshot(repo, commit),
                        fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const auto canonical = [&](const std::string& repo) {
    std::vector<std::string> names;
    for (const LocalModel& model : scan_repository(cache, repo, {}))
      if (model.canonical) names.push_back(model.commit);
    return names;
  };
  for (const char* repo : {"org/main", "org/none", "org/small"}) {
    snapshot(repo, old_commit, "m-Q8_0.gguf", 2);
    snapshot(repo, new_commit, repo == std::string("org/small") ? "config.json" : "m-Q8_0.gguf", 1);
  }
  cache.write_ref("org/main", "main", old_commit);
  cache.write_ref("org/small", "main", new_commit);
  EXPECT_EQ(canonical("org/main"), std::vector<std::string>{old_commit});
  EXPECT_EQ(canonical("org/none"), std::vector<std::string>{new_commit});
  EXPECT_EQ(canonical("org/small"), std::vector<std::string>{old_commit});
}

}  // namespace
}  // namespace kvasir::hub
