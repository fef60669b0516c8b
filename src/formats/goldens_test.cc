// Storage formats against the gguf package and MLX, bit for bit (tools/oracles/formats_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "formats/check_tensors.h"
#include "formats/dequantize.h"
#include "formats/encode.h"
#include "formats/random_rows.h"
#include "formats/safetensors.h"
#include "formats/small_floats.h"

namespace kvasir::formats {
namespace {

const std::string kFolder = std::string(KVASIR_TEST_DATA) + "/formats/";

std::span<const std::byte> bytes_of(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor* tensor = file.find(name);
  if (tensor == nullptr) throw Error(ErrorCode::not_found, name);
  return file.data(*tensor);
}

std::vector<float> floats_of(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = bytes_of(file, name);
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

WeightSource block_source(StorageFormat format, std::span<const std::byte> bytes) {
  const StorageFormatInfo& storage = info(format);
  WeightSource source;
  source.name = std::string(storage.name);
  source.format = format;
  source.cols = storage.block_elements;
  source.row_bytes = static_cast<size_t>(storage.block_bytes);
  source.rows = static_cast<int64_t>(bytes.size() / source.row_bytes);
  source.data = bytes.data();
  return source;
}

std::vector<float> all_values(const WeightSource& source) {
  const auto cols = static_cast<size_t>(source.cols);
  std::vector<float> out(static_cast<size_t>(source.rows) * cols);
  for (int64_t r = 0; r < source.rows; ++r)
    dequantize_row(source, r, std::span(out).subspan(static_cast<size_t>(r) * cols, cols));
  return out;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(std::memcmp(&got[i], &expected[i], 4) == 0 || (got[i] == 0 && expected[i] == 0))
        << "element " << i << ": " << got[i] << " and " << expected[i];
}

TEST(Goldens, EveryGgufBlockFormat) {
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "gguf_blocks.safetensors");
  int formats = 0;
  for (const StorageFormatInfo& storage : all_storage_formats()) {
    if (storage.block_elements <= 1) continue;
    if (storage.format == StorageFormat::q1_0 || storage.format == StorageFormat::q2_0)
      continue;  // the package lacks them
    SCOPED_TRACE(storage.name);
    std::string name(storage.name);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const WeightSource source = block_source(storage.format, bytes_of(file, name + ".bytes"));
    expect_same_bits(all_values(source), floats_of(file, name + ".values"));
    // A scale byte 0x7F decodes to 0 in ggml but is no number: the scan refuses it.
    if (storage.format != StorageFormat::nvfp4) check_finite(source);
    ++formats;
  }
  EXPECT_EQ(formats, 23);
}

TEST(Goldens, Encoders) {
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "gguf_encode.safetensors");
  const std::vector<float> x = floats_of(file, "x");
  for (const StorageFormat format :
       {StorageFormat::q4_0, StorageFormat::q4_1, StorageFormat::q5_0, StorageFormat::q5_1,
        StorageFormat::q8_0, StorageFormat::mxfp4, StorageFormat::f16, StorageFormat::bf16}) {
    SCOPED_TRACE(name(format));
    const auto expected = bytes_of(file, std::string(name(format)) + ".bytes");
    std::vector<std::byte> got(expected.size());
    encode_row(format, x, got);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "byte " << i;
  }
}

struct MlxTensor {
  WeightSource source;
  std::span<const std::byte> weight, scales, biases;
};

MlxTensor mlx_tensor(const SafetensorsFile& file, const std::string& name, StorageFormat format, int bits,
                     int group, Dtype scales) {
  MlxTensor tensor;
  tensor.weight = bytes_of(file, name + ".weight");
  tensor.scales = bytes_of(file, name + ".scales");
  WeightSource& source = tensor.source;
  source.name = name;
  source.format = format;
  source.rows = 2;
  source.cols = 256;
  source.bits = bits;
  source.group_size = group;
  source.scale_dtype = scales;
  source.row_bytes = static_cast<size_t>(256 * bits / 8);
  source.data = tensor.weight.data();
  source.scales = tensor.scales.data();
  if (format == StorageFormat::mlx_affine) {
    tensor.biases = bytes_of(file, name + ".biases");
    source.biases = tensor.biases.data();
  }
  return tensor;
}

TEST(Goldens, MlxAffine) {
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "mlx_modes.safetensors");
  const std::vector<float> w = floats_of(file, "w");
  const struct {
    int group;
    Dtype dtype;
  } variants[] = {{32, Dtype::f32}, {64, Dtype::f32}, {128, Dtype::f32}, {64, Dtype::bf16}, {32, Dtype::f16}};
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const auto& variant : variants) {
      const std::string name =
          fmt::format("affine_b{}_g{}_{}", bits, variant.group, kvasir::name(variant.dtype));
      SCOPED_TRACE(name);
      const MlxTensor tensor =
          mlx_tensor(file, name, StorageFormat::mlx_affine, bits, variant.group, variant.dtype);
      expect_same_bits(all_values(tensor.source), floats_of(file, name + ".values"));
      // The encoder gives MLX's bytes.
      const size_t row_scales = static_cast<size_t>(256 / variant.group) * size_of(variant.dtype);
      for (size_t r = 0; r < 2; ++r) {
        std::vector<float> row(w.begin() + static_cast<std::ptrdiff_t>(256 * r),
                               w.begin() + static_cast<std::ptrdiff_t>(256 * (r + 1)));
        for (float& value : row) {
          if (variant.dtype == Dtype::bf16) value = bf16_to_f32(f32_to_bf16(value));
          if (variant.dtype == Dtype::f16) value = f16_to_f32(f32_to_f16(value));
        }
        std::vector<std::byte> codes(tensor.source.row_bytes), scales(row_scales), biases(row_scales);
        encode_mlx_affine_row(row, bits, variant.group, variant.dtype, {codes, scales, biases});
        EXPECT_EQ(std::memcmp(codes.data(), tensor.weight.data() + r * codes.size(), codes.size()), 0);
        EXPECT_EQ(std::memcmp(scales.data(), tensor.scales.data() + r * row_scales, row_scales), 0);
        EXPECT_EQ(std::memcmp(biases.data(), tensor.biases.data() + r * row_scales, row_scales), 0);
      }
    }
}

