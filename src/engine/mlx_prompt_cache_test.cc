// Caches that mlx-lm has computed and saved (tools/oracles/mlx_prompt_cache.py, both forms of its files):
// imported, they are gone on with as mlx-lm itself does, and exported again they are the same files. Nobody
// else ever begins with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/test_folder.h"
#include "engine/logit_run.h"
#include "engine/store_options.h"
#include "engine/tiny_models.h"
#include "formats/json.h"
#include "kv/mlx_exchange.h"
#include "models/mlx_lm.h"

namespace kvasir::engine {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(KVASIR_TEST_DATA) / "kv" / "mlx";

const nlohmann::json& golden() {
  static const nlohmann::json kGolden = formats::read_json_file(kFolder / "cases.json", size_t{4} << 20);
  return kGolden;
}

const nlohmann::json& case_named(std::string_view name) {
  for (const auto& c : golden()["cases"])
    if (c["name"] == name) return c;
  throw_error(ErrorCode::internal, "no case {}", name);
}

fs::path checkpoint(const std::string& family) {
  static const auto kFolders = [] {
    std::map<std::string, fs::path> folders;
    for (const auto& [name, model] : golden()["models"].items()) {
      folders[name] = testing::tiny_models().folder() / ("mlx-prompt-" + name);
      models::synthesize(models::synth_config(name, "tiny", model["settings"]), models::synth_format("f32"),
                         model["seed"].get<uint64_t>(), folders[name]);
    }
    return folders;
  }();
  return kFolders.at(family);
}

EngineOptions options_for(const std::string& spec, int page = 16) {
  EngineOptions options;
  options.load.context = 32;
  options.load.chunk = 8;
  options.load.logits = 8;
  options.load.page_tokens = page;
  options.load.activations = models::Activations::f32;
  options.load.kv.spec = spec;
  return options;
}

std::vector<int32_t> tokens(int32_t count = 16) {
  auto ids = golden()["tokens"].get<std::vector<int32_t>>();
  ids.resize(static_cast<size_t>(count));
  return ids;
}

// The logits of the tokens after those that the row has.
std::vector<std::vector<float>> go_on(Engine& engine, Context& row) {
  const std::vector<int32_t> ids = tokens();
  std::vector<std::vector<float>> out;
  LogitRun run;
  run.row = &row;
  run.ids = std::span(ids).subspan(row.tokens.size());
  const auto vocab = static_cast<size_t>(engine.model().info().vocab);
  run.visit = [&](int64_t, const float* logits) { out.emplace_back(logits, logits + vocab); };
  run_logits(engine, run);
  return out;
}

// Tensors of a file by name, those of one layer's columns cut to the live ones (nothing is live behind
// `offset`).
std::map<std::string, std::vector<std::byte>> live_tensors(const fs::path& path) {
  const formats::SafetensorsFile file = formats::SafetensorsFile::open(path);
  const kv::MlxCacheFile cache = kv::MlxCacheFile::open(path);
  std::map<std::string, std::vector<std::byte>> out;
  for (const formats::SafetensorsTensor& tensor : file.tensors()) {
    const auto bytes = file.data(tensor);
    std::vector<std::byte>& live = out[std::string(tensor.name)];
    live.assign(bytes.begin(), bytes.end());
    const auto layer = static_cast<size_t>(std::stoi(std::string(tensor.name)));
    if (tensor.shape.size() != 4 || tensor.shape[2] <= cache.layers()[layer].offset) continue;
    const auto columns = static_cast<size_t>(tensor.shape[2]);
    EXPECT_EQ(tensor.shape[1], 1);  // so that live rows lie together
    live.resize(bytes.size() / columns * static_cast<size_t>(cache.layers()[layer].offset));
  }
  return out;
}

TEST(MlxPromptCache, IsGoneOnWithAsMlxDoes) {
  for (const auto& c : golden()["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    for (const int page : {16, 64}) {
      const auto engine = Engine::open(checkpoint(c["family"]), options_for(c["kv"], page));
      const kv::MlxCacheFile file = kv::MlxCacheFile::open(kFolder / c["file"]);
      const auto prompt = c["prompt"].get<int32_t>();
      ASSERT_EQ(file.offset(), prompt);
      Context row{kv::import_mlx_cache(engine->cache(), file), tokens(prompt)};
      EXPECT_EQ(row.sequence.offset(), prompt);
      EXPECT_EQ(row.sequence.origin().engine, "mlx-lm");
      const std::vector<std::vector<float>> logits = go_on(*engine, row);
      ASSERT_EQ(logits.size(), c["logits"].size());
      for (size_t t = 0; t < logits.size(); ++t)
        for (size_t i = 0; i < logits[t].size(); ++i)
          ASSERT_NEAR(logits[t][i], c["logits"][t][i].get<double>(), 2e-5) << "token " << t << " logit " << i;
    }
  }
}

// GGUF's llama family stores the rows of its queries and keys in another order, which pages do not show.
TEST(MlxPromptCache, FitsTheSameModelAsGguf) {
  const auto& model = golden()["models"]["llama"];
  const fs::path path = testing::tiny_models().folder() / "mlx-prompt-llama.gguf";
  models::synthesize(models::synth_config("llama", "tiny", model["settings"]),
                     models::synth_format("gguf-f32"), model["seed"].get<uint64_t>(), path);
  const auto engine = Engine::open(path, options_for("f32"));
  const auto& c = case_named("llama-f32");
  Context row{kv::import_mlx_cache(engine->cache(), kv::MlxCacheFile::open(kFolder / c["file"])), tokens(10)};
  const std::vector<std::vector<float>> logits = go_on(*engine, row);
  ASSERT_EQ(logits.size(), 6u);
  for (size_t t = 0; t < logits.size(); ++t)
    for (size_t i = 0; i < logits[t].size(); ++i)
      ASSERT_NEAR(logits[t][i], c["logits"][t][i].get<double>(), 2e-5) << "token " << t << " logit " << i;
}

// What mlx-lm has computed lies in the pages as what kvasir computes of the same tokens: where a layer's
// rope, its order of channels, heads or positions were other ones, everything would differ.
TEST(MlxPromptCache, HoldsWhatKvasirComputes) {
  for (const char* name :
       {"llama-f32", "llama-f32-before", "gemma-short", "gemma-long", "gemma-chunks", "gemma-turned"}) {
    SCOPED_TRACE(name);
    const auto& c = case_named(name);
    const auto engine = Engine::open(checkpoint(c["family"]), options_for("f32"));
    const kv::Sequence theirs =
        kv::import_mlx_cache(engine->cache(), kv::MlxCacheFile::open(kFolder / c["file"]));
    Context own = engine->new_context();
    engine->prefill(own, tokens(theirs.offset()));
    for (size_t g = 0; g < engine->cache().groups(); ++g) {
      ASSERT_EQ(theirs.first_stored(g), own.sequence.first_stored(g));
      const int32_t first = own.sequence.first_stored(g), count = own.sequence.offset() - first;
      const auto a = theirs.bytes(g, first, count), b = own.sequence.bytes(g, first, count);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); i += sizeof(float)) {
        float x = 0, y = 0;
        std::memcpy(&x, &a[i], sizeof x);
        std::memcpy(&y, &b[i], sizeof y);
        ASSERT_NEAR(x, y, 2e-5) << "group " << g << " element " << i / sizeof(float);
      }
    }
  }
}

