// Rewrites that join ops change the program and no bit of the logits.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/test_folder.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;

std::map<std::string, int> kinds(const Model& model) {
  std::map<std::string, int> count;
  for (const program::Program* program : {&model.trunk(), &model.head()})
    for (const auto& op : program->ops()) ++count[std::string(op->kind())];
  return count;
}

TEST(Fusion, SameLogitsWithAndWithout) {
  const TestFolder temporary("fusion");
  const fs::path& folder = temporary.path();
  for (const char* family : {"llama", "gemma3_text", "qwen3"})
    for (const char* format : {"gguf-q4_0", "bf16"}) {
      const fs::path file =
          folder / (std::string(family) + format + (std::string(format) == "bf16" ? "" : ".gguf"));
      synthesize(synth_config(family, "tiny"), synth_format(format), 3, file);
      LoadOptions options = small_options(Activations::automatic, 2);
      auto fused = Model::load(file, options);
      options.fuse = false;
      auto plain = Model::load(file, options);
      auto with = kinds(*fused), without = kinds(*plain);
      const int layers = fused->info().layers;
      const bool head_norms = std::string(family) != "llama";
      EXPECT_EQ(with["rms_norm_prepare"], 2 * layers + 1) << family << " " << format;  // and the head's
      EXPECT_EQ(with["linear_prepare"], layers) << family << " " << format;
      EXPECT_EQ(with[head_norms ? "norm_rope_append" : "rope_append"], layers) << family << " " << format;
      EXPECT_EQ(with["linear_candidates"], 1) << family << " " << format;
      for (const char* joined :
           {"rms_norm_prepare", "linear_prepare", "rope_append", "norm_rope_append", "linear_candidates"})
        EXPECT_EQ(without[joined], 0) << joined;
      for (const char* apart : {"rope", "append_kv", "candidates"}) EXPECT_EQ(with[apart], 0) << apart;
      // Each joins two ops, with the norm of heads three.
      const int spared = 2 * layers + 1 + layers + layers * (head_norms ? 2 : 1) + 1;
      EXPECT_EQ(fused->trunk().ops().size() + fused->head().ops().size() + static_cast<size_t>(spared),
                plain->trunk().ops().size() + plain->head().ops().size());
      EXPECT_EQ(fused->numerics_key().hex(), plain->numerics_key().hex());
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 24; ++i)
        ids.push_back((i * 37 + 11) % static_cast<int32_t>(fused->info().vocab));
      EXPECT_EQ(TestRunner(*fused, 2, 64).run(ids, 8), TestRunner(*plain, 2, 64).run(ids, 24))
          << family << " " << format;
    }
}

}  // namespace
}  // namespace kvasir::models
