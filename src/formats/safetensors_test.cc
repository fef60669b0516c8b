#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "formats/dequantize.h"
#include "formats/file_names.h"

namespace kvasir::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string with_header(std::string_view json, size_t data_bytes = 0) {
  const uint64_t length = json.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  out += json;
  out.append(data_bytes, '\0');
  return out;
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("kvasir_safetensors_test_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::string error_of(const std::string& bytes, bool lenient = false) const {
    const auto path = write("t.safetensors", bytes);
    try {
      SafetensorsFile::open(path, {.lenient = lenient});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      EXPECT_THAT(error.what(), HasSubstr("t.safetensors: "));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "no error";
  }
  std::string folder_error(ErrorCode code) const {
    try {
      SafetensorsModel::open_folder(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(name(error.code()), name(code));
      EXPECT_THAT(error.what(), HasSubstr(folder_.string()));
      return error.what();
    }
    return "no error";
  }
  std::filesystem::path folder_;
};

constexpr const char* kTwo =
    R"({"__metadata__":{"format":"pt","x":"y"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a\u00e9":{"shape":[],"data_offsets":[24,26],"dtype":"BF16"},"none":{"dtype":"F16","shape":[0,7],"data_offsets":[26,26]}}   )";

TEST_F(SafetensorsTest, ReadsTensorsInTheOrderOfTheData) {
  std::string bytes = with_header(kTwo);
  for (const float value : {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f})
    bytes.append(reinterpret_cast<const char*>(&value), 4);
  bytes += "\x80\x3F";
  const std::filesystem::path paths[] = {write("t.safetensors", bytes)};
  const SafetensorsModel model = SafetensorsModel::open_files(paths);
  EXPECT_THAT(model.file(0).metadata(), ElementsAre(testing::Pair("format", "pt"), testing::Pair("x", "y")));
  ASSERT_EQ(model.tensors().size(), 3u);
  EXPECT_EQ(model.tensors()[0].name, "b");
  EXPECT_THAT(model.tensors()[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(model.tensors()[1].name, "aé");
  EXPECT_TRUE(model.tensors()[1].shape.empty());
  EXPECT_EQ(model.data_opens(), 0u);
  std::vector<float> row(3);
  dequantize_row(model.weight(model.tensor("b")), 1, row);
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
  std::vector<float> one(1);
  dequantize_row(model.weight(model.tensor("aé")), 0, one);
  EXPECT_THAT(one, ElementsAre(1));
  EXPECT_EQ(model.data_opens(), 2u);
  EXPECT_EQ(model.weight(model.tensor("none")).rows, 0);
  EXPECT_EQ(model.find("c"), nullptr);
  EXPECT_THROW(model.tensor("c"), Error);
}

TEST_F(SafetensorsTest, SmallestFiles) {
  EXPECT_EQ(error_of(with_header("{}")), "no error");
  EXPECT_EQ(error_of(with_header("{}      ")), "no error");
}

TEST_F(SafetensorsTest, Row1To4HeaderErrors) {
  EXPECT_THAT(error_of(""), HasSubstr("header too small"));
  EXPECT_THAT(error_of("1234567"), HasSubstr("header too small"));
  EXPECT_THAT(error_of(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8)), HasSubstr("header too large: 100000001"));
  EXPECT_THAT(error_of(std::string(8, '\xFF')), HasSubstr("header too large: 18446744073709551615"));
  EXPECT_THAT(error_of(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("invalid header length"));
  EXPECT_THAT(error_of(with_header("")), HasSubstr("invalid header: the first byte is no '{'"));
  EXPECT_THAT(error_of(with_header(" {}")), HasSubstr("invalid header: the first byte is no '{'"));
  EXPECT_THAT(error_of(with_header("\xEF\xBB\xBF{}")), HasSubstr("invalid header: the first byte is no '{'"));
  EXPECT_THAT(error_of(with_header("{\"\xFF\":1}")), HasSubstr("invalid header: the text is not UTF-8"));
  EXPECT_THAT(error_of(with_header("{} x")), HasSubstr("invalid header: unexpected text"));
  EXPECT_THAT(error_of(with_header(std::string_view("{}\0", 3))),
              HasSubstr("invalid header: unexpected text"));
  EXPECT_THAT(error_of(with_header("{\"a\":1}")), HasSubstr("invalid header: entry \"a\" is no object"));
  EXPECT_THAT(error_of(with_header("{\"a\":")), HasSubstr("invalid header: unexpected end"));
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(error_of(with_header("{\"a\":" + entry + ",\"a\":" + entry + "}")),
              HasSubstr("invalid header: duplicate key \"a\""));
  EXPECT_THAT(error_of(with_header("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}")),
              HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(error_of(with_header(R"({"__metadata__":{},"__metadata__":{}})")),
              HasSubstr("duplicate key \"__metadata__\""));
  EXPECT_THAT(error_of(with_header(R"({"__metadata__":{"a":"1","a":"2"}})")),
              HasSubstr("duplicate key \"a\" in __metadata__"));
  EXPECT_THAT(error_of(with_header(R"({"__metadata__":{"a":1}})")),
              HasSubstr("value of \"a\" in __metadata__ is no string"));
  EXPECT_THAT(error_of(with_header(R"({"__metadata__":"a"})")), HasSubstr("__metadata__ is no object"));
  EXPECT_THAT(error_of(with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})")),
              HasSubstr("tensor \"a\" has an unknown field \"x\""));
  EXPECT_THAT(error_of(with_header(R"({"a":{"dtype":"U8","shape":[0]}})")),
              HasSubstr("lacks the field \"data_offsets\""));
  EXPECT_THAT(error_of(with_header(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})")),
              HasSubstr("lacks the field \"shape\""));
  EXPECT_THAT(error_of(with_header(R"({"a":{"shape":[0],"data_offsets":[0,0]}})")),
              HasSubstr("lacks the field \"dtype\""));
  EXPECT_THAT(error_of(with_header(R"({"a":{"shape":[0],"shape":[0],"data_offsets":[0,0],"dtype":"U8"}})")),
              HasSubstr("two fields \"shape\""));
}

TEST_F(SafetensorsTest, Row5TensorInfo) {
  const auto info = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return with_header(
        fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), 8);
  };
  EXPECT_EQ(error_of(info("\"F32\"", "[2]", "[0,8]")), "no error");
  EXPECT_EQ(error_of(info("\"F4\"", "[16]", "[0,8]")), "no error");
  EXPECT_EQ(error_of(info("\"C64\"", "[]", "[0,8]")), "no error");
  for (const auto& bad :
       {info("\"F33\"", "[2]", "[0,8]"), info("32", "[2]", "[0,8]"), info("\"F32\"", "2", "[0,8]"),
        info("\"F32\"", "[-2]", "[0,8]"), info("\"F32\"", "[2.0]", "[0,8]"),
        info("\"F32\"", "[9007199254740992]", "[0,8]"), info("\"F32\"", "[\"2\"]", "[0,8]"),
        info("\"F32\"", "[1e1]", "[0,8]"), info("\"F32\"", "[18446744073709551615]", "[0,8]"),
        info("\"F32\"", "[2]", "[0]"), info("\"F32\"", "[2]", "[0,8,9]"), info("\"F32\"", "[2]", "[8,0]"),
        info("\"F32\"", "[2]", "[-8,0]"), info("\"F32\"", "[2]", "8"),
        info("\"F32\"", "[2]", "[0,9007199254740992]"),
        info("\"F32\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]")})
    EXPECT_THAT(error_of(bad), HasSubstr("invalid tensor info: a")) << bad.substr(8);
}

