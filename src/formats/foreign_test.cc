// Checkpoints of other quantization tools (tools/oracles/foreign_quantization.py): values, plans from
// headers, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/test_folder.h"
#include "formats/check_tensors.h"
#include "formats/checkpoint.h"
#include "formats/dequantize.h"
#include "formats/json.h"
#include "formats/pattern.h"
#include "formats/safetensors_writer.h"

namespace kvasir::formats {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

const json& cases() {
  static const json kCases = read_json_file(fs::path(KVASIR_TEST_DATA) / "formats" / "foreign.json");
  return kCases;
}
const SafetensorsFile& goldens() {
  static const SafetensorsFile kFile =
      SafetensorsFile::open(fs::path(KVASIR_TEST_DATA) / "formats" / "foreign.safetensors");
  return kFile;
}

struct Tensor {
  SafetensorsDtype dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using Tensors = std::map<std::string, Tensor>;

size_t size_of_one(const Tensor& tensor) {
  size_t elements = 1;
  for (const int64_t n : tensor.shape) elements *= static_cast<size_t>(n);
  return tensor.bytes.size() / elements;
}

// The stored tensors of a case, by name: "p.qweight", ...
Tensors stored(const std::string& name) {
  Tensors out;
  for (const SafetensorsTensor& tensor : goldens().tensors()) {
    const std::string prefix = name + "/p.";
    if (!tensor.name.starts_with(prefix)) continue;
    const auto bytes = goldens().data(tensor);
    out["p." + std::string(tensor.name.substr(prefix.size()))] = {
        tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, {bytes.begin(), bytes.end()}};
  }
  return out;
}

class Foreign : public testing::Test {
 protected:
  void write(const Tensors& tensors, const json& section) const {
    std::vector<SafetensorsToWrite> list;
    for (const auto& [name, tensor] : tensors)
      list.push_back({name, tensor.dtype, tensor.shape, produce_bytes(tensor.bytes)});
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove(entry.path());
    write_safetensors_model(folder_, std::move(list));
    json config = {{"model_type", "llama"}};
    if (!section.is_null()) config["quantization_config"] = section;
    std::ofstream(folder_ / "config.json") << config.dump();
  }
  Checkpoint open() const {
    Checkpoint checkpoint = Checkpoint::open(folder_);
    checkpoint.read_headers();
    return checkpoint;
  }
  // The message of the error on the way to the values of "p.weight".
  std::string refusal(const Tensors& tensors, const json& section) const {
    write(tensors, section);
    try {
      const Checkpoint checkpoint = open();
      checkpoint.values(checkpoint.tensor("p.weight"));
    } catch (const Error& error) {
      return fmt::format("[{}] {}", name(error.code()), error.what());
    }
    return "read";
  }

