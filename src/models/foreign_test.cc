// Whole models in the forms of other quantization tools: the logits are those of the de-quantized model, the
// plan is what the load takes, and bits do not depend on chunks or threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/test_folder.h"
#include "formats/checkpoint.h"
#include "formats/dequantize.h"
#include "formats/safetensors_writer.h"
#include "models/model.h"
#include "models/synth.h"
#include "models/test_runner.h"

namespace kvasir::models {
namespace {

namespace fs = std::filesystem;
using formats::SafetensorsDtype;
using nlohmann::json;

class ForeignModel : public testing::Test {
 protected:
  LoadOptions options(int threads = 1) const { return small_options(Activations::f32, threads); }

  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  void add(const std::string& name, SafetensorsDtype dtype, std::vector<int64_t> shape,
           std::vector<std::byte> bytes) {
    tensors_.push_back({name, dtype, std::move(shape), formats::produce_bytes(std::move(bytes))});
  }
  std::vector<std::byte> random(int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next() >> 32);
    return bytes;
  }
  template <typename T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto view = std::as_bytes(std::span(values));
    return {view.begin(), view.end()};
  }
  // f16 scales of about `size`, of either sign.
  std::vector<std::byte> scales(int64_t count, float size) {
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back(f32_to_f16((static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f) * size));
    return bytes_of(out);
  }

