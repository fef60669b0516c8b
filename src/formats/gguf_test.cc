#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "formats/dequantize.h"

namespace kvasir::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Builds GGUF bytes field by field, so that a test can break any one of them.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(std::string_view value) {
    put<uint64_t>(value.size());
    bytes_.append(value);
    return *this;
  }
  Bytes& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  Bytes& header(int64_t tensors, int64_t pairs, uint32_t version = 3) {
    return raw("GGUF").put<uint32_t>(version).put<int64_t>(tensors).put<int64_t>(pairs);
  }
  template <typename T>
  Bytes& pair(std::string_view key, GgufType type, T value) {
    return text(key).put(static_cast<uint32_t>(type)).put<T>(value);
  }
  Bytes& pair(std::string_view key, std::string_view value) {
    return text(key).put(static_cast<uint32_t>(GgufType::string)).text(value);
  }
  Bytes& array(std::string_view key, GgufType type, uint64_t count) {
    return text(key)
        .put(static_cast<uint32_t>(GgufType::array))
        .put(static_cast<uint32_t>(type))
        .put<uint64_t>(count);
  }
  Bytes& tensor(std::string_view name, std::vector<int64_t> ne, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(ne.size()));
    for (const int64_t n : ne) put<int64_t>(n);
    return put<uint32_t>(type).put<uint64_t>(offset);
  }
  Bytes& align(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& zeros(size_t count) {
    bytes_.append(count, '\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

class GgufTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("kvasir_gguf_test_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes.str();
    return folder_ / name;
  }
  std::string error_of(const Bytes& bytes, ErrorCode code = ErrorCode::corrupt_file) const {
    return error_of_path(write("m.gguf", bytes), code);
  }
  static std::string error_of_path(const std::filesystem::path& path, ErrorCode code) {
    try {
      GgufFile::open(path);
    } catch (const Error& error) {
      EXPECT_EQ(name(error.code()), name(code)) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(path.parent_path().string()));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  std::filesystem::path folder_;
};

TEST_F(GgufTest, ReadsEveryKindOfValueAndTensors) {
  Bytes bytes;
  bytes.header(3, 19);
  bytes.pair("general.architecture", "llama")
      .pair<uint8_t>("u8", GgufType::u8, 200)
      .pair<int8_t>("i8", GgufType::i8, -5);
  bytes.pair<uint16_t>("u16", GgufType::u16, 60000).pair<int16_t>("i16", GgufType::i16, -300);
  bytes.pair<uint32_t>("u32", GgufType::u32, 4000000000u).pair<int32_t>("i32", GgufType::i32, -70000);
  bytes.pair<uint64_t>("u64", GgufType::u64, UINT64_MAX).pair<int64_t>("i64", GgufType::i64, INT64_MIN);
  bytes.pair<float>("f32", GgufType::f32, 0.5f).pair<double>("f64", GgufType::f64, 0.1);
  bytes.pair<uint8_t>("yes", GgufType::boolean, 1);
  bytes.array("strings", GgufType::string, 3).text("a").text("").text(std::string("\0\xFF", 2));
  bytes.array("ints", GgufType::i32, 3).put<int32_t>(1).put<int32_t>(-2).put<int32_t>(3);
  bytes.array("reals", GgufType::f32, 2).put<float>(1.5f).put<float>(-2.5f);
  bytes.array("bools", GgufType::boolean, 2).put<uint8_t>(1).put<uint8_t>(0);
  bytes.array("bytes", GgufType::u8, 3).put<uint8_t>(1).put<uint8_t>(2).put<uint8_t>(255);
  bytes.array("none", GgufType::string, 0);
  bytes.array("layers", GgufType::u32, 2).put<uint32_t>(4).put<uint32_t>(0);
  bytes.tensor("a.weight", {3, 2}, 0, 0).tensor("empty", {0, 4}, 0, 32).tensor("q", {64, 1, 2}, 8, 32);
  bytes.align().put(1.0f).put(2.0f).put(3.0f).put(4.0f).put(5.0f).put(6.0f).align().zeros(2 * 2 * 34);
  const GgufFile file = GgufFile::open(write("m.gguf", bytes));

  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.metadata().size(), 19u);
  EXPECT_EQ(file.metadata()[0].key, "general.architecture");
  EXPECT_EQ(file.string("general.architecture"), "llama");
  EXPECT_EQ(file.find_integer("u8"), 200);
  EXPECT_EQ(file.find_integer("i8"), -5);
  EXPECT_EQ(file.find_count("u16"), 60000u);
  EXPECT_EQ(file.find_integer("i16"), -300);
  EXPECT_EQ(file.count("u32"), 4000000000u);
  EXPECT_EQ(file.find_integer("i32"), -70000);
  EXPECT_EQ(file.find_integer("i64"), INT64_MIN);
  EXPECT_EQ(file.find_real("f32"), 0.5);
  EXPECT_EQ(file.real("f64"), 0.1);
  EXPECT_EQ(file.find_bool("yes"), true);
  EXPECT_THAT(*file.find_strings("strings"), ElementsAre("a", "", std::string_view("\0\xFF", 2)));
  EXPECT_THAT(*file.find_integers("ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*file.find_reals("reals"), ElementsAre(1.5f, -2.5f));
  EXPECT_THAT(*file.find_reals("ints"), ElementsAre(1.0f, -2.0f, 3.0f));
  EXPECT_EQ(*file.find_bools("bools"), (std::vector<bool>{true, false}));
  EXPECT_THAT(*file.find_bytes("bytes"), ElementsAre(1, 2, 255));
  EXPECT_TRUE(file.find_strings("none")->empty());
  EXPECT_THAT(*file.find_counts_per_layer("layers", 2), ElementsAre(4, 0));
  EXPECT_THAT(*file.find_counts_per_layer("u8", 3), ElementsAre(200, 200, 200));
  EXPECT_EQ(file.find_string("absent"), std::nullopt);
  EXPECT_EQ(file.find("absent"), nullptr);

  EXPECT_EQ(file.data_opens(), 0u);
  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor& a = file.tensor("a.weight");
  EXPECT_EQ(a.dimensions, 2u);
  EXPECT_EQ(a.bytes, 24u);
  const WeightSource weight = file.weight(a);
  EXPECT_EQ(weight.rows, 2);
  EXPECT_EQ(weight.cols, 3);
  std::vector<float> row(3);
  dequantize_row(weight, 1, row);
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
  EXPECT_EQ(file.data_opens(), 1u);
  EXPECT_EQ(file.tensor("empty").bytes, 0u);
  EXPECT_EQ(file.weight(file.tensor("q")).row_bytes, 68u);
  EXPECT_EQ(file.weight(file.tensor("q")).rows, 2);
  EXPECT_EQ(file.find_tensor("b"), nullptr);
  EXPECT_EQ(file.header(0).size() % 32, 0u);
}

TEST_F(GgufTest, ValueErrorsNameKeyAndTypes) {
  Bytes bytes;
  bytes.header(0, 5)
      .pair("text", "x")
      .pair<int32_t>("minus", GgufType::i32, -1)
      .pair<uint64_t>("huge", GgufType::u64, UINT64_MAX);
  bytes.array("floats", GgufType::f32, 1).put(1.0f).array("layers", GgufType::i32, 2).put(1).put(-1);
  const GgufFile file = GgufFile::open(write("m.gguf", bytes));
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { file.count("text"); }), HasSubstr("text: expected an integer, got string"));
  EXPECT_THAT(message([&] { file.string("minus"); }), HasSubstr("minus: expected string, got i32"));
  EXPECT_THAT(message([&] { file.count("minus"); }), HasSubstr("minus: expected 0 or more, got -1"));
  EXPECT_THAT(message([&] { file.count("huge"); }), HasSubstr("huge: expected an integer below 2^63"));
  EXPECT_THAT(message([&] { file.find_real("floats"); }),
              HasSubstr("floats: expected a real number, got f32 array"));
  EXPECT_THAT(message([&] { file.find_integers("floats"); }),
              HasSubstr("floats: expected integer array, got f32 array"));
  EXPECT_THAT(message([&] { file.find_strings("floats"); }), HasSubstr("floats: expected string array"));
  EXPECT_THAT(message([&] { file.find_bools("floats"); }), HasSubstr("floats: expected bool array"));
  EXPECT_THAT(message([&] { file.find_bytes("floats"); }), HasSubstr("floats: expected byte array"));
  EXPECT_THAT(message([&] { file.find_reals("text"); }), HasSubstr("text: expected array of real numbers"));
  EXPECT_THAT(message([&] { file.find_bool("text"); }), HasSubstr("text: expected bool"));
  EXPECT_THAT(message([&] { file.find_counts_per_layer("layers", 3); }),
              HasSubstr("layers: expected 3 (one a layer), got 2"));
  EXPECT_THAT(message([&] { file.find_counts_per_layer("layers", 2); }),
              HasSubstr("layers: expected 0 or more, got -1"));
  EXPECT_THAT(message([&] { file.count("absent"); }), HasSubstr("metadata key is missing: absent"));
  EXPECT_THAT(message([&] { file.tensor("absent"); }), HasSubstr("tensor is missing: absent"));
}

TEST_F(GgufTest, HeaderErrors) {
  EXPECT_THAT(error_of(Bytes()), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of(Bytes().raw("GGML").zeros(100)), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of(Bytes().raw("GGUF")), HasSubstr("not a GGUF file"));
  EXPECT_THAT(error_of(Bytes().header(0, 0, 1), ErrorCode::unsupported),
              HasSubstr("version 1 is not supported"));
  EXPECT_THAT(error_of(Bytes().header(0, 0, 4), ErrorCode::unsupported),
              HasSubstr("version 4 is newer than supported"));
  EXPECT_THAT(error_of(Bytes().header(0, 0, 0x03000000)), HasSubstr("byte order mismatch"));
  EXPECT_THAT(error_of(Bytes().raw("GGUF").put<uint32_t>(3).put<uint32_t>(0)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(Bytes().header(-1, 0)), HasSubstr("implausible count: tensor count"));
  EXPECT_THAT(error_of(Bytes().header(INT64_MAX, 0)), HasSubstr("implausible count: tensor count: limit"));
  EXPECT_THAT(error_of(Bytes().header(1, 0)), HasSubstr("implausible count: tensor count: 1 cannot fit"));
  EXPECT_THAT(error_of(Bytes().header(0, INT64_MAX)), HasSubstr("implausible count: metadata count"));
  EXPECT_THAT(error_of(Bytes().header(0, 100000)), HasSubstr("metadata count: 100000 cannot fit"));
  EXPECT_EQ(GgufFile::open(write("v2.gguf", Bytes().header(0, 0, 2))).version(), 2u);
}

TEST_F(GgufTest, MetadataErrors) {
  const auto h = [](int64_t pairs) { return Bytes().header(0, pairs); };
  EXPECT_THAT(error_of(h(1).put<uint64_t>(UINT64_MAX).zeros(20)),
              HasSubstr("string length 18446744073709551615 exceeds file"));
  EXPECT_THAT(error_of(h(1).text("").zeros(20)), HasSubstr("invalid metadata key"));
  EXPECT_THAT(error_of(h(1).text(std::string(65536, 'k')).zeros(20)),
              HasSubstr("1 to 65535 bytes, got 65536"));
  EXPECT_THAT(error_of(h(1).text("\xC0\x80").zeros(20)), HasSubstr("expected UTF-8"));
  EXPECT_THAT(error_of(h(1).pair<uint64_t>("k", static_cast<GgufType>(13), 0)),
              HasSubstr("unknown metadata type: k: expected 0 to 12, got 13"));
  EXPECT_THAT(error_of(h(1).pair<uint8_t>("k", GgufType::boolean, 2).zeros(4)),
              HasSubstr("invalid bool: k: expected 0 or 1, got 2"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::boolean, 2).put<uint8_t>(1).put<uint8_t>(7)),
              HasSubstr("invalid bool: k"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::array, 1).zeros(40)),
              HasSubstr("invalid array element type: k"));
  EXPECT_THAT(error_of(h(1).array("k", static_cast<GgufType>(99), 1).zeros(40)),
              HasSubstr("invalid array element type: k"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::u8, (1ull << 30) + 1)),
              HasSubstr("array too long: k: limit 1073741824"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::f64, 3).zeros(16)), HasSubstr("value exceeds file: k"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::string, 3).zeros(16)), HasSubstr("value exceeds file: k"));
  EXPECT_THAT(error_of(h(1).array("k", GgufType::string, 2).text("ab").put<uint64_t>(5)),
              HasSubstr("string length 5 exceeds file: k"));
  EXPECT_THAT(error_of(h(1).pair<uint64_t>("k", GgufType::string, 5).raw("abcd")),
              HasSubstr("string length 5 exceeds file: k"));
  EXPECT_THAT(error_of(h(1).text("long key").put<uint32_t>(10).zeros(7)),
              HasSubstr("value exceeds file: long key"));
  EXPECT_THAT(error_of(h(2).pair<uint32_t>("k", GgufType::u32, 1).pair<uint32_t>("k", GgufType::u32, 1)),
              HasSubstr("duplicate metadata key: k"));
  for (const uint32_t bad : {0u, 3u, 4u, 48u})
    EXPECT_THAT(error_of(h(1).pair<uint32_t>("general.alignment", GgufType::u32, bad)),
                HasSubstr("invalid general.alignment"));
  EXPECT_THAT(error_of(h(1).pair<uint64_t>("general.alignment", GgufType::u64, 32)),
              HasSubstr("expected u32, got u64"));
  // Huge but valid alignment: the (absent) data's beginning may lie beyond the file only without tensors.
  EXPECT_EQ(GgufFile::open(write("a.gguf", h(1).pair<uint32_t>("general.alignment", GgufType::u32, 1u << 31)))
                .tensors()
                .size(),
            0u);
  EXPECT_THAT(error_of(Bytes()
                           .header(1, 1)
                           .pair<uint32_t>("general.alignment", GgufType::u32, 1u << 31)
                           .tensor("t", {1}, 0, 0)
                           .zeros(64)),
              HasSubstr("tensor t ends beyond the file"));
}