TEST_F(SafetensorsTest, Row6And7Sizes) {
  const auto info = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return with_header(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), 8);
  };
  EXPECT_THAT(error_of(info("F32", "[4503599627370496,4503599627370496]", "[0,8]")),
              HasSubstr("tensor size overflow: a"));
  EXPECT_THAT(error_of(info("F32", "[4503599627370496,4503599627370496,0]", "[0,8]")),
              HasSubstr("tensor size overflow: a"));
  EXPECT_THAT(error_of(info("F4", "[3]", "[0,8]")), HasSubstr("misaligned sub-byte tensor: a"));
  EXPECT_THAT(error_of(info("F6_E2M3", "[2]", "[0,8]")), HasSubstr("misaligned sub-byte tensor: a"));
  EXPECT_THAT(error_of(info("F32", "[3]", "[0,8]")),
              HasSubstr("tensor a: shape needs 12 bytes, offsets give 8"));
  EXPECT_THAT(error_of(info("F16", "[3]", "[0,8]")),
              HasSubstr("tensor a: shape needs 6 bytes, offsets give 8"));
}

TEST_F(SafetensorsTest, Row8And9Layout) {
  const auto two = [](int begin_a, int end_a, int begin_b, int end_b, size_t data) {
    return with_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                                   R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                   end_a - begin_a, begin_a, end_a, end_b - begin_b, begin_b, end_b),
                       data);
  };
  EXPECT_EQ(error_of(two(0, 4, 4, 8, 8)), "no error");
  EXPECT_EQ(error_of(two(4, 8, 0, 4, 8)), "no error");
  EXPECT_EQ(error_of(two(0, 4, 4, 4, 4)), "no error");
  EXPECT_THAT(error_of(two(1, 4, 4, 8, 8)), HasSubstr("invalid offset for tensor a"));
  EXPECT_THAT(error_of(two(0, 4, 5, 8, 8)), HasSubstr("invalid offset for tensor b"));
  EXPECT_THAT(error_of(two(0, 4, 3, 8, 8)), HasSubstr("invalid offset for tensor b"));
  EXPECT_THAT(error_of(two(0, 4, 0, 4, 8)), HasSubstr("invalid offset for tensor b"));
  EXPECT_THAT(error_of(two(0, 4, 4, 8, 9)), HasSubstr("file not fully covered: 1 trailing bytes"));
  EXPECT_THAT(error_of(two(0, 4, 4, 8, 7)), HasSubstr("tensor b ends beyond the file"));
  // Lenient: holes, trailing bytes and an empty tensor anywhere, but no overlap and nothing outside.
  EXPECT_EQ(error_of(two(1, 4, 5, 8, 20), true), "no error");
  EXPECT_EQ(error_of(two(0, 8, 3, 3, 20), true), "no error");
  EXPECT_THAT(error_of(two(0, 4, 3, 8, 8), true), HasSubstr("invalid offset for tensor b"));
  EXPECT_THAT(error_of(two(0, 4, 0, 4, 8), true), HasSubstr("invalid offset for tensor b"));
  EXPECT_THAT(error_of(two(0, 4, 5, 8, 7), true), HasSubstr("tensor b ends beyond the file"));
  EXPECT_THAT(error_of(two(0, 4, 9, 9, 8), true), HasSubstr("tensor b ends beyond the file"));
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string bytes = with_header(kTwo, 26);
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_NE(error_of(bytes.substr(0, length)), "no error");
  EXPECT_EQ(error_of(bytes), "no error");
}

