// Opening: plans from headers, the ledger to the byte, refusals by name, quantized checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/test_folder.h"
#include "formats/checkpoint.h"
#include "formats/dequantize.h"
#include "formats/json.h"
#include "formats/safetensors_writer.h"
#include "models/config.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Loader : public testing::Test {
 protected:
  LoadOptions options(Activations mode = Activations::f32) const { return small_options(mode); }

  std::string refusal(const fs::path& path, const LoadOptions& how) const {
    try {
      Model::load(path, how);
    } catch (const Error& error) {
      return fmt::format("[{}] {}\n{}", name(error.code()), error.what(), error.details());
    }
    return "loaded";
  }

  // Rewrites the f32 checkpoint at `from` with tensors changed by `edit` (which may drop one by returning
  // false).
  void rewrite(const fs::path& from, const fs::path& to,
               const std::function<bool(std::string& name, std::vector<int64_t>& shape,
                                        std::vector<float>& values)>& edit,
               const json& config = nullptr) const {
    formats::Checkpoint checkpoint = formats::Checkpoint::open(from);
    checkpoint.read_headers();
    std::vector<formats::SafetensorsToWrite> tensors;
    for (const formats::TensorEntry& entry : checkpoint.tensors()) {
      std::string tensor_name = entry.name;
      std::vector<int64_t> shape = entry.shape;
      std::vector<float> values;
      if (shape.size() < 2) {
        values = checkpoint.values(entry);
      } else {
        const formats::WeightSource source = checkpoint.weight(entry);
        values.resize(static_cast<size_t>(source.rows * source.cols));
        for (int64_t r = 0; r < source.rows; ++r)
          formats::dequantize_row(source, r,
                                  {values.data() + r * source.cols, static_cast<size_t>(source.cols)});
        for (float& v : values) v *= source.tensor_scale;
      }
      if (!edit(tensor_name, shape, values)) continue;
      std::vector<std::byte> bytes(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      tensors.push_back(
          {tensor_name, formats::SafetensorsDtype::f32, shape, formats::produce_bytes(std::move(bytes))});
    }
    fs::create_directories(to);
    formats::write_safetensors_model(to, std::move(tensors));
    std::ofstream(to / "config.json") << (config.is_null() ? checkpoint.config() : config).dump();
  }

  const TestFolder temporary_{"loader"};
  const fs::path& path_ = temporary_.path();
};

std::vector<int32_t> some_ids(int32_t vocab) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % vocab);
  return ids;
}

TEST_F(Loader, LedgerEqualsThePlanToTheByte) {
  for (const char* format : {"f32", "bf16", "mlx-affine-4-32", "gguf-q8_0"}) {
    const fs::path file =
        path_ / (std::string(format) + (std::string(format).starts_with("gguf") ? ".gguf" : ""));
    synthesize(synth_config("qwen3", "tiny"), synth_format(format), 1, file);
    for (Activations mode : {Activations::f32, Activations::bf16, Activations::automatic}) {
      LoadOptions how = options(mode);
      MemoryLedger ledger;
      how.ledger = &ledger;
      how.threads = 2;
      ModelInfo info;
      const MemoryPlan plan = Model::plan(file, how, &info);
      EXPECT_EQ(ledger.total(), 0u);
      auto model = Model::load(file, how);
      EXPECT_EQ(ledger.bytes(MemoryCategory::weights), plan.weights_bytes) << format;
      EXPECT_EQ(ledger.bytes(MemoryCategory::workspace), plan.workspace_bytes) << format;
      EXPECT_EQ(model->memory().kv_bytes, plan.kv_bytes);
      EXPECT_EQ(info.vocab, model->info().vocab);
      model.reset();
      EXPECT_EQ(ledger.total(), 0u);
    }
  }
}

