#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/mapping_faults.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kvasir-mapped-" + std::to_string(::getpid()) + "-" +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  static ErrorCode code_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  }
  fs::path folder_;
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  const MappedFile file = MappedFile::open(write("a", "hello"));
  ASSERT_EQ(file.size(), 5u);
  EXPECT_EQ(static_cast<char>(file.bytes()[1]), 'e');
  file.will_need(0, 100);
  file.done(4, 1000);
  file.done(100, 1);
  EXPECT_EQ(static_cast<char>(file.bytes()[4]), 'o');
}

TEST_F(MappedFileTest, EmptyFilesAndMoves) {
  MappedFile empty = MappedFile::open(write("e", ""));
  EXPECT_EQ(empty.size(), 0u);
  MappedFile full = MappedFile::open(write("f", "xyz"));
  empty = std::move(full);
  EXPECT_EQ(empty.size(), 3u);
  EXPECT_EQ(full.size(), 0u);
}

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(code_of([&] { MappedFile::open(folder_ / "missing"); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { MappedFile::open(folder_); }), ErrorCode::invalid_input);
  ::mkfifo((folder_ / "pipe").c_str(), 0600);
  // No writer is waited for.
  EXPECT_EQ(code_of([&] { MappedFile::open(folder_ / "pipe"); }), ErrorCode::invalid_input);
  EXPECT_EQ(code_of([&] { read_file(folder_ / "pipe", 100); }), ErrorCode::invalid_input);
}

TEST_F(MappedFileTest, ReadFileHonoursItsLimit) {
  const fs::path path = write("b", "0123456789");
  EXPECT_EQ(read_file(path, 10), "0123456789");
  EXPECT_EQ(code_of([&] { read_file(path, 9); }), ErrorCode::invalid_input);
}

TEST_F(MappedFileTest, AtomicWriteReplacesAndLeavesNothing) {
  const fs::path path = write("c", "old");
  write_file_atomically(path, "new content");
  EXPECT_EQ(read_file(path, 100), "new content");
  EXPECT_EQ(code_of([&] { write_file_atomically(folder_ / "no" / "where", "x"); }), ErrorCode::not_found);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1);
}

using MappedFileDeathTest = MappedFileTest;

TEST_F(MappedFileDeathTest, ATruncatedMappingIsReportedByName) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const fs::path path = write("shrinks", std::string(1 << 20, 'x'));
  EXPECT_EXIT(
      {
        install_mapping_fault_handler();
        MappedFile first = MappedFile::open(path);
        const MappedFile file = std::move(first);  // the registration moves along
        fs::resize_file(path, 100);
        volatile auto byte = file.bytes()[(1 << 20) - 1];
        (void)byte;
      },
      testing::ExitedWithCode(1), "shrinks: truncated while mapped");
}

}  // namespace
}  // namespace kvasir
