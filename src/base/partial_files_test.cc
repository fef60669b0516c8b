#include "base/partial_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/test_folder.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class PartialFilesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dead_ = ::fork();
    if (dead_ == 0) ::_exit(0);
    ::waitpid(dead_, nullptr, 0);
  }
  fs::path write(const std::string& name) const {
    std::ofstream(folder_.path() / name) << "x";
    return folder_.path() / name;
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      out.insert(entry.path().filename().string());
    return out;
  }
  static std::string dead() { return std::to_string(dead_); }

  inline static pid_t dead_ = 0;
  TestFolder folder_{"partial-files"};
};

TEST_F(PartialFilesTest, WhatDeadProcessesLeftGoes) {
  write("x.npy.partial-" + dead());
  write("x.npy.partial-" + dead() + "-abc");
  fs::create_directories(folder_.path() / ("x.npy.partial-" + dead() + "-def") / "in");
  // Another file's, a living process's, no process's, a link.
  std::set<std::string> stay = {"y.npy.partial-" + dead(),
                                "x.npy.partial-" + std::to_string(::getpid()),
                                "x.npy.partial-" + dead() + "x",
                                "x.npy.partial-",
                                "x.npy.partial--1",
                                "x.npy.partial-99999999999999999999",
                                "x.npy"};
  for (const std::string& name : stay) write(name);
  fs::create_symlink("x.npy", folder_.path() / ("x.npy.partial-" + dead() + "-link"));
  stay.insert("x.npy.partial-" + dead() + "-link");
  remove_dead_partials_of(folder_.path() / "x.npy");
  EXPECT_EQ(names(), stay);
  remove_dead_partials(folder_.path() / "missing", "x");
}

TEST_F(PartialFilesTest, WhatIsHeldStays) {
  const fs::path file = write("a.partial-" + dead());
  const fs::path folder = folder_.path() / ("a.partial-" + dead() + "-folder");
  fs::create_directory(folder);
  const int descriptors[] = {::open(file.c_str(), O_RDWR | O_CLOEXEC),
                             ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  for (const int descriptor : descriptors) EXPECT_TRUE(hold_partial(descriptor));
  remove_dead_partials_of(folder_.path() / "a");
  EXPECT_EQ(names().size(), 2u);
  for (const int descriptor : descriptors) ::close(descriptor);
  remove_dead_partials_of(folder_.path() / "a");
  EXPECT_EQ(names().size(), 0u);
}

TEST_F(PartialFilesTest, AWriterTidiesUpAfterOneThatWasKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder_.path() / "a");
    file.write_zeros(3'000'000);
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const auto only = [&](pid_t process) {
    const std::set<std::string> all = names();
    return all.size() == 1 && all.begin()->starts_with("a.partial-" + std::to_string(process) + "-");
  };
  EXPECT_TRUE(only(child));
  AtomicFile file(folder_.path() / "a");
  EXPECT_TRUE(only(::getpid()));
  file.commit();
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

// Processes in two containers may have one number: their files must not be one, and neither may take the
// other's for left.
TEST_F(PartialFilesTest, WritersOfOneNumberHaveFilesOfTheirOwn) {
  AtomicFile a(folder_.path() / "x"), b(folder_.path() / "x");
  EXPECT_EQ(names().size(), 2u);
  const auto write = [](AtomicFile& file, std::string_view text) {
    file.write(std::as_bytes(std::span(text)));
    file.seal();
  };
  write(a, "first");
  write(b, "second");
  a.commit();
  EXPECT_EQ(read_file(folder_.path() / "x", 100), "first");
  b.commit();
  EXPECT_EQ(read_file(folder_.path() / "x", 100), "second");
  EXPECT_EQ(names(), std::set<std::string>{"x"});
}

// Between making a file and holding it, another process may take it for left.
TEST_F(PartialFilesTest, WhatWasRemovedBeforeItWasHeldIsNotHeld) {
  const fs::path file = write("a.partial-" + dead());
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  remove_dead_partials_of(folder_.path() / "a");
  EXPECT_EQ(names().size(), 0u);
  EXPECT_FALSE(hold_partial(descriptor));
  ::close(descriptor);
}

TEST_F(PartialFilesTest, TargetsAreFilesStreamsOrRefused) {
  const fs::path& folder = folder_.path();
  EXPECT_FALSE(write_target(folder / "new").stream);
  EXPECT_EQ(write_target(folder / "new").path, folder / "new");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(write_target(folder / "pipe").stream);
  EXPECT_TRUE(write_target("/dev/null").stream);
  EXPECT_THROW(write_target_file(folder / "pipe"), Error);
  EXPECT_EQ(write_target_file(folder / "new"), folder / "new");
  EXPECT_THROW(write_target(folder), Error);
  // Links, one of them to nothing yet, and a ring of them.
  fs::create_directory(folder / "in");
  fs::create_symlink("in/there", folder / "link");
  fs::create_symlink(folder / "link", folder / "link2");
  fs::create_symlink("pipe", folder / "to-pipe");
  fs::create_symlink("ring2", folder / "ring");
  fs::create_symlink("ring", folder / "ring2");
  EXPECT_EQ(write_target(folder / "link2").path, folder / "in" / "there");
  EXPECT_TRUE(write_target(folder / "to-pipe").stream);
  EXPECT_THROW(write_target(folder / "ring"), Error);
  // An open descriptor, here of a pipe and of a file.
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_TRUE(write_target("/proc/self/fd/" + std::to_string(ends[1])).stream);
  const int descriptor = ::open(write("open").c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_TRUE(write_target("/proc/self/fd/" + std::to_string(descriptor)).stream);
  for (const int open : {ends[0], ends[1], descriptor}) ::close(open);
}

}  // namespace
}  // namespace kvasir