TEST_F(Loader, MissingForeignMisshapenAndNonFiniteTensorsAreNamed) {
  const fs::path good = path_ / "good";
  synthesize(synth_config("llama", "tiny"), synth_format("f32"), 1, good);
  EXPECT_EQ(refusal(good, options()), "loaded");

  rewrite(good, path_ / "missing",
          [](auto& n, auto&, auto&) { return n != "model.layers.2.mlp.down_proj.weight"; });
  EXPECT_THAT(refusal(path_ / "missing", options()),
              testing::HasSubstr("model.layers.2.mlp.down_proj.weight"));

  rewrite(good, path_ / "foreign", [](auto& n, auto&, auto&) {
    if (n == "model.norm.weight") n = "model.norm.weight_too";
    return true;
  });
  EXPECT_THAT(refusal(path_ / "foreign", options()), testing::HasSubstr("model.norm.weight"));

  rewrite(
      good, path_ / "extra",
      [](auto& n, auto& shape, auto& values) {
        if (n == "lm_head.weight") {
          n = "model.layers.0.self_attn.extra.weight";
          shape = {static_cast<int64_t>(values.size())};
        }
        return true;
      },
      synth_config("llama", "tiny", {{"tie_word_embeddings", nullptr}}));
  EXPECT_THAT(refusal(path_ / "extra", options()),
              testing::HasSubstr("model.layers.0.self_attn.extra.weight"));

  rewrite(
      good, path_ / "shape", [](auto&, auto&, auto&) { return true; },
      synth_config("llama", "tiny", {{"intermediate_size", 95}}));
  EXPECT_THAT(refusal(path_ / "shape", options()),
              testing::AllOf(testing::HasSubstr("mlp."), testing::HasSubstr("95")));

  for (const char* where :
       {"model.layers.1.input_layernorm.weight", "model.layers.3.self_attn.q_proj.weight"}) {
    rewrite(good, path_ / "nan", [&](auto& n, auto&, auto& values) {
      if (n == where) values[5] = std::nanf("");
      return true;
    });
    EXPECT_THAT(refusal(path_ / "nan", options()),
                testing::AllOf(testing::HasSubstr("corrupt_file"), testing::HasSubstr(where),
                               testing::HasSubstr((path_ / "nan").string())));
    fs::remove_all(path_ / "nan");
  }
}

// All of it is told by the plan, which opens no data.
TEST_F(Loader, HeadersAloneTellWhatCannotBeLoaded) {
  const fs::path good = path_ / "good";
  synthesize(synth_config("llama", "tiny"), synth_format("f32"), 1, good);
  auto planned = [&](const fs::path& path) -> std::string {
    try {
      Model::plan(path, options());
    } catch (const Error& error) {
      return fmt::format("[{}] {}\n{}", name(error.code()), error.what(), error.details());
    }
    return "planned";
  };
  EXPECT_EQ(planned(good), "planned");

  // Missing ones are counted, and the first sixteen named.
  rewrite(good, path_ / "missing",
          [](auto& n, auto&, auto&) { return n.find("_norm") != n.npos || n.find(".mlp.") == n.npos; });
  const std::string missing = planned(path_ / "missing");
  EXPECT_THAT(missing, testing::AllOf(testing::HasSubstr("[not_found]"),
                                      testing::HasSubstr("12 tensors are missing that a llama model needs"),
                                      testing::HasSubstr("\nmodel.layers.0.mlp.gate_proj.weight"),
                                      testing::HasSubstr("\nmodel.layers.3.mlp.up_proj.weight")));
  rewrite(good, path_ / "bare", [](auto& n, auto&, auto&) { return n == "model.norm.weight"; });
  const std::string bare = planned(path_ / "bare");
  EXPECT_THAT(bare, testing::HasSubstr("38 tensors are missing"));
  EXPECT_EQ(std::count(bare.begin(), bare.end(), '\n'), 16);

  // Shapes are those of the configuration, however many elements they have.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 64}, {64, 1}, {8, 8}}) {
    const fs::path folder = path_ / fmt::format("shape-{}", shape[0]);
    rewrite(good, folder, [&](auto& n, auto& s, auto&) {
      if (n == "model.layers.1.input_layernorm.weight") s = shape;
      return true;
    });
    EXPECT_THAT(planned(folder),
                testing::AllOf(testing::HasSubstr("[corrupt_file]"),
                               testing::HasSubstr("model.layers.1.input_layernorm.weight has shape"),
                               testing::HasSubstr("expected [64]")));
  }

  // Integers are no weights, of norms and of matrices.
  for (const auto& [what, dtype, bytes] :
       {std::tuple{"model.norm.weight", formats::SafetensorsDtype::i32, size_t{4}},
        std::tuple{"model.layers.0.mlp.up_proj.weight", formats::SafetensorsDtype::i8, size_t{1}}}) {
    formats::Checkpoint checkpoint = formats::Checkpoint::open(good);
    checkpoint.read_headers();
    std::vector<formats::SafetensorsToWrite> tensors;
    for (const formats::TensorEntry& entry : checkpoint.tensors()) {
      const bool changed = entry.name == what;
      const size_t size = static_cast<size_t>(entry.rows() * entry.cols()) * (changed ? bytes : 4);
      tensors.push_back({entry.name, changed ? dtype : formats::SafetensorsDtype::f32, entry.shape,
                         formats::produce_bytes(std::vector<std::byte>(size))});
    }
    const fs::path folder = path_ / fmt::format("integers-{}", bytes);
    fs::create_directories(folder);
    formats::write_safetensors_model(folder, std::move(tensors));
    fs::copy(good / "config.json", folder / "config.json");
    EXPECT_THAT(planned(folder), testing::AllOf(testing::HasSubstr("[unsupported]"), testing::HasSubstr(what),
                                                testing::HasSubstr((folder / "model.safetensors").string()),
                                                testing::HasSubstr(bytes == 4 ? "type i32" : "type i8")));
  }
}