TEST_F(SafetensorsTest, SparseHugeFileOpensAtOnce) {
  // The temporary folder may lie on a file system that holds no file of 200 GiB: then half, and so on;
  // opening takes no longer for any of them.
  uint64_t size = uint64_t{400} << 30;
  std::filesystem::path path;
  std::error_code failed;
  do {
    size /= 2;
    path = write("t.safetensors",
                 with_header(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})",
                                         size, size)));
    std::filesystem::resize_file(path, std::filesystem::file_size(path) + size, failed);
  } while (failed && size > uint64_t{1} << 30);
  ASSERT_FALSE(failed) << failed.message();
  const auto begin = std::chrono::steady_clock::now();
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_EQ(file.tensors()[0].bytes, size);
}

std::string tensor_file(std::initializer_list<std::string_view> names) {
  std::string json = "{";
  size_t offset = 0;
  for (const std::string_view tensor : names) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                        offset == 0 ? "" : ",", tensor, offset, offset + 1);
    ++offset;
  }
  std::string out = with_header(json + "}");
  for (const std::string_view tensor : names) out += tensor.back();
  return out;
}

TEST_F(SafetensorsTest, ShardsFollowTheIndex) {
  write("model-00001-of-00002.safetensors", tensor_file({"a", "b"}));
  write("model-00002-of-00002.safetensors", tensor_file({"c", "extra"}));
  write("model-other.safetensors", tensor_file({"a"}));
  write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":999},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
  const SafetensorsModel model = SafetensorsModel::open_folder(folder_);
  EXPECT_EQ(model.files(), 2u);
  EXPECT_EQ(std::to_integer<char>(model.data(model.tensor("c"))[0]), 'c');
  EXPECT_EQ(std::to_integer<char>(model.data(model.tensor("b"))[0]), 'b');
  ASSERT_EQ(model.warnings().size(), 1u);
  EXPECT_THAT(model.warnings()[0], HasSubstr("1 tensors are missing from the index, first extra"));
}