  const TestFolder temporary_{"foreign"};
  const fs::path& folder_ = temporary_.path();
};

TEST_F(Foreign, ValuesAreThoseOfTheTools) {
  ASSERT_GE(cases().size(), 20u);
  for (const auto& [name, c] : cases().items()) {
    SCOPED_TRACE(name);
    write(stored(name), c["config"]);
    Checkpoint checkpoint = open();
    EXPECT_EQ(checkpoint.data_opens(), 0u);
    ASSERT_EQ(checkpoint.tensors().size(), 1u);
    const TensorEntry& entry = checkpoint.tensor("p.weight");
    EXPECT_EQ(entry.shape, c["shape"].get<std::vector<int64_t>>());

    // What headers tell is what the data turn out to be.
    const WeightSource plan = checkpoint.layout(entry);
    const WeightSource source = checkpoint.weight(checkpoint.with_width(entry, entry.cols()));
    EXPECT_EQ(plan.format, source.format);
    EXPECT_EQ(plan.group_size, source.group_size);
    EXPECT_EQ(plan.scale_dtype, source.scale_dtype);
    EXPECT_EQ(plan.row_bytes, source.row_bytes);
    EXPECT_EQ(plan.own_scale, source.own_scale);
    EXPECT_EQ(plan.own_scale, source.tensor_scale != 1.0f);

    const SafetensorsTensor* expected = goldens().find(name + "/expected");
    ASSERT_NE(expected, nullptr);
    const auto* want = reinterpret_cast<const float*>(goldens().data(*expected).data());
    std::vector<float> row(static_cast<size_t>(source.cols));
    const bool exact = c["exact"];
    for (int64_t r = 0; r < expected->shape[0]; ++r) {
      dequantize_row(source, 3 * r, row);
      for (size_t i = 0; i < row.size(); ++i) {
        const float w = want[static_cast<size_t>(r) * row.size() + i];
        if (exact)
          ASSERT_EQ(row[i], w) << "row " << 3 * r << ", column " << i;
        else  // three factors: two roundings in another order
          ASSERT_NEAR(row[i] * source.tensor_scale, w, 3e-7f * std::abs(w)) << "row " << 3 * r;
      }
    }
  }
}

TEST_F(Foreign, ListedModulesArePlainAndOthersMayBe) {
  Tensors tensors = stored("ct-pack-4-sym");
  const std::vector<float> values = {1, 2, 3, 4};
  const auto bytes = std::as_bytes(std::span(values));
  tensors["lm_head.weight"] = {SafetensorsDtype::f32, {2, 2}, {bytes.begin(), bytes.end()}};
  tensors["norm.weight"] = {SafetensorsDtype::f32, {4}, {bytes.begin(), bytes.end()}};
  json section = cases()["ct-pack-4-sym"]["config"];
  write(tensors, section);
  EXPECT_EQ(open().tensors().size(), 3u);
  EXPECT_EQ(open().tensor("lm_head.weight").format, StorageFormat::f32);

  section["ignore"] = {"re:^p$"};
  EXPECT_THAT(refusal(tensors, section),
              HasSubstr("p is listed as not quantized, but p.weight_packed is stored"));
  section["ignore"] = json::array();
  section["config_groups"]["group_0"]["targets"] = {"re:.*mlp.*"};
  EXPECT_THAT(refusal(tensors, section), HasSubstr("quantized tensor without quantization spec: p"));
  section["config_groups"]["group_0"]["targets"] = {"p"};
  EXPECT_EQ(refusal(tensors, section), "read");
}

TEST_F(Foreign, DamageIsNamed) {
  const auto damaged = [&](const std::string& name, const std::function<void(Tensors&)>& edit) {
    Tensors tensors = stored(name);
    edit(tensors);
    return refusal(tensors, cases()[name]["config"]);
  };
  const auto put = [](Tensor& tensor, size_t index, auto value) {
    std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
  };
  EXPECT_THAT(damaged("awq-32", [](Tensors& t) { t.erase("p.qzeros"); }),
              HasSubstr("p.qzeros: missing beside the codes of p"));
  EXPECT_THAT(damaged("awq-32",
                      [](Tensors& t) {
                        t["p.scales"].shape = {24, 8};
                      }),
              HasSubstr("[corrupt_file]"));
  EXPECT_THAT(damaged("awq-32", [](Tensors& t) { t["p.g_idx"] = stored("gptq-4")["p.g_idx"]; }),
              HasSubstr("no g_idx in an awq checkpoint"));
  EXPECT_THAT(damaged("gptq-4", [&](Tensors& t) { put(t["p.g_idx"], 5, int32_t{1}); }),
              HasSubstr("column 5 belongs to group 1, expected 0"));
  EXPECT_THAT(damaged("gptq-4", [&](Tensors& t) { put(t["p.g_idx"], 127, int32_t{-7}); }),
              HasSubstr("column 127 belongs to group -7, expected 1"));
  EXPECT_THAT(damaged("gptq-sym-128", [&](Tensors& t) { put(t["p.qzeros"], 0, uint32_t{0x77777778}); }),
              HasSubstr("zero points of 8 (symmetric), got 9"));
  EXPECT_THAT(damaged("ct-pack-4-asym", [](Tensors& t) { t.erase("p.weight_zero_point"); }),
              HasSubstr("p.weight_zero_point: missing"));
  EXPECT_THAT(damaged("ct-pack-4-sym", [&](Tensors& t) { put(t["p.weight_shape"], 1, int64_t{64}); }),
              HasSubstr("[36, 128], got [36, 64]"));
  EXPECT_THAT(damaged("ct-pack-4-sym", [](Tensors& t) { t["p.weight"] = t["p.weight_scale"]; }),
              HasSubstr("p.weight: expected none beside its packed form"));
  EXPECT_THAT(damaged("ct-nvfp4", [&](Tensors& t) { put(t["p.weight_global_scale"], 0, 0.0f); }),
              HasSubstr("p.weight_global_scale: expected a scale above 0"));
  EXPECT_THAT(damaged("fp8-blocks", [](Tensors& t) { t.erase("p.weight_scale_inv"); }),
              HasSubstr("p.weight is F8_E4M3 and p.weight_scale is missing"));
  // A last dimension that is not the one that the codes imply.
  const auto narrower = [](Tensor& tensor) {
    const auto last = static_cast<size_t>(tensor.shape.back());
    tensor.bytes.resize(tensor.bytes.size() / last * (last - 1));
    --tensor.shape.back();
  };
  for (const auto& [name, part] : {std::pair{"awq-32", "p.qzeros"},
                                   {"awq-32", "p.scales"},
                                   {"gptq-4", "p.qzeros"},
                                   {"gptq-4", "p.g_idx"},
                                   {"ct-pack-4-asym", "p.weight_zero_point"},
                                   {"ct-pack-4-asym", "p.weight_scale"},
                                   {"fp8-blocks", "p.weight_scale_inv"},
                                   {"ct-nvfp4", "p.weight_scale"}}) {
    const std::string which = part;
    EXPECT_THAT(damaged(name, [&](Tensors& t) { narrower(t[which]); }),
                testing::AllOf(HasSubstr("[corrupt_file]"), HasSubstr(which)))
        << name;
  }
}

TEST_F(Foreign, ScalesThatAreNoNumbersAreFound) {
  for (const char* name : {"awq-32", "gptq-4", "ct-pack-4-sym", "fp8-blocks", "ct-nvfp4"}) {
    Tensors tensors = stored(name);
    for (auto& [part, tensor] : tensors) {
      const bool scales =
          part.ends_with("scales") || part.ends_with("weight_scale") || part.ends_with("weight_scale_inv");
      // All bits set is NaN in every dtype that scales have.
      if (scales) std::fill_n(tensor.bytes.begin(), size_of_one(tensor), std::byte{0xFF});
    }
    write(tensors, cases()[name]["config"]);
    const Checkpoint checkpoint = open();
    try {
      check_finite(checkpoint.weight(checkpoint.tensor("p.weight")));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file) << name;
      EXPECT_THAT(error.what(), HasSubstr("p.weight")) << name;
    }
  }
}

TEST_F(Foreign, WhatIsNotReadIsRefusedFromTheConfigAlone) {
  const auto refuse = [&](json section) {
    write(stored("awq-32"), section);
    try {
      Checkpoint::open(folder_);  // no header is read
    } catch (const Error& error) {
      return fmt::format("[{}] {}", name(error.code()), error.what());
    }
    return std::string("opened");
  };
  const auto with = [](const std::string& name, const json& change) {
    json section = cases()[name]["config"];
    section.update(change);
    return section;
  };
  for (const char* method : {"bitsandbytes", "hqq", "eetq", "quanto", "aqlm", "vptq", "spqr", "higgs", "quip",
                             "torchao", "auto-round", "fbgemm_fp8", "bitnet"})
    EXPECT_THAT(refuse({{"quant_method", method}}),
                HasSubstr(fmt::format("quantization \"{}\" is not supported: expected MLX affine", method)));
  EXPECT_THAT(refuse(with("awq-32", {{"bits", 3}})), HasSubstr("\"awq\" (3 bits) is not supported"));
  EXPECT_THAT(refuse(with("awq-32", {{"bits", nullptr}})),
              HasSubstr("awq: bits: expected a small integer, got none"));
  for (const char* version : {"gemv", "gemv_fast", "marlin", "GEMV"})
    EXPECT_THAT(refuse(with("awq-32", {{"version", version}})), HasSubstr("\"awq\" (version "));
  EXPECT_THAT(refuse(with("awq-32", {{"backend", "llm-awq"}})), HasSubstr("backend llm-awq"));
  EXPECT_EQ(refuse(with("awq-32", {{"version", "GEMM"}})), "opened");
  EXPECT_THAT(refuse(with("awq-32", {{"group_size", 48}})), HasSubstr("group size 48"));
  EXPECT_THAT(refuse(with("gptq-4", {{"bits", 3}})), HasSubstr("\"gptq\" (3 bits)"));
  EXPECT_THAT(refuse(with("gptq-4", {{"desc_act", true}})), HasSubstr("desc_act"));
  EXPECT_EQ(refuse(with("gptq-4", {{"desc_act", true}, {"static_groups", true}})), "opened");
  EXPECT_THAT(refuse(with("gptq-4", {{"checkpoint_format", "marlin"}})),
              HasSubstr("checkpoint_format marlin"));
  EXPECT_THAT(refuse(with("gptq-4", {{"dynamic", {{"+:x", {{"bits", 8}}}}}})), HasSubstr("dynamic"));
  EXPECT_THAT(refuse(with("gptq-4", {{"bits", "four"}})), HasSubstr("[corrupt_file]"));
  EXPECT_THAT(refuse(with("fp8-blocks", {{"fmt", "e5m2"}})), HasSubstr("fmt e5m2"));
  EXPECT_THAT(refuse(with("fp8-blocks", {{"weight_block_size", {128}}})), HasSubstr("weight_block_size"));
  EXPECT_THAT(refuse(with("modelopt-nvfp4", {{"quant_algo", "FP8"}})), HasSubstr("quant_algo FP8"));
  for (const char* format : {"marlin-24", "sparse-bitmask", "sparse-24-bitmask", "mxfp8-quantized", "dense"})
    EXPECT_THAT(refuse(with("ct-pack-4-sym", {{"format", format}})),
                HasSubstr(fmt::format("(format {})", format)));
  const auto weights = [&](const json& change) {
    json section = cases()["ct-pack-4-sym"]["config"];
    section["config_groups"]["group_0"]["weights"].update(change);
    return refuse(section);
  };
  EXPECT_THAT(weights({{"num_bits", 3}}), HasSubstr("pack-quantized, int 3 bits"));
  EXPECT_THAT(weights({{"actorder", "group"}}), HasSubstr("actorder"));
  EXPECT_EQ(weights({{"actorder", "static"}}), "opened");
  EXPECT_THAT(weights({{"strategy", "block"}}), HasSubstr("strategy block"));
  EXPECT_THAT(refuse(with("ct-pack-4-sym", {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}})),
              HasSubstr("sparsity"));
  EXPECT_THAT(refuse(with("ct-pack-4-sym", {{"transform_config", {{"config_groups", {{"u", 1}}}}}})),
              HasSubstr("transform_config"));
  EXPECT_THAT(refuse(with("ct-pack-4-sym", {{"config_groups", json::object()}})), HasSubstr("config_groups"));
  EXPECT_THAT(refuse(with("ct-pack-4-sym", {{"ignore", {"re:(a"}}})), HasSubstr("pattern (a"));
}