TEST_F(GgufTest, TensorErrors) {
  const auto one = [](std::string_view name, std::vector<int64_t> ne, uint32_t type, uint64_t offset) {
    return Bytes().header(1, 0).tensor(name, std::move(ne), type, offset).align().zeros(4096);
  };
  EXPECT_THAT(error_of(one("", {1}, 0, 0)), HasSubstr("invalid tensor name"));
  EXPECT_THAT(error_of(one(std::string(64, 'n'), {1}, 0, 0)), HasSubstr("1 to 63 bytes, got 64"));
  EXPECT_THAT(error_of(one("t\xFF", {1}, 0, 0)), HasSubstr("expected UTF-8"));
  EXPECT_THAT(error_of(one("t", {1, 1, 1, 1, 1}, 0, 0)),
              HasSubstr("tensor t: expected at most 4 dimensions, got 5"));
  EXPECT_THAT(
      error_of(one("t", {-1}, 0, 0)),
      HasSubstr("tensor t: dimension 0: expected 0 to 9223372036854775807, got 18446744073709551615"));
  EXPECT_THAT(error_of(one("t", {INT64_MAX, 2}, 0, 0)),
              HasSubstr("tensor t: the product of its dimensions overflows"));
  EXPECT_THAT(error_of(one("t", {0, INT64_MAX, 2}, 0, 0)),
              HasSubstr("tensor t: the product of its dimensions overflows"));
  EXPECT_THAT(error_of(one("t", {INT64_MAX}, 0, 0)), HasSubstr("tensor t: its size in bytes overflows"));
  EXPECT_THAT(error_of(one("t", {33}, 2, 0)),
              HasSubstr("tensor t: rows of 33 elements: expected a multiple of 32 for q4_0"));
  EXPECT_THAT(error_of(one("t", {128}, 12, 0)), HasSubstr("expected a multiple of 256 for q4_K"));
  EXPECT_THAT(error_of(one("t", {}, 2, 0)), HasSubstr("rows of 1 elements"));
  for (const uint32_t type : {4u, 5u, 31u, 33u, 36u, 38u, 43u, 1000u})
    EXPECT_THAT(error_of(one("t", {256}, type, 0), ErrorCode::unsupported),
                HasSubstr("tensor t has unsupported type " + std::to_string(type)));
  EXPECT_THAT(error_of(one("t", {32}, 9, 0), ErrorCode::unsupported), HasSubstr("q8_1"));
  EXPECT_THAT(error_of(one("t", {256}, 15, 0), ErrorCode::unsupported), HasSubstr("q8_K"));
  EXPECT_THAT(error_of(one("t", {8}, 0, 32)), HasSubstr("invalid offset of tensor t: expected 0, got 32"));
  EXPECT_THAT(error_of(one("t", {8}, 0, 1)), HasSubstr("invalid offset of tensor t: expected 0, got 1"));
  EXPECT_THAT(error_of(one("t", {1025}, 0, 0)), HasSubstr("tensor t ends beyond the file"));
  const auto two = [](uint64_t offset) {
    return Bytes().header(2, 0).tensor("t", {9}, 0, 0).tensor("u", {1}, 0, offset).align().zeros(256);
  };
  for (const uint64_t wrong : {0ull, 32ull, 36ull, 96ull, 0xFFFFFFFFFFFFFFE0ull})
    EXPECT_THAT(error_of(two(wrong)), HasSubstr("invalid offset of tensor u: expected 64"));
  EXPECT_THAT(
      error_of(Bytes().header(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).align().zeros(256)),
      HasSubstr("duplicate tensor name: t"));
  // The last tensor's padding may be missing.
  EXPECT_EQ(GgufFile::open(write("p.gguf", Bytes().header(1, 0).tensor("t", {1}, 0, 0).align().zeros(4)))
                .tensors()
                .size(),
            1u);
}