TEST(Goldens, MlxFloatModes) {
  const SafetensorsFile file = SafetensorsFile::open(kFolder + "mlx_modes.safetensors");
  const std::vector<float> w = floats_of(file, "w");
  const struct {
    const char* name;
    StorageFormat format;
    int bits, group;
  } modes[] = {{"mxfp4", StorageFormat::mlx_mxfp4, 4, 32},
               {"mxfp8", StorageFormat::mlx_mxfp8, 8, 32},
               {"nvfp4", StorageFormat::mlx_nvfp4, 4, 16}};
  for (const auto& mode : modes) {
    SCOPED_TRACE(mode.name);
    MlxTensor tensor = mlx_tensor(file, mode.name, mode.format, mode.bits, mode.group, Dtype::u8);
    const std::vector<float> expected = floats_of(file, std::string(mode.name) + ".values");
    expect_same_bits(all_values(tensor.source), expected);
    // The encoder's values are MLX's (codes of zero may differ in sign, scales of zero groups in everything).
    const size_t groups = static_cast<size_t>(256 / mode.group);
    std::vector<std::byte> codes(2 * tensor.source.row_bytes), scales(2 * groups);
    for (size_t r = 0; r < 2; ++r)
      encode_mlx_float_row(mode.format, std::span(w).subspan(256 * r, 256),
                           {std::span(codes).subspan(r * tensor.source.row_bytes, tensor.source.row_bytes),
                            std::span(scales).subspan(r * groups, groups),
                            {}});
    tensor.source.data = codes.data();
    tensor.source.scales = scales.data();
    expect_same_bits(all_values(tensor.source), expected);
  }
}