TEST_F(Foreign, NamesGiveAQuantizationWithoutASectionAway) {
  EXPECT_THAT(refusal(stored("awq-32"), nullptr), HasSubstr("quantization \"awq or gptq\" (tensor p.q"));
  EXPECT_THAT(refusal(stored("ct-pack-4-sym"), nullptr), HasSubstr("\"compressed-tensors\""));
  Tensors tensors = stored("awq-32");
  tensors = {{"p.weight.absmax", tensors["p.scales"]}};
  EXPECT_THAT(refusal(tensors, nullptr), HasSubstr("\"bitsandbytes\""));
}

TEST(Pattern, MatchesFromTheStartWithinBounds) {
  EXPECT_TRUE(Pattern("model\\.layers\\.\\d+\\.mlp", "here").matches_start("model.layers.12.mlp.up_proj"));
  EXPECT_FALSE(Pattern("mlp", "here").matches_start("model.mlp"));
  EXPECT_TRUE(Pattern(".*gate$", "here").matches_start("a.gate"));
  EXPECT_THROW(Pattern("(", "here"), Error);
  EXPECT_THROW(Pattern("a{1000}", "here"), Error);
  EXPECT_THROW(Pattern(std::string(5000, 'a'), "here"), Error);
  EXPECT_THROW(Pattern(std::string(2000, '('), "here"), Error);
  EXPECT_THROW(Pattern("(a*)*b", "here").matches_start(std::string(200, 'a')), Error);
}

}  // namespace
}  // namespace kvasir::formats