TEST_F(GgufTest, EveryTruncationIsAnError) {
  Bytes bytes;
  bytes.header(2, 2)
      .pair("general.architecture", "llama")
      .array("s", GgufType::string, 2)
      .text("ab")
      .text("c");
  bytes.tensor("t", {8}, 0, 0).tensor("u", {3}, 0, 32).align().zeros(32 + 12);
  for (size_t length = 0; length < bytes.str().size(); ++length)
    error_of(Bytes().raw(bytes.str().substr(0, length)));
  EXPECT_EQ(GgufFile::open(write("m.gguf", bytes)).tensors().size(), 2u);
}

Bytes split_part(uint16_t number, uint16_t count, int32_t total, std::vector<std::string> tensors) {
  Bytes bytes;
  bytes.header(static_cast<int64_t>(tensors.size()), number == 0 ? 4 : 3);
  bytes.pair<uint16_t>("split.no", GgufType::u16, number).pair<uint16_t>("split.count", GgufType::u16, count);
  bytes.pair<int32_t>("split.tensors.count", GgufType::i32, total);
  if (number == 0) bytes.pair("general.architecture", "llama");
  for (size_t i = 0; i < tensors.size(); ++i) bytes.tensor(tensors[i], {2}, 0, 32 * i);
  if (tensors.empty()) return bytes;
  bytes.align();
  for (size_t i = 0; i < tensors.size(); ++i)
    bytes.put(static_cast<float>(number)).put(static_cast<float>(i)).align();
  return bytes;
}