// minicpm's row: without a head the embedding is it, whatever tie_word_embeddings says.
TEST_F(Loader, MinicpmWithoutAHeadIsTied) {
  const json config = synth_config("minicpm", "tiny");
  ASSERT_EQ(config["tie_word_embeddings"], false);
  synthesize(config, synth_format("f32"), 1, path_ / "whole");
  rewrite(path_ / "whole", path_ / "headless", [](auto& n, auto&, auto&) { return n != "lm_head.weight"; });
  synthesize(synth_config("minicpm", "tiny", {{"tie_word_embeddings", true}}), synth_format("f32"), 1,
             path_ / "tied");
  const auto logits = [&](const char* folder) {
    auto model = Model::load(path_ / folder, options());
    return TestRunner(*model, 1, 64, 1, 32).run(some_ids(128), 24);
  };
  EXPECT_EQ(logits("headless"), logits("tied"));
  EXPECT_NE(logits("headless"), logits("whole"));
}

// What the plan found odd about a checkpoint is part of what it says of the model.
TEST_F(Loader, WarningsOfTheShapesAreTold) {
  synthesize(synth_config("llama", "tiny"), synth_format("mlx-affine-4-32"), 1, path_ / "m");
  json config = formats::read_json_file(path_ / "m" / "config.json");
  config["quantization"]["bits"] = 8;
  std::ofstream(path_ / "m" / "config.json") << config.dump();
  ModelInfo info;
  Model::plan(path_ / "m", options(), &info);
  EXPECT_THAT(info.warnings,
              testing::ElementsAre(testing::HasSubstr("the quantization defaults do not fit")));
  std::vector<std::string> notes;
  LoadOptions how = options();
  how.note = [&](const std::string& text) { notes.push_back(text); };
  Model::load(path_ / "m", how);
  EXPECT_EQ(notes, info.warnings);
}

// What other tools call the mode (formats.md, model-selection.md 2.3).
TEST_F(Loader, QuantMethodMxfp4IsMlxsMode) {
  synthesize(synth_config("llama", "tiny"), synth_format("mlx-mxfp4"), 1, path_ / "m");
  const auto logits = [&] {
    auto model = Model::load(path_ / "m", options());
    return TestRunner(*model, 1, 64, 1, 32).run(some_ids(128), 24);
  };
  const auto want = logits();
  json config = formats::read_json_file(path_ / "m" / "config.json");
  config.erase("quantization");
  config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  std::ofstream(path_ / "m" / "config.json") << config.dump();
  EXPECT_EQ(logits(), want);
}

