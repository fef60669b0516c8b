#include "base/partial_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "base/atomic_file.h"
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
  for (const int descriptor : descriptors) hold_partial(descriptor);
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
  EXPECT_EQ(names(), std::set<std::string>{"a.partial-" + std::to_string(child)});
  AtomicFile file(folder_.path() / "a");
  EXPECT_EQ(names(), std::set<std::string>{"a.partial-" + std::to_string(::getpid())});
  file.commit();
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

}  // namespace
}  // namespace kvasir