TEST_F(GgufTest, SplitModel) {
  const auto first = write("m-00001-of-00003.gguf", split_part(0, 3, 3, {}));
  write("m-00002-of-00003.gguf", split_part(1, 3, 3, {"a", "b"}));
  write("m-00003-of-00003.gguf", split_part(2, 3, 3, {"c"}));
  const GgufFile file = GgufFile::open(first);
  EXPECT_EQ(file.parts(), 3u);
  EXPECT_EQ(file.string("general.architecture"), "llama");
  std::vector<float> row(2);
  dequantize_row(file.weight(file.tensor("b")), 0, row);
  EXPECT_THAT(row, ElementsAre(1, 1));
  dequantize_row(file.weight(file.tensor("c")), 0, row);
  EXPECT_THAT(row, ElementsAre(2, 0));
}

TEST_F(GgufTest, SplitErrors) {
  const auto first = write("m-00001-of-00002.gguf", split_part(0, 2, 2, {"a"}));
  EXPECT_THAT(error_of_path(first, ErrorCode::not_found),
              HasSubstr("m-00002-of-00002.gguf: missing part 2 of 2"));
  const auto second = write("m-00002-of-00002.gguf", split_part(1, 2, 2, {"b"}));
  EXPECT_EQ(GgufFile::open(first).tensors().size(), 2u);
  EXPECT_THAT(error_of_path(second, ErrorCode::invalid_input),
              HasSubstr("is part 2 of 2: open part 1, m-00001-of-00002.gguf"));
  write("m-00002-of-00002.gguf", split_part(1, 3, 2, {"b"}));
  EXPECT_THAT(error_of_path(first, ErrorCode::corrupt_file), HasSubstr("expected 1 of 2, got 1 of 3"));
  write("m-00002-of-00002.gguf", Bytes().header(0, 0));
  EXPECT_THAT(error_of_path(first, ErrorCode::corrupt_file), HasSubstr("got none of none"));
  write("m-00002-of-00002.gguf", split_part(1, 2, 2, {"a"}));
  EXPECT_THAT(error_of_path(first, ErrorCode::corrupt_file), HasSubstr("duplicate tensor name: a"));
  write("m-00002-of-00002.gguf", split_part(1, 2, 2, {"b", "c"}));
  EXPECT_THAT(error_of_path(first, ErrorCode::corrupt_file), HasSubstr("split.tensors.count: expected 3"));
  EXPECT_THAT(error_of_path(write("other.gguf", split_part(0, 2, 2, {"a"})), ErrorCode::invalid_input),
              HasSubstr("-00001-of-00002.gguf"));
}

