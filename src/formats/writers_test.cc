#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf_writer.h"
#include "formats/safetensors_writer.h"

namespace kvasir::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
TensorProducer values(std::vector<T> v) {
  const auto bytes = std::as_bytes(std::span(v));
  return produce_bytes({bytes.begin(), bytes.end()});
}

class WritersTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("kvasir_writers_test_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(WritersTest, SafetensorsLayoutIsTheRustWriters) {
  std::vector<SafetensorsToWrite> tensors;
  tensors.push_back({"z", SafetensorsDtype::u8, {3}, values<uint8_t>({1, 2, 3})});
  tensors.push_back({"b", SafetensorsDtype::f32, {}, values<float>({1.0f})});
  tensors.push_back({"a\"é", SafetensorsDtype::f32, {1, 2}, values<float>({2.0f, 3.0f})});
  write_safetensors(folder_ / "t.safetensors", tensors, {{"format", "pt"}});
  const std::string bytes = read_file(folder_ / "t.safetensors", 1 << 20);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a\"é":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F32","shape":[],"data_offsets":[8,12]},"z":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(bytes.substr(8, padded.size()), padded);
  EXPECT_EQ(bytes.size(), 8 + padded.size() + 15);
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "t.safetensors");
  EXPECT_EQ(std::to_integer<int>(file.data(*file.find("z"))[2]), 3);
  write_safetensors(folder_ / "empty.safetensors", {});
  EXPECT_EQ(read_file(folder_ / "empty.safetensors", 100), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_F(WritersTest, ShardsFillGreedilyAndReadBack) {
  std::vector<SafetensorsToWrite> tensors;
  for (int i = 0; i < 5; ++i)
    tensors.push_back({"t" + std::to_string(i),
                       SafetensorsDtype::u8,
                       {4},
                       values<uint8_t>(std::vector<uint8_t>(4, static_cast<uint8_t>(i)))});
  tensors.push_back({"large", SafetensorsDtype::u8, {20}, values<uint8_t>(std::vector<uint8_t>(20, 9))});
  write_safetensors_model(folder_, tensors, {}, 9);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model-00004-of-00004.safetensors"));
  const SafetensorsModel model = SafetensorsModel::open_folder(folder_);
  EXPECT_EQ(model.files(), 4u);
  EXPECT_TRUE(model.warnings().empty());
  for (int i = 0; i < 5; ++i) {
    const SafetensorsTensor& tensor = model.tensor("t" + std::to_string(i));
    EXPECT_EQ(tensor.file, static_cast<uint32_t>(i / 2));
    EXPECT_EQ(std::to_integer<int>(model.data(tensor)[3]), i);
  }
}

TEST_F(WritersTest, RefusesEqualNamesAndWrongSizes) {
  std::vector<SafetensorsToWrite> twice(2, {"a", SafetensorsDtype::u8, {1}, values<uint8_t>({1})});
  EXPECT_THROW(write_safetensors(folder_ / "t", twice), Error);
  const std::vector<SafetensorsToWrite> wrong = {{"a", SafetensorsDtype::u8, {2}, values<uint8_t>({1})}};
  EXPECT_THROW(write_safetensors(folder_ / "t", wrong), Error);
  GgufWriter gguf;
  gguf.set_u32("k", 1);
  EXPECT_THROW(gguf.set_u32("k", 1), Error);
  EXPECT_THROW(gguf.add_tensor("", StorageFormat::f32, {1}, {}), Error);
  EXPECT_THROW(gguf.add_tensor("t", StorageFormat::q4_0, {31}, {}), Error);
  EXPECT_THROW(gguf.add_tensor("t", StorageFormat::mlx_affine, {32}, {}), Error);
  EXPECT_THROW(gguf.add_tensor("t", StorageFormat::f32, {1, 1, 1, 1, 1}, {}), Error);
  gguf.add_tensor("t", StorageFormat::f32, {2}, values<float>({1}));
  EXPECT_THROW(gguf.add_tensor("t", StorageFormat::f32, {2}, {}), Error);
  EXPECT_THROW(gguf.write(folder_ / "g"), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(WritersTest, GgufReadsBackAndIsDeterministic) {
  GgufWriter writer;
  writer.set_string("general.architecture", "llama");
  writer.set_u16("a.u16", 65535);
  writer.set_u32("a.u32", 7);
  writer.set_i32("a.i32", -7);
  writer.set_u64("a.u64", uint64_t{1} << 40);
  writer.set_f32("a.f32", 0.25f);
  writer.set_bool("a.bool", true);
  writer.set_strings("a.strings", {"x", "", "yz"});
  writer.set_i32s("a.i32s", {-1, 2});
  writer.set_u32s("a.u32s", {1, 2});
  writer.set_f32s("a.f32s", {0.5f});
  writer.set_bools("a.bools", {true, false});
  const uint8_t raw[] = {1, 255};
  writer.set_bytes("a.bytes", raw);
  writer.add_tensor("f", StorageFormat::f32, {3, 2}, values<float>({1, 2, 3, 4, 5, 6}));
  writer.add_tensor("q", StorageFormat::q8_0, {32}, values<uint8_t>(std::vector<uint8_t>(34, 5)));
  writer.add_tensor("s", StorageFormat::i32, {}, values<int32_t>({42}));
  writer.write(folder_ / "m.gguf");
  writer.write(folder_ / "n.gguf");
  EXPECT_EQ(read_file(folder_ / "m.gguf", 1 << 20), read_file(folder_ / "n.gguf", 1 << 20));
  const GgufFile file = GgufFile::open(folder_ / "m.gguf");
  EXPECT_EQ(file.count("general.quantization_version"), 2u);
  EXPECT_EQ(file.count("a.u16"), 65535u);
  EXPECT_EQ(file.find_integer("a.i32"), -7);
  EXPECT_EQ(file.count("a.u64"), uint64_t{1} << 40);
  EXPECT_EQ(file.real("a.f32"), 0.25);
  EXPECT_EQ(file.find_bool("a.bool"), true);
  EXPECT_THAT(*file.find_strings("a.strings"), ElementsAre("x", "", "yz"));
  EXPECT_THAT(*file.find_integers("a.i32s"), ElementsAre(-1, 2));
  EXPECT_THAT(*file.find_integers("a.u32s"), ElementsAre(1, 2));
  EXPECT_THAT(*file.find_reals("a.f32s"), ElementsAre(0.5f));
  EXPECT_EQ(*file.find_bools("a.bools"), (std::vector<bool>{true, false}));
  EXPECT_THAT(*file.find_bytes("a.bytes"), ElementsAre(1, 255));
  EXPECT_EQ(file.tensor("f").ne[0], 3);
  float last = 0;
  std::memcpy(&last, file.data(file.tensor("f")).data() + 20, 4);
  EXPECT_EQ(last, 6.0f);
  EXPECT_EQ(std::to_integer<int>(file.data(file.tensor("s"))[0]), 42);
}

}  // namespace
}  // namespace kvasir::formats