TEST_F(Loader, OptionsAreRefusedBeforeWeightsAreRead) {
  const fs::path file = path_ / "m";
  synthesize(synth_config("llama", "tiny"), synth_format("f32"), 1, file);
  EXPECT_THAT(refusal(file, options(Activations::int8)),
              testing::AllOf(testing::HasSubstr("unsupported"), testing::HasSubstr("int8")));
  LoadOptions bad = options();
  bad.rows = 0;
  EXPECT_THAT(refusal(file, bad), testing::HasSubstr("batch is 0"));
  bad = options();
  bad.chunk = 1;
  bad.rows = 2;
  EXPECT_THAT(refusal(file, bad), testing::HasSubstr("chunk is 1"));
  bad = options();
  bad.progress = [](size_t, size_t) { return false; };
  EXPECT_THAT(refusal(file, bad), testing::HasSubstr("cancelled"));
}

TEST_F(Loader, TheFactsAreAcceptedBeforeWeightsAreRead) {
  const fs::path file = path_ / "m";
  synthesize(synth_config("llama", "tiny"), synth_format("f32"), 1, file);
  LoadOptions with = options();
  std::vector<int64_t> seen;
  int steps = 0;
  with.progress = [&](size_t, size_t) { return ++steps > 0; };
  with.accept = [&](const ModelInfo& info) {
    EXPECT_EQ(steps, 0);
    seen.push_back(info.vocab);
  };
  Model::plan(file, with);
  EXPECT_EQ(seen, std::vector<int64_t>{128});
  Model::load(file, with);
  EXPECT_EQ(seen, (std::vector<int64_t>{128, 128}));
  EXPECT_GT(steps, 0);
  steps = 0;
  with.accept = [](const ModelInfo&) { throw_error(ErrorCode::invalid_input, "not this one"); };
  EXPECT_THAT(refusal(file, with), testing::HasSubstr("not this one"));
  EXPECT_EQ(steps, 0);
}

TEST_F(Loader, TokensOutsideTheVocabularyAreNamed) {
  const fs::path file = path_ / "m";
  synthesize(synth_config("llama", "tiny"), synth_format("f32"), 1, file);
  auto model = Model::load(file, options());
  const std::vector<int32_t> ids = {0, 127, 128};
  EXPECT_THAT([&] { model->check_tokens(ids); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("token 128 at position 2")));
}

// A quantized checkpoint gives the logits of its own de-quantized values.
TEST_F(Loader, QuantizedCheckpointsMatchTheirValues) {
  const json config = synth_config("llama", "small", {{"num_hidden_layers", 2}});
  for (const char* format : {"f16", "bf16", "mlx-affine-4-64", "mlx-affine-8-32", "mlx-affine-3-32",
                             "mlx-mxfp4", "mlx-mxfp8", "mlx-nvfp4"}) {
    const fs::path file = path_ / format, plain = path_ / (std::string(format) + "-plain");
    synthesize(config, synth_format(format), 9, file);
    rewrite(
        file, plain, [](auto&, auto&, auto&) { return true; }, config);
    const std::vector<int32_t> ids = some_ids(1024);
    auto a = Model::load(file, options());
    auto b = Model::load(plain, options());
    TestRunner run_a(*a, 1, 64, 1, 32), run_b(*b, 1, 64, 1, 32);
    const auto x = run_a.run(ids, 24), y = run_b.run(ids, 24);
    double scale = 0, difference = 0;
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t i = 0; i < x[t].size(); ++i) {
        scale = larger(scale, std::abs(y[t][i]));
        difference = larger(difference, std::abs(x[t][i] - y[t][i]));
      }
    EXPECT_LE(difference, 2e-5 * scale) << format;
    EXPECT_LE(static_cast<double>(a->memory().weights_bytes),
              1.03 * static_cast<double>(a->memory().stored_bytes) + 16384)
        << format;
  }
}

// What runs is in the key, not how it was asked for: a store serves whoever computes the same bits.
TEST_F(Loader, AutoHasTheKeyOfTheModeThatItComesTo) {
  for (const auto& [format, mode] : {std::pair{"f32", Activations::f32}, std::pair{"bf16", Activations::bf16},
                                     std::pair{"gguf-q8_0", Activations::int8}}) {
    const fs::path file = path_ / (std::string(format) + (format[0] == 'g' ? ".gguf" : ""));
    synthesize(synth_config("llama", "small", {{"num_hidden_layers", 2}}), synth_format(format), 4, file);
    const std::vector<int32_t> ids = some_ids(1024);
    const auto computed = [&](Activations asked) {
      auto model = Model::load(file, options(asked));
      return std::pair(model->numerics_key(), TestRunner(*model, 1, 64, 1, 32).run(ids, 24));
    };
    const auto automatic = computed(Activations::automatic);
    EXPECT_EQ(automatic, computed(mode)) << format;
    for (const Activations other : {Activations::f32, Activations::bf16})
      EXPECT_EQ(automatic.first == computed(other).first, other == mode) << format;
  }
}