// quantize-eval.md 2.3 and 3.2: w_k = (k - 10) / 16.
TEST(Goldens, PublishedVectors) {
  std::vector<float> w(32);
  for (int k = 0; k < 32; ++k) w[static_cast<size_t>(k)] = static_cast<float>(k - 10) / 16.0f;
  const struct {
    int bits;
    uint32_t scale;
    std::vector<uint32_t> words;
  } affine[] = {
      {2, 0xBF280000, {0xAAAAABFF, 0x00055555}},
      {3, 0xBE866666, {0x6DDB6FFF, 0x36DC925B, 0x00124A49}},
      {4, 0xBE066666, {0xBCCDDEEF, 0x8899AAAB, 0x44556677, 0x00112233}},
      {5, 0xBD800000, {0x75BE77DF, 0x3A56D7C6, 0x35CF8465, 0xC74254B6, 0x00443214}},
      {6, 0xBCFA0BE8, {0x77E7BF7F, 0xBB6FC73D, 0x863967A6, 0x1765B75F, 0xA30E4125, 0x00210620}},
      {8,
       0xBBF899E5,
       {0xE7EFF7FF, 0xC6CED6DE, 0xA5ADB5BD, 0x848C949D, 0x636B737C, 0x424A525B, 0x2129313A, 0x00081019}},
  };
  for (const auto& expected : affine) {
    std::vector<uint32_t> words(static_cast<size_t>(expected.bits));
    uint32_t scale = 0;
    float bias = 0;
    encode_mlx_affine_row(
        w, expected.bits, 32, Dtype::f32,
        {std::as_writable_bytes(std::span(words)), std::as_writable_bytes(std::span(&scale, 1)),
         std::as_writable_bytes(std::span(&bias, 1))});
    EXPECT_EQ(words, expected.words) << expected.bits;
    EXPECT_EQ(scale, expected.scale) << expected.bits;
    EXPECT_EQ(bias, 1.3125f);
  }
  std::vector<uint32_t> words(4);
  std::vector<uint8_t> scales(2);
  encode_mlx_float_row(
      StorageFormat::mlx_nvfp4, w,
      {std::as_writable_bytes(std::span(words)), std::as_writable_bytes(std::span(scales)), {}});
  EXPECT_EQ(scales, (std::vector<uint8_t>{0x1D, 0x26}));
  EXPECT_EQ(words, (std::vector<uint32_t>{0xCCDEEEFF, 0x5442109A, 0x65555443, 0x77776666}));
}

TEST(SmallFloats, EncodersInvertAndRoundToNearest) {
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 0x7F) == 0x7F) continue;
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<uint8_t>(byte))), byte);
  }
  for (int code = 0; code < 16; ++code) EXPECT_EQ(f32_to_e2m1(kE2m1[static_cast<size_t>(code)]), code);
  // Half way between two neighbours: the even code; a little above: the upper one.
  for (int byte = 0; byte < 0x7E; ++byte) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(byte));
    const float high = e4m3_to_f32(static_cast<uint8_t>(byte + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(f32_to_e4m3(middle), byte + (byte & 1)) << byte;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, high)), byte + 1);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, low)), byte);
    EXPECT_EQ(f32_to_e4m3(-middle), 0x80 | (byte + (byte & 1)));
  }
  EXPECT_EQ(f32_to_e4m3(464.0f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-HUGE_VALF), 0xFE);
  EXPECT_EQ(f32_to_e4m3(NAN), 0x7E);
  for (const auto& [value, code] : {std::pair(0.25f, 0),
                                    {0.75f, 2},
                                    {1.25f, 2},
                                    {1.75f, 4},
                                    {2.5f, 4},
                                    {3.5f, 6},
                                    {5.0f, 6},
                                    {5.01f, 7},
                                    {-0.1f, 8}})
    EXPECT_EQ(f32_to_e2m1(value), code) << value;
}

TEST(Encode, RefusesNonFiniteValuesAndUnknownFormats) {
  std::vector<float> x(32, 1.0f);
  std::vector<std::byte> out(34);
  x[7] = NAN;
  EXPECT_THROW(encode_row(StorageFormat::q8_0, x, out), Error);
  EXPECT_THROW(encode_row(StorageFormat::q6_k, std::span(x).first(0), std::span(out).first(0)), Error);
}