  // Random tensors of one linear [out, in] as the tool of `kind` stores it.
  void linear(const std::string& kind, const std::string& p, int64_t out, int64_t in) {
    const float size = 1.0f / std::sqrt(static_cast<float>(in));
    if (kind == "awq") {
      add(p + ".qweight", SafetensorsDtype::i32, {in, out / 8}, random(in * out / 2));
      add(p + ".qzeros", SafetensorsDtype::i32, {in / 32, out / 8}, random(in / 32 * out / 2));
      add(p + ".scales", SafetensorsDtype::f16, {in / 32, out}, scales(in / 32 * out, size / 4));
    } else if (kind == "gptq") {
      add(p + ".qweight", SafetensorsDtype::i32, {in / 4, out}, random(in * out));
      add(p + ".qzeros", SafetensorsDtype::i32, {in / 64, out / 4}, random(in / 64 * out));
      add(p + ".scales", SafetensorsDtype::f16, {in / 64, out}, scales(in / 64 * out, size / 64));
    } else if (kind == "packed") {
      add(p + ".weight_packed", SafetensorsDtype::i32, {out, in / 8}, random(in * out / 2));
      add(p + ".weight_scale", SafetensorsDtype::f16, {out, in / 64}, scales(in / 64 * out, size / 4));
    } else if (kind == "integer") {
      add(p + ".weight", SafetensorsDtype::i8, {out, in}, random(in * out));
      add(p + ".weight_scale", SafetensorsDtype::f16, {out, 1}, scales(out, size / 64));
    } else if (kind == "fp8") {
      std::vector<std::byte> codes = random(in * out);
      for (std::byte& code : codes) code &= std::byte{0xB7};  // no NaN
      add(p + ".weight", SafetensorsDtype::f8_e4m3, {out, in}, std::move(codes));
      std::vector<float> s;
      for (int64_t i = 0; i < (out + 31) / 32 * (in / 64); ++i)
        s.push_back(size * (0.5f + static_cast<float>(next() >> 40) * 0x1p-24f));
      add(p + ".weight_scale_inv", SafetensorsDtype::f32, {(out + 31) / 32, in / 64}, bytes_of(s));
    } else {  // nvfp4, a scale of its own for every tensor
      add(p + ".weight_packed", SafetensorsDtype::u8, {out, in / 2}, random(in * out / 2));
      std::vector<std::byte> s = random(out * in / 16);
      for (std::byte& scale : s) scale = (scale & std::byte{0x0F}) | std::byte{0x30};
      add(p + ".weight_scale", SafetensorsDtype::f8_e4m3, {out, in / 16}, std::move(s));
      add(p + ".weight_global_scale", SafetensorsDtype::f32, {1},
          bytes_of(std::vector<float>{(4.0f + static_cast<float>(next() >> 60)) / size}));
    }
  }
  static json section(const std::string& kind) {
    if (kind == "awq") return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}};
    if (kind == "gptq")
      return {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 64}, {"desc_act", false}, {"sym", false}};
    if (kind == "fp8") return {{"quant_method", "fp8"}, {"weight_block_size", {32, 64}}};
    json weights = {{"num_bits", kind == "integer" ? 8 : 4},
                    {"type", kind == "nvfp4" ? "float" : "int"},
                    {"symmetric", true}};
    weights["strategy"] = kind == "integer" ? "channel" : kind == "nvfp4" ? "tensor_group" : "group";
    if (kind != "integer") weights["group_size"] = kind == "nvfp4" ? 16 : 64;
    const char* format = kind == "packed"    ? "pack-quantized"
                         : kind == "integer" ? "int-quantized"
                                             : "nvfp4-pack-quantized";
    return {{"quant_method", "compressed-tensors"},
            {"format", format},
            {"ignore", {"lm_head"}},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  }

  // The checkpoint at `from` (f32) with its projections replaced by random ones of `kind`.
  void quantize(const fs::path& from, const fs::path& to, const std::string& kind) {
    formats::Checkpoint checkpoint = formats::Checkpoint::open(from);
    checkpoint.read_headers();
    tensors_.clear();
    for (const formats::TensorEntry& entry : checkpoint.tensors())
      if (entry.name.ends_with("_proj.weight"))
        linear(kind, entry.name.substr(0, entry.name.size() - 7), entry.shape[0], entry.shape[1]);
      else
        add(entry.name, SafetensorsDtype::f32, entry.shape, bytes_of(checkpoint.values(entry)));
    json config = checkpoint.config();
    config["quantization_config"] = section(kind);
    write(to, config);
  }
  // Its values in f32.
  void dequantize(const fs::path& from, const fs::path& to) {
    formats::Checkpoint checkpoint = formats::Checkpoint::open(from);
    checkpoint.read_headers();
    tensors_.clear();
    for (const formats::TensorEntry& entry : checkpoint.tensors())
      add(entry.name, SafetensorsDtype::f32, entry.shape, bytes_of(checkpoint.values(entry)));
    json config = checkpoint.config();
    config.erase("quantization_config");
    write(to, config);
  }
  void write(const fs::path& to, const json& config) {
    fs::create_directories(to);
    formats::write_safetensors_model(to, std::move(tensors_));
    std::ofstream(to / "config.json") << config.dump();
    tensors_.clear();
  }

  const TestFolder temporary_{"foreign"};
  const fs::path& path_ = temporary_.path();
  uint64_t state_ = 88172645463325252u;
  std::vector<formats::SafetensorsToWrite> tensors_;
};