TEST_F(GgufTest, FolderAndMissingFile) {
  EXPECT_THAT(error_of_path(folder_ / "none.gguf", ErrorCode::not_found), HasSubstr("none.gguf"));
  EXPECT_THROW(GgufFile::open(folder_), Error);
}

TEST(GgufModels, Gemma270mOpensInMilliseconds) {
  const std::filesystem::path path = std::filesystem::path(KVASIR_MODELS_DIR) / "gemma-3-270m-Q4_K_M.gguf";
  ASSERT_TRUE(std::filesystem::exists(path)) << path << ": `make models` fetches it";
  GgufFile::open(path);  // warm
  const auto begin = std::chrono::steady_clock::now();
  const GgufFile file = GgufFile::open(path);
  const auto tokens = file.find_strings("tokenizer.ggml.tokens");
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(tokens->size(), 262144u);
  EXPECT_EQ((*tokens)[2], "<bos>");
  EXPECT_EQ(file.tensors().size(), 236u);
  EXPECT_EQ(file.count("gemma3.block_count"), 18u);
  EXPECT_EQ(file.data_opens(), 0u);
  RecordProperty("open_ms", std::to_string(ms));
  EXPECT_LT(ms, 200);  // a few ms on an idle machine; the bound only catches a lost order of magnitude
}

}  // namespace
}  // namespace kvasir::formats