TEST(PackCodes, InvertsForEveryWidth) {
  for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::vector<uint8_t> codes(64);
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<uint8_t>((i * 37 + 11) & ((1u << bits) - 1u));
    std::vector<std::byte> packed(static_cast<size_t>(8 * bits));
    pack_codes(codes, bits, packed);
    for (size_t i = 0; i < codes.size(); ++i) {
      uint32_t code = 0;
      for (size_t k = 0; k < static_cast<size_t>(bits); ++k) {
        const size_t bit = i * static_cast<size_t>(bits) + k;
        code |= (std::to_integer<uint32_t>(packed[bit / 8]) >> (bit % 8) & 1u) << k;
      }
      ASSERT_EQ(code, codes[i]) << bits << " bits, code " << i;
    }
  }
}

TEST(RandomRows, EveryFormatIsValidAndHasTheDeviation) {
  constexpr int64_t kCols = 2048;
  constexpr int64_t kRows = 16;
  for (const StorageFormatInfo& storage : all_storage_formats()) {
    if (storage.block_elements == 0 || storage.format == StorageFormat::f8_e5m2) continue;
    if (storage.block_elements == 1 && !can_encode(storage.format)) continue;
    SCOPED_TRACE(storage.name);
    const RandomRows rows(storage.format, 0.05f, 42);
    const size_t row_bytes = static_cast<size_t>(kCols / storage.block_elements * storage.block_bytes);
    std::vector<std::byte> bytes(row_bytes * kRows);
    std::vector<std::byte> again(row_bytes);
    for (int64_t r = 0; r < kRows; ++r)
      rows.fill(r, kCols, std::span(bytes).subspan(static_cast<size_t>(r) * row_bytes, row_bytes));
    rows.fill(3, kCols, again);
    EXPECT_EQ(std::memcmp(again.data(), bytes.data() + 3 * row_bytes, row_bytes), 0);
    EXPECT_NE(std::memcmp(again.data(), bytes.data() + 4 * row_bytes, row_bytes), 0);
    WeightSource source = block_source(storage.format, bytes);
    source.rows = kRows;
    source.cols = kCols;
    source.row_bytes = row_bytes;
    check_finite(source);
    double sum = 0;
    double squares = 0;
    for (const float value : all_values(source)) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double n = static_cast<double>(kCols * kRows);
    EXPECT_NEAR(std::sqrt(squares / n), 0.05, 0.01);
    if (storage.format != StorageFormat::q2_0) {  // its codes are -1, 0, 1, 2
      EXPECT_NEAR(sum / n, 0, 0.012);
    }
  }
  EXPECT_THROW(RandomRows(StorageFormat::i32, 1, 1), Error);
}

TEST(CheckFinite, NamesTensorAndBlock) {
  const auto message = [](const WeightSource& source) -> std::string {
    try {
      check_finite(source);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  for (const StorageFormatInfo& storage : all_storage_formats()) {
    if (storage.block_elements <= 1) continue;
    SCOPED_TRACE(storage.name);
    std::vector<std::byte> bytes(static_cast<size_t>(2 * storage.block_bytes));
    const WeightSource source = block_source(storage.format, bytes);
    EXPECT_EQ(message(source), "no error");
    // All ones is NaN as f16, as E4M3 and as E8M0.
    std::fill(bytes.begin() + storage.block_bytes, bytes.end(), std::byte{0xFF});
    EXPECT_EQ(message(source),
              fmt::format("tensor {}, block 1: invalid scale: expected a finite number", storage.name));
  }
  const float values[4] = {0, 1, 2, INFINITY};
  WeightSource plain;
  plain.name = "p";
  plain.rows = 2;
  plain.cols = 2;
  plain.row_bytes = 8;
  plain.data = reinterpret_cast<const std::byte*>(values);
  EXPECT_EQ(message(plain), "tensor p: non-finite value at row 1, column 1: got inf");
}

}  // namespace
}  // namespace kvasir::formats
