#include "base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/file_error.h"
#include "base/mapped_file.h"
#include "base/test_terminal.h"

namespace kvasir {
namespace {

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("kvasir_atomic_file_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }
  std::filesystem::path folder_;
};

TEST_F(AtomicFileTest, AppearsWholeOnCommit) {
  const std::string big(3'000'000, 'x');
  AtomicFile file(folder_ / "a");
  file.write(std::as_bytes(std::span(big)));
  file.write_zeros(300);
  EXPECT_EQ(file.written(), 3'000'300u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
  file.commit();
  EXPECT_EQ(read_file(folder_ / "a", 1 << 23), big + std::string(300, '\0'));
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileTest, WhatWasWrittenCanBeRewritten) {
  AtomicFile file(folder_ / "a");
  file.write_zeros(10);
  file.write(std::as_bytes(std::span(std::string_view("rest"))));
  file.rewrite(3, std::as_bytes(std::span(std::string_view("head"))));
  file.write(std::as_bytes(std::span(std::string_view("!"))));
  EXPECT_THROW(file.rewrite(12, std::as_bytes(std::span(std::string_view("long")))), Error);
  file.commit();
  EXPECT_EQ(read_file(folder_ / "a", 100), std::string("\0\0\0head\0\0\0rest!", 15));
}

TEST_F(AtomicFileTest, LeavesNothingWithoutCommitAndKeepsTheOldFile) {
  write_file_atomically(folder_ / "a", "old");
  {
    AtomicFile file(folder_ / "a");
    file.write(std::as_bytes(std::span(std::string_view("new"))));
  }
  EXPECT_EQ(read_file(folder_ / "a", 100), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileTest, NamesTheFileThatCannotBeCreated) {
  try {
    AtomicFile file(folder_ / "missing" / "a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("missing/a: cannot be created"), std::string::npos);
    EXPECT_EQ(error.code(), ErrorCode::not_found);
  }
}

TEST_F(AtomicFileTest, SealedFilesAppearTogether) {
  AtomicFile a(folder_ / "a"), b(folder_ / "b");
  for (AtomicFile* file : {&a, &b}) {
    file->write(std::as_bytes(std::span(std::string_view("content"))));
    file->seal();
    EXPECT_THROW(file->write({}), Error);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
  a.commit();
  b.commit();
  EXPECT_EQ(read_file(folder_ / "b", 100), "content");
  EXPECT_EQ(files(), 2u);
  {
    AtomicFile c(folder_ / "c");
    c.seal();
  }
  EXPECT_EQ(files(), 2u);
}

TEST_F(AtomicFileTest, ALinkStaysAndWhatItNamesIsWritten) {
  std::filesystem::create_directory(folder_ / "in");
  write_file_atomically(folder_ / "in" / "there", "old");
  std::filesystem::create_symlink("in/there", folder_ / "link");
  std::filesystem::create_symlink("in/later", folder_ / "dangling");
  for (const char* name : {"link", "dangling"}) {
    write_file_atomically(folder_ / name, "new");
    EXPECT_TRUE(std::filesystem::is_symlink(folder_ / name)) << name;
    EXPECT_EQ(read_file(folder_ / name, 100), "new") << name;
  }
  EXPECT_EQ(read_file(folder_ / "in" / "there", 100), "new");
  EXPECT_EQ(files(), 3u);
}

// A pipe stays a pipe: what reads it gets the bytes.
TEST_F(AtomicFileTest, APipeTakesTheBytesItself) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] {
    const int fd = ::open(pipe.c_str(), O_RDONLY | O_CLOEXEC);
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof buffer)) > 0;)
      got.append(buffer, static_cast<size_t>(n));
    ::close(fd);
  });
  const std::string content(200'000, 'y');
  write_file_atomically(pipe, content);
  reader.join();
  EXPECT_EQ(got, content);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(files(), 1u);
}

// Without a guard this would put a file in the place of the device (where the folder may be written).
TEST_F(AtomicFileTest, ADeviceStaysADevice) {
  const TestTerminal device;
  write_file_atomically(device.path(), "gone");
  EXPECT_EQ(device.read(4), "gone");
  EXPECT_TRUE(std::filesystem::is_character_file(device.path()));
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_symlink(device.path(), link);
  write_file_atomically(link, "too");
  EXPECT_EQ(device.read(3), "too");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(files(), 1u);
}

using AtomicFileDeathTest = AtomicFileTest;

// A signal takes along what is not whole: files, and a folder once it is empty; nothing that was committed.
TEST_F(AtomicFileDeathTest, EndingSignalsLeaveNothingHalfWritten) {
  testing::FLAGS_gtest_death_test_style = "fast";  // the same folder
  const auto write_and_be_ended = [&](int signal) {
    ::signal(signal, SIG_DFL);
    install_ending_signals();
    const PartialFile made(folder_ / "model");
    std::filesystem::create_directory(folder_ / "model");
    AtomicFile whole(folder_ / "whole");
    AtomicFile open(folder_ / "model" / "open");
    AtomicFile sealed(folder_ / "sealed");
    whole.commit();
    sealed.seal();
    open.write_zeros(3'000'000);
    ::raise(signal);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EXIT(write_and_be_ended(signal), testing::ExitedWithCode(128 + signal), "");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "whole"));
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileDeathTest, AnIgnoredSignalStaysIgnored) {
  testing::FLAGS_gtest_death_test_style = "fast";  // the same folder
  EXPECT_EXIT(
      {
        ::signal(SIGINT, SIG_IGN);
        install_ending_signals();
        ::raise(SIGINT);
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(FileError, FullDisksAreTheirOwnCode) {
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) EXPECT_EQ(file_error(full), ErrorCode::resource_exhausted);
  for (const int other : {ENOENT, ENOTDIR, EACCES, EROFS, EIO})
    EXPECT_EQ(file_error(other), ErrorCode::not_found);
}

}  // namespace
}  // namespace kvasir
