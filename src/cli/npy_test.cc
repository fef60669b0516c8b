#include "cli/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/test_folder.h"
#include "base/test_terminal.h"
#include "cli/npy_reader.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

TEST(Npy, WritesTheFormatOfNumpy) {
  const fs::path path = fs::temp_directory_path() / ("kvasir-npy-" + std::to_string(::getpid()));
  {
    NpyWriter writer(path, 2, 3);
    writer.write(std::vector<float>{1, 2, 3, 4, 5, -6});
    EXPECT_FALSE(fs::exists(path));  // it appears whole or not at all
    writer.finish();
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // Magic, version 1.0, a 16-bit header length; header and prefix together a multiple of 64; then the values.
  ASSERT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  EXPECT_EQ((10 + length) % 64, 0u);
  const std::string header = bytes.substr(10, length);
  EXPECT_EQ(header.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"), 0u);
  EXPECT_EQ(header.back(), '\n');
  ASSERT_EQ(bytes.size(), 10 + length + 24);
  float last = 0;
  std::memcpy(&last, bytes.data() + bytes.size() - 4, 4);
  EXPECT_EQ(last, -6.0f);
  fs::remove(path);
}

TEST(Npy, AnUnfinishedFileIsRemoved) {
  const fs::path folder = fs::temp_directory_path() / ("kvasir-npy-dir-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  {
    NpyWriter writer(folder / "a.npy", 2, 2);
    writer.write(std::vector<float>{1, 2});
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder));
  EXPECT_THROW(NpyWriter(folder / "no" / "b.npy", 1, 1), Error);
  fs::remove_all(folder);
}

TEST(Npy, ADeviceTakesTheStreamItself) {
  const std::vector<float> values(100000, 1.0f);
  TestTerminal device;
  const TestFolder folder("npy-device");
  const fs::path file = folder.path() / "a.npy";
  for (const fs::path& path : {file, fs::path(device.path())}) {
    std::string got;
    std::thread reader([&] {
      if (path != file) got = device.read(fs::file_size(file));
    });
    NpyWriter writer(path, 1, 100000);
    writer.write(values);
    writer.finish();
    reader.join();
    if (path == file) continue;
    std::ifstream in(file, std::ios::binary);
    EXPECT_EQ(got, std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()));
    EXPECT_TRUE(fs::is_character_file(path));  // nothing was renamed onto it
  }
  NpyWriter broken(device.path(), 1, 100000);
  device.hang_up();
  EXPECT_THROW(
      {
        broken.write(values);
        broken.finish();
      },
      Error);
}

class NpyReading : public testing::Test {
 protected:
  NpyReading() : path_(fs::temp_directory_path() / ("kvasir-npy-read-" + std::to_string(::getpid()))) {
    NpyWriter writer(path_, 2, 3);
    writer.write(std::vector<float>{1, 2, 3, 4, 5, -6});
    writer.finish();
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  ~NpyReading() override { fs::remove(path_); }
  // The error that a changed file gives; nothing when it is read.
  std::optional<ErrorCode> read(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    try {
      const NpyReader reader(path_);
      for (int64_t i = 0; i < reader.rows(); ++i) EXPECT_EQ(reader.row(i).size(), reader.columns());
      return std::nullopt;
    } catch (const Error& error) {
      return error.code();
    }
  }
  std::string with(const std::string& from, const std::string& to) const {
    std::string bytes = bytes_;
    const size_t at = bytes.find(from);
    bytes.replace(at, from.size(), to);
    return bytes;
  }
  fs::path path_;
  std::string bytes_;
};

TEST_F(NpyReading, WhatWasWrittenComesBack) {
  const NpyReader reader(path_);
  EXPECT_EQ(reader.rows(), 2);
  EXPECT_EQ(reader.columns(), 3);
  EXPECT_EQ(std::vector<float>(reader.row(1).begin(), reader.row(1).end()), (std::vector<float>{4, 5, -6}));
}

TEST_F(NpyReading, OtherFilesAreRefused) {
  EXPECT_EQ(read(bytes_), std::nullopt);
  for (size_t length = 0; length < bytes_.size(); length += 5)
    EXPECT_EQ(read(bytes_.substr(0, length)), ErrorCode::corrupt_file) << length;
  EXPECT_EQ(read(with("<f4", "<f8")), ErrorCode::unsupported);
  EXPECT_EQ(read(with("<f4", ">f4")), ErrorCode::unsupported);
  EXPECT_EQ(read(with("False", "True ")), ErrorCode::unsupported);
  EXPECT_EQ(read(with("(2, 3)", "(6,)  ")), ErrorCode::unsupported);
  EXPECT_EQ(read(with("(2, 3)", "(2,-3)")), ErrorCode::unsupported);
  EXPECT_EQ(read(with("(2, 3)", "(9, 9)")), ErrorCode::corrupt_file);
  // Products that overflow, and no columns to divide by.
  EXPECT_EQ(read(with("(2, 3), }" + std::string(15, ' '), "(4611686018427387904, 4)")),
            ErrorCode::corrupt_file);
  EXPECT_EQ(read(with("(2, 3)", "(2, 0)")), ErrorCode::corrupt_file);
  std::string version = bytes_;
  version[6] = 9;
  EXPECT_EQ(read(version), ErrorCode::unsupported);
}

}  // namespace
}  // namespace kvasir::cli