TEST_F(ForeignModel, LogitsAreThoseOfTheDequantizedModel) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 24; ++i) ids.push_back((i * 37 + 11) % 48);
  for (const char* family : {"llama", "qwen3_moe"}) {
    json change = {{"num_hidden_layers", 2},
                   {"hidden_size", 128},
                   {"intermediate_size", 192},
                   {"head_dim", 32},
                   {"vocab_size", 48}};
    if (std::string(family) == "qwen3_moe") change["moe_intermediate_size"] = 64;
    const json config = synth_config(family, "tiny", change);
    const fs::path base = path_ / family;
    synthesize(config, synth_format("f32"), 4, base);
    for (const char* kind : {"awq", "gptq", "packed", "integer", "fp8", "nvfp4"}) {
      SCOPED_TRACE(fmt::format("{} {}", family, kind));
      const fs::path file = path_ / (std::string(family) + kind),
                     plain = path_ / (std::string(family) + kind + "-f32");
      quantize(base, file, kind);
      dequantize(file, plain);

      MemoryLedger ledger;
      LoadOptions how = options();
      how.ledger = &ledger;
      const MemoryPlan plan = Model::plan(file, how);
      auto a = Model::load(file, how);
      EXPECT_EQ(ledger.bytes(MemoryCategory::weights), plan.weights_bytes);
      auto b = Model::load(plain, options());
      TestRunner run_a(*a, 1, 64, 1, 32), run_b(*b, 1, 64, 1, 32);
      const auto x = run_a.run(ids, 24), y = run_b.run(ids, 24);
      double scale = 0, difference = 0;
      for (size_t t = 0; t < x.size(); ++t)
        for (size_t i = 0; i < x[t].size(); ++i) {
          scale = larger(scale, std::abs(y[t][i]));
          difference = larger(difference, std::abs(x[t][i] - y[t][i]));
        }
      EXPECT_GT(scale, 0.1);
      EXPECT_LE(difference, 2e-5 * scale);

      for (const auto& [threads, chunk] : {std::pair{2, 24}, {1, 1}, {2, 7}}) {
        auto other = Model::load(file, options(threads));
        EXPECT_EQ(TestRunner(*other, threads, 64, 1, 32).run(ids, chunk), x) << threads << " " << chunk;
        EXPECT_EQ(other->numerics_key(), a->numerics_key());
      }
    }
  }
}

TEST_F(ForeignModel, Int8ModeIsForIntegerFormsOnly) {
  const json config = synth_config(
      "llama", "tiny",
      {{"num_hidden_layers", 1}, {"hidden_size", 128}, {"intermediate_size", 192}, {"head_dim", 32}});
  synthesize(config, synth_format("f32"), 4, path_ / "base");
  for (const char* kind : {"awq", "gptq", "packed", "integer", "fp8", "nvfp4"}) {
    quantize(path_ / "base", path_ / kind, kind);
    LoadOptions how = options();
    how.activations = Activations::automatic;
    EXPECT_EQ(Model::load(path_ / kind, how)->info().activations,
              std::string(kind) == "fp8" ? Activations::bf16 : Activations::int8)
        << kind;
    how.activations = Activations::bf16;
    EXPECT_NO_THROW(Model::load(path_ / kind, how)) << kind;
  }
  LoadOptions how = options();
  how.activations = Activations::int8;
  EXPECT_THROW(Model::load(path_ / "fp8", how), Error);
}

// The scale of a whole tensor is not among the packed bytes, but it is part of the weights' identity.
TEST_F(ForeignModel, TensorScalesAreInTheKey) {
  const json config = synth_config(
      "llama", "tiny",
      {{"num_hidden_layers", 1}, {"hidden_size", 128}, {"intermediate_size", 192}, {"head_dim", 32}});
  synthesize(config, synth_format("f32"), 4, path_ / "base");
  quantize(path_ / "base", path_ / "a", "nvfp4");
  formats::Checkpoint checkpoint = formats::Checkpoint::open(path_ / "a");
  fs::create_directories(path_ / "b");
  fs::copy(path_ / "a" / "config.json", path_ / "b" / "config.json");
  const auto model = formats::SafetensorsModel::open_folder(path_ / "a");
  for (const formats::SafetensorsTensor& tensor : model.tensors()) {
    const auto data = model.data(tensor);
    std::vector<std::byte> bytes(data.begin(), data.end());
    if (tensor.name == "model.layers.0.mlp.up_proj.weight_global_scale") {
      float value;
      std::memcpy(&value, bytes.data(), 4);
      value *= 2;
      std::memcpy(bytes.data(), &value, 4);
    }
    add(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, std::move(bytes));
  }
  formats::write_safetensors_model(path_ / "b", std::move(tensors_));
  const auto a = Model::load(path_ / "a", options()), b = Model::load(path_ / "b", options());
  EXPECT_NE(a->numerics_key(), b->numerics_key());
}

}  // namespace
}  // namespace kvasir::models