// Every activation mode gives equal bits for every chunk and team, on every level that this machine has.
TEST_F(Loader, BitsDoNotDependOnChunksOrThreadsInAnyMode) {
  const fs::path file = path_ / "m.gguf";
  synthesize(synth_config("llama", "small", {{"num_hidden_layers", 2}}), synth_format("gguf-q4_K"), 2, file);
  const std::vector<int32_t> ids = some_ids(1024);
  for (IsaLevel isa : compiled_isa_levels()) {
    if (!machine_has(isa)) continue;
    for (Activations mode : {Activations::f32, Activations::bf16, Activations::int8, Activations::int16}) {
      std::vector<std::vector<float>> want;
      for (int threads : {1, 2})
        for (int64_t chunk : {24, 1, 7}) {
          LoadOptions how = options(mode);
          how.isa = isa;
          how.threads = threads;
          auto model = Model::load(file, how);
          TestRunner runner(*model, threads, 64, 1, 32);
          const auto got = runner.run(ids, chunk);
          if (want.empty()) want = got;
          ASSERT_EQ(got, want) << name(isa) << " " << name(mode) << " threads " << threads << " chunk "
                               << chunk;
        }
    }
  }
}

// The same of other kinds of family (windows and caps, experts, norms behind, fused projections), and of a
// row beside another one.
TEST_F(Loader, BitsDoNotDependOnChunksThreadsOrRowsInAnyFamily) {
  struct Kind {
    const char *family, *format;
  };
  for (const Kind& kind : {Kind{"gemma2", "gguf-q4_0"}, Kind{"qwen3_moe", "mlx-affine-4-32"},
                           Kind{"olmo2", "gguf-q4_1"}, Kind{"phi3", "bf16"}}) {
    const bool gguf = std::string_view(kind.format).starts_with("gguf");
    const fs::path file = path_ / (std::string(kind.family) + (gguf ? ".gguf" : ""));
    synthesize(synth_config(kind.family, "tiny"), synth_format(kind.format), 2, file);
    const bool integers = std::string_view(kind.format) != "bf16";
    for (IsaLevel isa : compiled_isa_levels()) {
      if (!machine_has(isa)) continue;
      for (Activations mode : {Activations::f32, Activations::bf16, Activations::int8, Activations::int16}) {
        if (!integers && (mode == Activations::int8 || mode == Activations::int16)) continue;
        LoadOptions how = options(mode);
        how.isa = isa;
        how.rows = 2;
        const auto loaded = [&](int threads) {
          how.threads = threads;
          return Model::load(file, how);
        };
        const auto where = [&](const char* what) {
          return fmt::format("{} {} {} {}", kind.family, name(isa), name(mode), what);
        };
        const auto one = loaded(1), two = loaded(2);
        const std::vector<int32_t> ids = some_ids(static_cast<int32_t>(one->info().vocab));
        const auto want = TestRunner(*one, 1, 64, 1, 32).run(ids, static_cast<int64_t>(ids.size()));
        ASSERT_EQ(TestRunner(*one, 1, 64, 1, 32).run(ids, 1), want) << where("one at a time");
        ASSERT_EQ(TestRunner(*two, 2, 64, 1, 32).run(ids, 7), want) << where("two threads");
        // Beside another row, whose steps have other sizes.
        TestRunner both(*two, 2, 64, 2, 32);
        for (size_t at = 0, step = 1; at < ids.size(); ++step) {
          const size_t count = std::min(ids.size() - at, 1 + step % 5);
          const std::vector<int32_t> other(ids.rbegin() + static_cast<int64_t>(step % 4),
                                           ids.rbegin() + static_cast<int64_t>(step % 4 + 1 + step % 3));
          const auto got = both.step(
              {{ids.begin() + static_cast<int64_t>(at), ids.begin() + static_cast<int64_t>(at + count)},
               other});
          for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], want[at + i]) << where("two rows");
          at += count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::models
