#include "formats/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "formats/dequantize.h"
#include "formats/encode.h"
#include "formats/gguf_writer.h"
#include "formats/json.h"
#include "formats/random_rows.h"
#include "formats/safetensors_writer.h"

namespace kvasir::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("kvasir_checkpoint_test_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void plain(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors_.push_back(
        {name, SafetensorsDtype::f32, std::move(shape), produce_bytes({bytes.begin(), bytes.end()})});
  }
  // A random MLX triplet; returns the values it decodes to.
  std::vector<float> mlx(const std::string& path, std::vector<int64_t> shape, const MlxQuantization& q,
                         uint64_t seed = 1) {
    const int64_t cols = shape.back();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    const bool affine = q.mode == StorageFormat::mlx_affine;
    const Dtype scale_dtype = affine ? Dtype::f16 : Dtype::u8;
    const size_t row_bytes = static_cast<size_t>(cols * q.bits / 8);
    const size_t row_scales = static_cast<size_t>(cols / q.group_size) * size_of(scale_dtype);
    std::vector<std::byte> codes(static_cast<size_t>(rows) * row_bytes);
    std::vector<std::byte> scales(static_cast<size_t>(rows) * row_scales);
    std::vector<std::byte> biases(affine ? scales.size() : 0);
    const RandomRows random(q.mode, 0.1f, seed);
    WeightSource source;
    source.format = q.mode;
    source.rows = rows;
    source.cols = cols;
    source.bits = q.bits;
    source.group_size = q.group_size;
    source.scale_dtype = scale_dtype;
    source.row_bytes = row_bytes;
    source.data = codes.data();
    source.scales = scales.data();
    source.biases = affine ? biases.data() : nullptr;
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = static_cast<size_t>(r);
      random.fill_mlx(
          r, cols, q.bits, q.group_size, scale_dtype,
          {std::span(codes).subspan(at * row_bytes, row_bytes),
           std::span(scales).subspan(at * row_scales, row_scales),
           affine ? std::span(biases).subspan(at * row_scales, row_scales) : std::span<std::byte>()});
      dequantize_row(source, r,
                     std::span(values).subspan(at * static_cast<size_t>(cols), static_cast<size_t>(cols)));
    }
    std::vector<int64_t> packed = shape;
    packed.back() = cols * q.bits / 32;
    std::vector<int64_t> grouped = shape;
    grouped.back() = cols / q.group_size;
    const SafetensorsDtype dtype = affine ? SafetensorsDtype::f16 : SafetensorsDtype::u8;
    tensors_.push_back({path + ".weight", SafetensorsDtype::u32, packed, produce_bytes(std::move(codes))});
    tensors_.push_back({path + ".scales", dtype, grouped, produce_bytes(std::move(scales))});
    if (affine) tensors_.push_back({path + ".biases", dtype, grouped, produce_bytes(std::move(biases))});
    return values;
  }
  Checkpoint open(const std::string& config = R"({"model_type":"llama"})") {
    write("config.json", config);
    write_safetensors_model(folder_, tensors_);
    Checkpoint checkpoint = Checkpoint::open(folder_);
    checkpoint.read_headers();
    return checkpoint;
  }
  std::string error_of(ErrorCode code, const std::string& config = R"({"model_type":"llama"})") {
    try {
      open(config);
    } catch (const Error& error) {
      EXPECT_EQ(name(error.code()), name(code)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(folder_.string()));
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
  std::vector<SafetensorsToWrite> tensors_;
};

TEST_F(CheckpointTest, HuggingFaceFolder) {
  plain("model.norm.weight", {4}, {1, 2, 3, 4});
  plain("model.layers.0.w.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  write("generation_config.json", R"({"eos_token_id":[1,2]})");
  write("tokenizer.json", "{}");
  write("chat_template.jinja", "x");
  std::filesystem::create_directories(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "x");
  const Checkpoint checkpoint = open(R"({"model_type":"llama","rope_theta":1e4,"limit":[0.0,Infinity]})");
  EXPECT_EQ(checkpoint.kind(), CheckpointKind::safetensors);
  EXPECT_EQ(checkpoint.config()["model_type"], "llama");
  EXPECT_EQ(checkpoint.generation_config()["eos_token_id"][1], 2);
  EXPECT_TRUE(checkpoint.files().tokenizer_json.has_value());
  EXPECT_FALSE(checkpoint.files().tokenizer_config.has_value());
  EXPECT_TRUE(checkpoint.files().chat_template_jinja.has_value());
  EXPECT_EQ(checkpoint.files().additional_templates.count("tool_use"), 1u);
  EXPECT_EQ(checkpoint.gguf(), nullptr);
  EXPECT_FALSE(checkpoint.quantization().present());
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  const TensorEntry& entry = checkpoint.tensor("model.layers.0.w.weight");
  EXPECT_THAT(entry.shape, ElementsAre(2, 3));
  EXPECT_EQ(entry.stored_bytes, 24u);
  EXPECT_EQ(checkpoint.layout(entry).data, nullptr);
  EXPECT_EQ(checkpoint.header_opens(), 1u);
  EXPECT_EQ(checkpoint.data_opens(), 0u);
  EXPECT_THAT(checkpoint.values(entry), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_GT(checkpoint.data_opens(), 0u);
  EXPECT_EQ(checkpoint.find("absent"), nullptr);
  EXPECT_THROW(checkpoint.tensor("absent"), Error);
}

TEST_F(CheckpointTest, ResolvesFromTheConfigAlone) {
  write("config.json", R"({"model_type":"llama"})");
  write("model.safetensors", "not even a header");
  Checkpoint checkpoint = Checkpoint::open(folder_);
  EXPECT_EQ(checkpoint.header_opens(), 0u);
  EXPECT_EQ(checkpoint.data_opens(), 0u);
  EXPECT_THROW(checkpoint.read_headers(), Error);
}

TEST_F(CheckpointTest, AdaptersAreNoModels) {
  write("adapter_config.json", R"({"peft_type":"LORA"})");
  write("adapter_model.safetensors", "x");
  try {
    Checkpoint::open(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("is an adapter (adapter_config.json), not a model"));
  }
  write("config.json", R"({"model_type":"llama"})");
  EXPECT_THAT(Checkpoint::open(folder_).warnings(),
              testing::ElementsAre(HasSubstr("adapter_config.json: ignored")));
}

TEST_F(CheckpointTest, WhetherTextCanBeReadIsToldFromNames) {
  write("config.json", R"({"model_type":"llama"})");
  EXPECT_EQ(Checkpoint::open(folder_).text_problem(), "has no tokenizer.json");
  write("tokenizer.model", "x");
  EXPECT_THAT(Checkpoint::open(folder_).text_problem(),
              HasSubstr("has no tokenizer.json: tokenizer.model is of another kind"));
  write("tokenizer.json", "{}");
  EXPECT_EQ(Checkpoint::open(folder_).text_problem(), "");
}

TEST_F(CheckpointTest, ConfigErrors) {
  const auto message = [&](const std::string& config) { return error_of(ErrorCode::corrupt_file, config); };
  EXPECT_THAT(message("[]"), HasSubstr("config.json: expected a JSON object, got array"));
  EXPECT_THAT(message(R"({"model_type":"a","model_type":"b"})"), HasSubstr("duplicate key"));
  EXPECT_THAT(message("{"), HasSubstr("invalid JSON"));
  EXPECT_THAT(message(std::string("{\"model_type\":\"llama\xFF\"}")), HasSubstr("not UTF-8"));
  EXPECT_THAT(message(R"({"model_type":"llama"} x)"), HasSubstr("unexpected text"));
  // Nesting and size have limits, which a message names.
  const auto nested = [](size_t depth) {
    return R"({"model_type":"llama","x":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  plain("w", {1}, {1});
  EXPECT_EQ(error_of(ErrorCode::internal, nested(63)), "no error");
  EXPECT_THAT(message(nested(64)), HasSubstr("nesting deeper than the limit of 64"));
  EXPECT_THAT(message(nested(100000)), HasSubstr("nesting deeper"));
  const std::string config = R"({"model_type":"llama"})";
  EXPECT_EQ(error_of(ErrorCode::internal, config + std::string((size_t{16} << 20) - config.size(), ' ')),
            "no error");
  EXPECT_THAT(error_of(ErrorCode::invalid_input, config + std::string(size_t{16} << 20, ' ')),
              HasSubstr("more than the limit of 16777216"));
}

TEST_F(CheckpointTest, ABadGenerationConfigIsAWarning) {
  plain("w", {1}, {1});
  write("generation_config.json", "{");
  const Checkpoint checkpoint = open();
  EXPECT_TRUE(checkpoint.generation_config().is_null());
  ASSERT_EQ(checkpoint.warnings().size(), 1u);
  EXPECT_THAT(checkpoint.warnings()[0], HasSubstr("generation_config.json"));
}

TEST_F(CheckpointTest, AGenerationConfigsBadEosIsAWarning) {
  plain("w", {1}, {1});
  for (const char* ids : {"\"x\"", "-3", "2.5", "true", "{}", "[2,\"x\"]", "[[2]]", "4294967298"}) {
    write("generation_config.json", R"({"temperature":0.5,"eos_token_id":)" + std::string(ids) + "}");
    const Checkpoint checkpoint = open();
    ASSERT_EQ(checkpoint.warnings().size(), 1u) << ids;
    EXPECT_THAT(checkpoint.warnings()[0],
                AllOf(HasSubstr("generation_config.json: eos_token_id is " + std::string(ids) + ", expected"),
                      HasSubstr("ignored")));
    EXPECT_FALSE(checkpoint.generation_config().contains("eos_token_id")) << ids;
    EXPECT_EQ(checkpoint.generation_config()["temperature"], 0.5);
  }
  for (const char* ids : {"2", "[2,3]", "[]", "null", "0"}) {
    write("generation_config.json", R"({"eos_token_id":)" + std::string(ids) + "}");
    const Checkpoint checkpoint = open();
    EXPECT_TRUE(checkpoint.warnings().empty()) << ids;
    EXPECT_TRUE(checkpoint.generation_config().contains("eos_token_id")) << ids;
  }
}

TEST_F(CheckpointTest, MlxFolderWithOverridesStacksAndPlainModules) {
  const MlxQuantization q4 = {StorageFormat::mlx_affine, 4, 64};
  const std::vector<float> up = mlx("model.up", {8, 128}, q4);
  const std::vector<float> embed = mlx("model.embed", {16, 128}, {StorageFormat::mlx_affine, 6, 32}, 2);
  const std::vector<float> experts = mlx("model.experts", {3, 4, 64}, {StorageFormat::mlx_affine, 3, 64}, 3);
  const std::vector<float> mx = mlx("model.mx", {4, 64}, {StorageFormat::mlx_mxfp4, 4, 32}, 4);
  plain("model.gate.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  plain("model.up.bias", {8}, std::vector<float>(8, 0.5f));
  const Checkpoint checkpoint = open(
      R"({"model_type":"llama","quantization":{"bits":4,"group_size":64,"model.embed":{"bits":6,"group_size":32},)"
      R"("model.experts":{"bits":3},"language_model.model.mx":{"mode":"mxfp4"},"model.gate":false,"model.nowhere":{"bits":8},"quant_method_note":"x"}})");
  EXPECT_EQ(checkpoint.kind(), CheckpointKind::mlx);
  ASSERT_EQ(checkpoint.warnings().size(), 1u);
  EXPECT_THAT(checkpoint.warnings()[0], HasSubstr("1 quantization overrides match no module: model.nowhere"));
  ASSERT_EQ(checkpoint.tensors().size(), 6u);  // scales and biases belong to their weights
  const auto check = [&](const std::string& name, const std::vector<float>& expected,
                         std::vector<int64_t> shape, int bits) {
    SCOPED_TRACE(name);
    const TensorEntry& entry = checkpoint.tensor(name);
    EXPECT_EQ(entry.shape, shape);
    EXPECT_EQ(checkpoint.values(entry), expected);
    const WeightSource source = checkpoint.weight(entry);
    EXPECT_EQ(source.bits, bits);
    EXPECT_EQ(source.stored_bytes(), entry.stored_bytes);
    EXPECT_EQ(checkpoint.layout(entry).stored_bytes(), entry.stored_bytes);
  };
  check("model.up.weight", up, {8, 128}, 4);
  check("model.embed.weight", embed, {16, 128}, 6);
  check("model.experts.weight", experts, {3, 4, 64}, 3);
  check("model.mx.weight", mx, {4, 64}, 4);
  EXPECT_EQ(checkpoint.tensor("model.mx.weight").format, StorageFormat::mlx_mxfp4);
  // An expert's slab is what a tensor of its own would be.
  const WeightSource stack = checkpoint.weight(checkpoint.tensor("model.experts.weight"));
  std::vector<float> row(64);
  dequantize_row(row_range(stack, 8, 4), 1, row);
  EXPECT_EQ(row, std::vector<float>(experts.begin() + 9 * 64, experts.begin() + 10 * 64));
}

TEST_F(CheckpointTest, MlxSizesFromDefaultsGiveWayToTheShapesStatedOnesDoNot) {
  const std::vector<float> values = mlx("m.a", {4, 128}, {StorageFormat::mlx_affine, 8, 64});
  mlx("m.b", {4, 128}, {StorageFormat::mlx_affine, 8, 32});  // 8 * 32 = 4 * 64: only the width tells
  Checkpoint checkpoint = open(R"({"model_type":"llama","quantization":{"bits":4,"group_size":64}})");
  const TensorEntry& entry = checkpoint.tensor("m.a.weight");
  EXPECT_TRUE(entry.needs_width);
  EXPECT_THROW(checkpoint.weight(entry), Error);
  const TensorEntry fixed = checkpoint.with_width(entry, 128);
  EXPECT_EQ(fixed.quantization->bits, 8);
  EXPECT_EQ(checkpoint.values(fixed), values);
  EXPECT_THAT(checkpoint.tensor("m.b.weight").shape, ElementsAre(4, 256));
  EXPECT_EQ(checkpoint.with_width(checkpoint.tensor("m.b.weight"), 128).quantization->group_size, 32);
  EXPECT_EQ(checkpoint.warnings().size(), 1u);
  EXPECT_THROW(checkpoint.with_width(entry, 96), Error);
  EXPECT_THAT(
      error_of(ErrorCode::corrupt_file,
               R"({"model_type":"llama","quantization":{"bits":4,"group_size":64,"m.a":{"bits":4}}})"),
      HasSubstr("m.a: packed shape [4, 32] does not match scales [4, 2] for bits 4, group 64"));
}

// mlx-lm writes the override of a mixture's router without a mode and reads it as affine, whatever the mode
// of the file; members that an override leaves out are its mode's own (mlx 0.32.4: Linear.to_quantized).
TEST_F(CheckpointTest, AnMlxOverrideInheritsNothingOfTheSection) {
  const std::vector<float> up = mlx("m.up", {8, 128}, {StorageFormat::mlx_nvfp4, 4, 16});
  const std::vector<float> gate = mlx("m.gate", {8, 128}, {StorageFormat::mlx_affine, 8, 64}, 2);
  const std::vector<float> bits = mlx("m.bits", {8, 128}, {StorageFormat::mlx_affine, 8, 64}, 3);
  const std::vector<float> mode = mlx("m.mode", {8, 128}, {StorageFormat::mlx_mxfp8, 8, 32}, 4);
  const Checkpoint checkpoint =
      open(R"({"model_type":"llama","quantization":{"group_size":16,"bits":4,"mode":"nvfp4",)"
           R"("m.gate":{"group_size":64,"bits":8},"m.bits":{"bits":8},"m.mode":{"mode":"mxfp8"}}})");
  EXPECT_TRUE(checkpoint.warnings().empty());
  EXPECT_EQ(checkpoint.values(checkpoint.tensor("m.up.weight")), up);
  EXPECT_EQ(checkpoint.values(checkpoint.tensor("m.gate.weight")), gate);
  EXPECT_EQ(checkpoint.values(checkpoint.tensor("m.bits.weight")), bits);
  EXPECT_EQ(checkpoint.values(checkpoint.tensor("m.mode.weight")), mode);
}

TEST_F(CheckpointTest, MlxErrors) {
  mlx("m.a", {4, 128}, {StorageFormat::mlx_affine, 4, 64});
  const auto with = [&](const std::string& quantization) {
    return error_of(ErrorCode::corrupt_file, R"({"model_type":"llama","quantization":)" + quantization + "}");
  };
  EXPECT_EQ(with(R"({"bits":4,"group_size":64})"), "no error");
  EXPECT_THAT(with(R"({"bits":4,"group_size":64,"m.a":false})"),
              HasSubstr("quantized tensor without quantization spec: m.a"));
  EXPECT_THAT(error_of(ErrorCode::corrupt_file),
              HasSubstr("quantized tensor without quantization spec: m.a"));
  const std::vector<SafetensorsToWrite> whole = tensors_;
  tensors_ = {whole[0], whole[1]};
  EXPECT_THAT(with(R"({"bits":4,"group_size":64})"), HasSubstr("m.a.biases: missing"));
  tensors_ = {whole[0]};
  EXPECT_THAT(with(R"({"bits":4,"group_size":64})"),
              HasSubstr("m.a.weight is packed but m.a.scales is missing"));
  tensors_ = whole;
  tensors_[0].dtype = SafetensorsDtype::i32;
  EXPECT_THAT(with(R"({"bits":4,"group_size":64})"),
              HasSubstr("m.a.weight: expected packed U32 beside its scales, got I32"));
  tensors_ = whole;
  tensors_[1].shape = {2, 4};
  EXPECT_THAT(with(R"({"bits":4,"group_size":64})"),
              HasSubstr("m.a: packed shape [4, 16] does not match scales [2, 4]"));
  tensors_ = whole;
  tensors_[2].shape = {2, 4};
  EXPECT_THAT(with(R"({"bits":4,"group_size":64})"),
              HasSubstr("m.a.biases: expected F16 [4, 2] as the scales, got F16 [2, 4]"));
}

TEST_F(CheckpointTest, QuantizationSectionErrors) {
  plain("w", {1}, {1});
  const auto refuse = [&](const std::string& members, ErrorCode code) {
    return error_of(code, R"({"model_type":"llama",)" + members + "}");
  };
  EXPECT_THAT(refuse(R"("quantization":{"bits":4,"group_size":48})", ErrorCode::unsupported),
              HasSubstr("The requested group size 48 is not supported"));
  EXPECT_THAT(refuse(R"("quantization":{"bits":7,"group_size":64})", ErrorCode::unsupported),
              HasSubstr("The requested number of bits 7 is not supported"));
  EXPECT_THAT(refuse(R"("quantization":{"mode":"mxfp4","group_size":64})", ErrorCode::unsupported),
              HasSubstr("mxfp4 quantization requires group size 32 but got 64"));
  EXPECT_THAT(refuse(R"("quantization":{"mode":"nvfp4","bits":8})", ErrorCode::unsupported),
              HasSubstr("nvfp4 quantization requires bits to be 4 but got 8"));
  EXPECT_THAT(refuse(R"("quantization":{"mode":"other"})", ErrorCode::unsupported),
              HasSubstr("Invalid quantization mode 'other'"));
  EXPECT_THAT(refuse(R"("quantization":{"mode":"trellis","bits":3})", ErrorCode::unsupported),
              HasSubstr("quantization \"trellis\""));
  EXPECT_THAT(refuse(R"("quantization":{"bits":4,"group_size":64,"a.b":{"bits":9}})", ErrorCode::unsupported),
              HasSubstr("quantization of a.b"));
  EXPECT_THAT(refuse(R"("quantization":{"bits":"4"})", ErrorCode::corrupt_file),
              HasSubstr("bits: expected a small integer, got \"4\""));
  EXPECT_THAT(refuse(R"("quantization":4)", ErrorCode::corrupt_file),
              HasSubstr("quantization: expected an object"));
  EXPECT_THAT(
      refuse(R"("quantization":{"bits":4},"quantization_config":{"bits":8})", ErrorCode::corrupt_file),
      HasSubstr("disagree"));
  EXPECT_THAT(
      refuse(R"("quantization":{"quantize_activations":true,"mode":"nvfp4"})", ErrorCode::unsupported),
      HasSubstr("quantize_activations"));
  EXPECT_THAT(refuse(R"("quantization_config":{"quant_method":"hqq"})", ErrorCode::unsupported),
              HasSubstr("quantization \"hqq\" is not supported: expected MLX affine"));
  EXPECT_THAT(refuse(R"("text_config":{"quantization_config":{"quant_method":"gptq","bits":3}})",
                     ErrorCode::unsupported),
              HasSubstr("\"gptq\" (3 bits)"));
  EXPECT_EQ(
      refuse(R"("quantization":{"bits":4,"group_size":64},"quantization_config":{"bits":4,"group_size":64})",
             ErrorCode::internal),
      "no error");
}

TEST_F(CheckpointTest, GgufFileFolderAndNvfp4Scales) {
  GgufWriter writer;
  writer.set_string("general.architecture", "llama");
  const RandomRows random(StorageFormat::nvfp4, 0.5f, 7);
  std::vector<std::byte> blocks(6 * 36);
  for (int64_t r = 0; r < 6; ++r)
    random.fill(r, 64, std::span(blocks).subspan(static_cast<size_t>(r) * 36, 36));
  const float scales[3] = {2, 4, 8};
  const auto scale_bytes = std::as_bytes(std::span(scales));
  writer.add_tensor("blk.0.ffn_up_exps.weight", StorageFormat::nvfp4, {64, 2, 3}, produce_bytes(blocks));
  writer.add_tensor("blk.0.ffn_up_exps.scale", StorageFormat::f32, {3},
                    produce_bytes({scale_bytes.begin(), scale_bytes.end()}));
  writer.add_tensor("blk.0.x.weight", StorageFormat::nvfp4, {64},
                    produce_bytes({blocks.begin(), blocks.begin() + 36}));
  writer.add_tensor("blk.0.x.scale", StorageFormat::f32, {1},
                    produce_bytes({scale_bytes.begin(), scale_bytes.begin() + 4}));
  writer.add_tensor("blk.0.x.input_scale", StorageFormat::f32, {1},
                    produce_bytes({scale_bytes.begin(), scale_bytes.begin() + 4}));
  writer.add_tensor("blk.0.gate.scale", StorageFormat::f32, {1},
                    produce_bytes({scale_bytes.begin(), scale_bytes.begin() + 4}));
  writer.write(folder_ / "m.gguf");
  Checkpoint checkpoint = Checkpoint::open(folder_);  // the only GGUF model in the folder
  EXPECT_EQ(checkpoint.kind(), CheckpointKind::gguf);
  EXPECT_EQ(checkpoint.gguf()->string("general.architecture"), "llama");
  checkpoint.read_headers();
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  const TensorEntry& experts = checkpoint.tensor("blk.0.ffn_up_exps.weight");
  EXPECT_THAT(experts.shape, ElementsAre(3, 2, 64));
  EXPECT_EQ(checkpoint.data_opens(), 0u);
  EXPECT_THAT(checkpoint.tensor_scales(experts), ElementsAre(2, 4, 8));
  EXPECT_EQ(checkpoint.weight(experts).tensor_scale, 1.0f);
  EXPECT_EQ(checkpoint.weight(checkpoint.tensor("blk.0.x.weight")).tensor_scale, 2.0f);
  std::vector<float> row(64);
  dequantize_row(checkpoint.weight(experts), 4, row);
  const std::vector<float> values = checkpoint.values(experts);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(values[4 * 64 + i], 8.0f * row[i]);
  size_t visited = 0;
  checkpoint.visit_stored_bytes(experts, [&](std::span<const std::byte> bytes) { visited += bytes.size(); });
  EXPECT_EQ(visited, blocks.size() + 12);

  write("config.json", R"({"model_type":"llama"})");  // as GGUF repositories have it
  EXPECT_EQ(Checkpoint::open(folder_).kind(), CheckpointKind::gguf);

  std::filesystem::copy_file(folder_ / "m.gguf", folder_ / "n.gguf");
  try {
    Checkpoint::open(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 GGUF models in this folder: name one of them"));
    EXPECT_EQ(error.details(), "m.gguf\nn.gguf");
  }
}

TEST_F(CheckpointTest, IncompleteSnapshot) {
  std::filesystem::create_symlink("../../blobs/missing", folder_ / "config.json");
  try {
    Checkpoint::open(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("snapshot incomplete: missing config.json"));
  }
}

TEST_F(CheckpointTest, WrongPaths) {
  EXPECT_THROW(Checkpoint::open(folder_ / "none"), Error);
  EXPECT_THROW(Checkpoint::open(folder_), Error);
  write("x.safetensors", "abc");
  try {
    Checkpoint::open(folder_ / "x.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
    EXPECT_THAT(error.what(), HasSubstr("is no GGUF file"));
  }
}

}  // namespace
}  // namespace kvasir::formats