TEST_F(SafetensorsTest, WithoutIndex) {
  EXPECT_THAT(folder_error(ErrorCode::not_found), HasSubstr("no weights"));
  write("pytorch_model.bin", "x");
  EXPECT_THAT(folder_error(ErrorCode::unsupported),
              HasSubstr("unsupported checkpoint: found pytorch_model.bin"));
  write("model-2.safetensors", tensor_file({"b"}));
  write("model-1.safetensors", tensor_file({"a"}));
  EXPECT_EQ(SafetensorsModel::open_folder(folder_).files(), 2u);
  EXPECT_EQ(SafetensorsModel::open_folder(folder_).tensors()[0].name, "a");
  write("model.safetensors", tensor_file({"c"}));
  EXPECT_EQ(SafetensorsModel::open_folder(folder_).tensors().size(), 1u);
}

TEST_F(SafetensorsTest, IndexErrors) {
  write("s.safetensors", tensor_file({"a"}));
  const auto index = [&](const std::string& text) {
    write("model.safetensors.index.json", text);
    return folder_error(ErrorCode::corrupt_file);
  };
  EXPECT_THAT(index("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(index("{}"), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(index(R"({"weight_map":{"a":1}})"), HasSubstr("file of tensor \"a\" is no string"));
  EXPECT_THAT(index(R"({"weight_map":{"a":"s.safetensors","a":"s.safetensors"}})"),
              HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(index(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("duplicate key \"weight_map\""));
  EXPECT_THAT(index(R"({"weight_map":{"b":"s.safetensors"}})"),
              HasSubstr("tensor b: index says s.safetensors, not there"));
  for (const char* bad : {"", ".", "..", "../s.safetensors", "/s.safetensors", "x\\\\s", "c:s", "s\\u0000"})
    EXPECT_THAT(index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", bad)), HasSubstr("invalid shard name"))
        << bad;
  write("model.safetensors.index.json", R"({"weight_map":{"a":"missing.safetensors"}})");
  EXPECT_THAT(folder_error(ErrorCode::not_found),
              HasSubstr("missing shard missing.safetensors (incomplete download?)"));
  write("r.safetensors", tensor_file({"a"}));
  write("model.safetensors.index.json", R"({"weight_map":{"a":"s.safetensors","b":"r.safetensors"}})");
  EXPECT_THAT(folder_error(ErrorCode::corrupt_file),
              testing::AllOf(HasSubstr("tensor a is also in"), HasSubstr("r.safetensors")));
}

TEST_F(SafetensorsTest, LinksOutOfTheFolder) {
  namespace fs = std::filesystem;
  const fs::path outside = folder_ / "blobs";
  const fs::path snapshot = folder_ / "snapshots" / "abc";
  const fs::path plain = folder_ / "plain";
  fs::create_directories(outside);
  fs::create_directories(snapshot);
  fs::create_directories(plain);
  write("blobs/1234", tensor_file({"a"}));
  for (const fs::path& model : {snapshot, plain}) {
    fs::create_symlink(outside / "1234", model / "s.safetensors");
    std::ofstream(model / "model.safetensors.index.json") << R"({"weight_map":{"a":"s.safetensors"}})";
  }
  EXPECT_EQ(SafetensorsModel::open_folder(snapshot).tensors().size(), 1u);
  EXPECT_THROW(SafetensorsModel::open_folder(plain), Error);

  // Content that the repositories of one cache share; a folder of another name has no such share.
  for (const char* repository : {"models--org--name", "other"}) {
    const fs::path inside = folder_ / repository / "snapshots" / "abc";
    fs::create_directories(inside);
    fs::create_directories(folder_ / repository / "blobs");
    fs::create_symlink("../../blobs/1234", folder_ / repository / "blobs" / "5678");
    fs::create_symlink("../../blobs/5678", inside / "s.safetensors");
    std::ofstream(inside / "model.safetensors.index.json") << R"({"weight_map":{"a":"s.safetensors"}})";
  }
  EXPECT_EQ(
      SafetensorsModel::open_folder(folder_ / "models--org--name" / "snapshots" / "abc").tensors().size(),
      1u);
  EXPECT_THROW(SafetensorsModel::open_folder(folder_ / "other" / "snapshots" / "abc"), Error);
}

// The same rule where no index names the files.
TEST_F(SafetensorsTest, LinksOutOfTheFolderWithoutAnIndex) {
  namespace fs = std::filesystem;
  write("1234", tensor_file({"a"}));
  for (const char* name : {"model.safetensors", "model-00001-of-00001.safetensors"}) {
    for (const char* folder : {"snapshots/abc", "plain", "inner"}) {
      fs::remove_all(folder_ / folder);
      fs::create_directories(folder_ / folder);
    }
    fs::create_directories(folder_ / "blobs");
    fs::copy_file(folder_ / "1234", folder_ / "blobs" / "1234", fs::copy_options::overwrite_existing);
    fs::create_symlink("../../blobs/1234", folder_ / "snapshots" / "abc" / name);
    fs::create_symlink("../blobs/1234", folder_ / "plain" / name);
    fs::copy_file(folder_ / "1234", folder_ / "inner" / "elsewhere");
    fs::create_symlink("elsewhere", folder_ / "inner" / name);
    EXPECT_EQ(SafetensorsModel::open_folder(folder_ / "snapshots" / "abc").tensors().size(), 1u) << name;
    EXPECT_EQ(SafetensorsModel::open_folder(folder_ / "inner").tensors().size(), 1u) << name;
    try {
      SafetensorsModel::open_folder(folder_ / "plain");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      EXPECT_THAT(error.what(), HasSubstr(std::string(name) + " is a link out of the folder"));
    }
    // A link to the folder itself is the folder.
    fs::remove(folder_ / "alias");
    fs::create_directory_symlink(folder_ / "inner", folder_ / "alias");
    EXPECT_EQ(SafetensorsModel::open_folder(folder_ / "alias").tensors().size(), 1u) << name;
  }
}

TEST(FileNames, PlainNames) {
  for (const char* good : {"a", "model-00001-of-00002.safetensors", "..a", "a b", "é"})
    EXPECT_TRUE(is_plain_file_name(good));
  for (const std::string_view bad : {"", ".", "..", "a/b", "/a", "a\\b", "C:a"})
    EXPECT_FALSE(is_plain_file_name(bad));
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0", 2)));
}

}  // namespace
}  // namespace kvasir::formats
