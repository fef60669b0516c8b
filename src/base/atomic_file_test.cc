#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/mapped_file.h"

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
  }
}

}  // namespace
}  // namespace kvasir