TEST(MlxPromptCache, IsExportedAsMlxSavedIt) {
  for (const auto& c : golden()["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const TestFolder folder("mlx-export");
    const auto engine = Engine::open(checkpoint(c["family"]), options_for(c["kv"]));
    const kv::MlxCacheFile file = kv::MlxCacheFile::open(kFolder / c["file"]);
    kv::DiskStore::Options options =
        store_options(engine->model(), engine->memory().kv_key, checkpoint(c["family"]));
    options.dir = folder.path();
    kv::DiskStore store(options);
    store.save("x", "", tokens(file.offset()), kv::import_mlx_cache(engine->cache(), file), "");
    const kv::KvkFile entry = kv::KvkFile::open(kv::find_entry(folder.path(), "x"), true);
    const models::MlxLmFamily* family = models::mlx_lm_family(c["family"].get<std::string>());
    ASSERT_NE(family, nullptr);
    kv::export_mlx_cache(entry, folder.path() / "out.safetensors", file.form(), family->windows);
    const kv::MlxCacheFile back = kv::MlxCacheFile::open(folder.path() / "out.safetensors");
    EXPECT_EQ(back.form(), file.form());
    // A ring that has turned, or that holds more than its window, comes back in order.
    const bool other_order =
        std::any_of(file.layers().begin(), file.layers().end(), [](const kv::MlxLayer& layer) {
          return layer.kind == kv::MlxLayer::Kind::rotating && layer.offset > layer.window;
        });
    if (!other_order) {
      EXPECT_EQ(live_tensors(kFolder / c["file"]), live_tensors(folder.path() / "out.safetensors"));
    }
    for (size_t layer = 0; layer < file.layers().size(); ++layer) {
      const kv::MlxLayer &a = file.layers()[layer], &b = back.layers()[layer];
      EXPECT_EQ(a.kind, b.kind);
      EXPECT_EQ(a.window, b.window);
      EXPECT_EQ(b.offset, file.offset());
      EXPECT_EQ(b.first, a.window > 0 ? std::max(0, b.offset - a.window) : 0);
      for (size_t plane = 0; plane < (a.kind == kv::MlxLayer::Kind::quantized ? 6u : 2u); ++plane)
        for (int32_t position = b.first; position < b.offset; ++position)
          EXPECT_TRUE(
              std::ranges::equal(file.row(layer, plane, 0, position), back.row(layer, plane, 0, position)))
              << "layer " << layer << " plane " << plane << " position " << position;
    }
  }
}

// An f32 cache holds f16 and bf16 ones exactly; narrower ones hold none that is wider.
TEST(MlxPromptCache, IsWidenedAndNeverRounded) {
  const kv::MlxCacheFile file = kv::MlxCacheFile::open(kFolder / "llama-bf16.safetensors");
  const auto wide = Engine::open(checkpoint("llama"), options_for("f32"));
  const auto same = Engine::open(checkpoint("llama"), options_for("bf16"));
  const auto a = kv::import_mlx_cache(wide->cache(), file).bytes(0, 0, 10);
  const auto b = kv::import_mlx_cache(same->cache(), file).bytes(0, 0, 10);
  ASSERT_EQ(a.size(), 2 * b.size());
  for (size_t i = 0; i < b.size(); i += 2) {
    uint16_t half = 0;
    float whole = 0;
    std::memcpy(&half, &b[i], sizeof half);
    std::memcpy(&whole, &a[2 * i], sizeof whole);
    ASSERT_EQ(whole, bf16_to_f32(half));
  }
  const kv::MlxCacheFile f32 = kv::MlxCacheFile::open(kFolder / "llama-f32.safetensors");
  const kv::MlxCacheFile q8 = kv::MlxCacheFile::open(kFolder / "llama-q8-64.safetensors");
  const auto refused = [](Engine& engine, const kv::MlxCacheFile& cache) -> std::string {
    try {
      kv::import_mlx_cache(engine.cache(), cache);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_EQ(engine.cache().used_bytes(), 0u);
      return error.what();
    }
    return {};
  };
  EXPECT_NE(
      refused(*same, f32).find("layer 0 is f32, which a cache of bf16 cannot hold as it is: use --kv f32"),
      std::string::npos);
  EXPECT_NE(refused(*wide, q8).find("use --kv affine:8:64:f32"), std::string::npos);
  const auto q4 = Engine::open(checkpoint("llama"), options_for("affine:4:64:f32"));
  EXPECT_NE(refused(*q4, q8).find("use --kv affine:8:64:f32"), std::string::npos);
  EXPECT_NE(refused(*q4, f32).find("use --kv f32"), std::string::npos);
  const auto narrow = Engine::open(checkpoint("llama"), options_for("affine:8:64:f16"));
  EXPECT_NE(refused(*narrow, q8).find("use --kv affine:8:64:f32"), std::string::npos);
  const auto gemma = Engine::open(checkpoint("gemma3_text"), options_for("f32"));
  EXPECT_NE(refused(*gemma, f32).find("2 cached layers but model has 3"), std::string::npos);
  const kv::MlxCacheFile ring = kv::MlxCacheFile::open(kFolder / "gemma-turned.safetensors");
  EXPECT_NE(refused(*wide, ring).find("3 cached layers but model has 2"), std::string::npos);
}

// Delayed conversion: a plain cache of at most `start` tokens is the row's plain stage, a quantized one the
// encoded.
TEST(MlxPromptCache, ConvertsLaterWhereTheSchemeSaysSo) {
  const kv::MlxCacheFile f32 = kv::MlxCacheFile::open(kFolder / "llama-f32.safetensors");
  const kv::MlxCacheFile q8 = kv::MlxCacheFile::open(kFolder / "llama-q8-64.safetensors");
  const auto open = [](int32_t start) {
    EngineOptions options = options_for("affine:8:64:f32");
    options.load.kv.start = start;
    options.load.kv.plain = "f32";
    return Engine::open(checkpoint("llama"), options);
  };
  const auto late = open(12), early = open(6);
  Context row{kv::import_mlx_cache(late->cache(), f32), tokens(10)};
  EXPECT_FALSE(row.sequence.encoded());
  EXPECT_EQ(go_on(*late, row).size(), 6u);
  EXPECT_TRUE(row.sequence.encoded());
  EXPECT_EQ(row.sequence.origin().engine, "mlx-lm");
  EXPECT_THROW(kv::import_mlx_cache(early->cache(), f32), Error);
  EXPECT_THROW(kv::import_mlx_cache(late->cache(), q8), Error);
  const kv::Sequence encoded = kv::import_mlx_cache(early->cache(), q8);
  EXPECT_TRUE(encoded.encoded());
  EXPECT_EQ(encoded.min_reusable(), 6);
}

// Design law 1: other kernels give other bits, so what they have computed serves those alone who name it.
TEST(MlxPromptCache, ServesNobodyWhoDoesNotNameIt) {
  for (const char* name : {"llama-f32", "gemma-turned"}) {
    SCOPED_TRACE(name);
    const TestFolder folder("mlx-law");
    const auto& c = case_named(name);
    EngineOptions options = options_for("f32");
    options.prefix_cache = true;
    options.prefix_bytes = size_t{1} << 22;
    options.prefix_disk = {.folder = folder.path(), .bytes = uint64_t{1} << 30, .warn = {}};
    std::vector<std::string> warnings;
    const auto engine = Engine::open(checkpoint(c["family"]), options);
    kv::DiskStore::Options where =
        store_options(engine->model(), engine->memory().kv_key, checkpoint(c["family"]));
    where.dir = folder.path();
    where.warn = [&](const std::string& text) { warnings.push_back(text); };
    kv::DiskStore store(where);
    Context row{kv::import_mlx_cache(engine->cache(), kv::MlxCacheFile::open(kFolder / c["file"])),
                tokens(10)};
    Request request;
    request.prompt = tokens(12);
    request.max_tokens = 3;
    request.context = &row;
    EXPECT_EQ(engine->generate(request).timings.reused_tokens, 10);
    store.save("kept", "", row.tokens, row.sequence, "");  // gone on with, and still not ours
    EXPECT_EQ(engine->prefixes()->stats().nodes, 0u);
    EXPECT_EQ(engine->prefixes()->stats().entries, 0u);
    EXPECT_TRUE(engine->prefixes()->flush(std::chrono::seconds(60)).durable);
    EXPECT_FALSE(store.find("", tokens(16)));
    EXPECT_TRUE(store.entries().empty());
    request.context = nullptr;
    EXPECT_EQ(engine->generate(request).timings.reused_tokens, 0);

    // Found by its name, and said so.
    EXPECT_TRUE(warnings.empty());
    kv::DiskStore::Conversation loaded = store.load("kept", "", engine->cache());
    EXPECT_EQ(loaded.sequence.origin().engine, "mlx-lm");
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("'kept': its keys and values were computed by mlx-lm"), std::string::npos);
    EXPECT_NE(warnings[0].find(c["file"].get<std::string>()), std::string::npos);
    EXPECT_NE(warnings[0].find("model mlx-community/tiny"), std::string::npos);
    // Cut to nothing, nothing of it is left.
    loaded.sequence.truncate(0);
    EXPECT_FALSE(loaded.sequence.origin());
  }
}

}  // namespace
}  // namespace kvasir::engine
