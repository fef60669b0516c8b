#include "hub/cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "hub/blob_writer.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
 protected:
  CacheTest() : folder_(fs::path(testing::TempDir()) / ("kvasir-cache-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~CacheTest() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::span<const std::byte> bytes(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }

  fs::path folder_;
  const std::string commit_ = std::string(39, 'c') + "1";
  const std::string commit2_ = std::string(39, 'c') + "2";
  const std::string digest_ = "ce013625030ba8dba906f756967f9e9ca394464a";  // git's name of "hello\n"
};

TEST_F(CacheTest, Names) {
  const HubCache cache(folder_);
  EXPECT_EQ(cache.repo_folder("org/name"), folder_ / "models--org--name");
  EXPECT_EQ(cache.repo_folder("gpt2"), folder_ / "models--gpt2");
  EXPECT_EQ(cache.lock_file("org/name", "x"), folder_ / ".locks" / "models--org--name" / "x.lock");
  EXPECT_EQ(HubCache::repo_of_folder("models--org--name"), "org/name");
  EXPECT_EQ(HubCache::repo_of_folder("models--gpt2"), "gpt2");
  for (const char* name :
       {"datasets--org--name", "models--", "models--org--na--me", "org--name", "models--..--x"})
    EXPECT_EQ(HubCache::repo_of_folder(name), std::nullopt) << name;
}

TEST_F(CacheTest, RefsAndLinks) {
  const HubCache cache(folder_);
  EXPECT_EQ(cache.read_ref("org/name", "main"), std::nullopt);
  cache.write_ref("org/name", "refs/pr/1", commit_);
  EXPECT_EQ(read(folder_ / "models--org--name/refs/refs/pr/1"), commit_);
  cache.write_ref("org/name", "main", commit_);
  cache.write_ref("org/name", "main", commit2_);
  EXPECT_EQ(cache.read_ref("org/name", "main"), commit2_);
  cache.write_ref("org/name", commit_, commit_);
  EXPECT_FALSE(fs::exists(folder_ / "models--org--name/refs" / commit_));
  write(folder_ / "models--org--name/refs/odd", commit_ + "\n");
  EXPECT_EQ(cache.read_ref("org/name", "odd"), commit_);
  write(folder_ / "models--org--name/refs/bad", "../../etc");
  EXPECT_EQ(cache.read_ref("org/name", "bad"), std::nullopt);
  EXPECT_EQ(cache.read_ref("org/name", "../main"), std::nullopt);

  write(cache.blob("org/name", digest_), "hello\n");
  cache.link("org/name", commit_, "a/b/c.txt", digest_);
  const fs::path link = cache.snapshot("org/name", commit_) / "a/b/c.txt";
  EXPECT_EQ(fs::read_symlink(link), "../../../../blobs/" + digest_);
  EXPECT_EQ(read(link), "hello\n");
  cache.link("org/name", commit_, "a/b/c.txt", digest_);  // again: the same
  EXPECT_EQ(cache.find_snapshot("org/name", "refs/pr/1"), cache.snapshot("org/name", commit_));
  EXPECT_EQ(cache.find_snapshot("org/name", commit_), cache.snapshot("org/name", commit_));
  EXPECT_EQ(cache.find_snapshot("org/name", ""), std::nullopt);  // main names a commit that has no snapshot
  EXPECT_EQ(cache.find_snapshot("org/name", "nope"), std::nullopt);
  fs::remove(folder_ / "models--org--name/refs/main");
  EXPECT_EQ(cache.find_snapshot("org/name", ""), cache.snapshot("org/name", commit_));
  EXPECT_EQ(cache.repos(), std::vector<std::string>{"org/name"});
}

TEST_F(CacheTest, Locks) {
  FileLock first, second;
  EXPECT_TRUE(first.try_acquire(folder_ / "x.lock"));
  EXPECT_FALSE(second.try_acquire(folder_ / "x.lock"));
  // Removed by its owner and made again by another: the old lock guards nothing.
  fs::remove(folder_ / "x.lock");
  EXPECT_TRUE(second.try_acquire(folder_ / "x.lock"));
  FileLock moved = std::move(second);
  EXPECT_TRUE(moved.held());
  EXPECT_FALSE(second.held());  // NOLINT(bugprone-use-after-move): a moved-from lock holds nothing
  moved.release();
  EXPECT_TRUE(second.try_acquire(folder_ / "x.lock"));
}

TEST_F(CacheTest, BlobWriter) {
  const fs::path partial = folder_ / "p.incomplete";
  {
    BlobWriter writer(partial, digest_, 6);
    writer.append(bytes("hel"));
  }
  {
    BlobWriter writer(partial, digest_, 6);
    EXPECT_EQ(writer.written(), 3u);
    writer.append(bytes("lo\n"));
    EXPECT_TRUE(writer.finish(folder_ / "whole"));
  }
  EXPECT_EQ(read(folder_ / "whole"), "hello\n");
  EXPECT_FALSE(fs::exists(partial));

  write(partial, "jel");
  {
    BlobWriter writer(partial, digest_, 6);
    writer.append(bytes("lo\n"));
    EXPECT_FALSE(writer.finish(folder_ / "wrong"));
  }
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(folder_ / "wrong"));

  write(partial, "something long");
  BlobWriter writer(partial, digest_, 6);
  EXPECT_EQ(writer.written(), 0u);
  EXPECT_EQ(fs::file_size(partial), 0u);
  writer.append(bytes("xx"));
  writer.restart();
  writer.append(bytes("hello\n"));
  EXPECT_TRUE(writer.finish(folder_ / "again"));

  // Stopped while what is there is hashed.
  write(partial, "hel");
  EXPECT_THROW(BlobWriter(partial, digest_, 6, [](uint64_t) { return false; }), Error);
  // A link where the partial file should be is not written through.
  fs::remove(partial);
  fs::create_symlink(folder_ / "target", partial);
  EXPECT_THROW(BlobWriter(partial, digest_, 6), Error);
}

}  // namespace
}  // namespace kvasir::hub
