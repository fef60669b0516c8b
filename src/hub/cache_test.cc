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

// What comes before its turn waits beside the prefix, outlives the writer, and is moved.
TEST_F(CacheTest, BlobWriterPieces) {
  const fs::path partial = folder_ / "p.incomplete", piece = folder_ / "p.incomplete-4";
  {
    BlobWriter writer(partial, digest_, 6);
    writer.put(4, 4, bytes("o"));
    writer.put(4, 5, bytes("\n"));
    EXPECT_EQ(writer.written(), 0u);
    EXPECT_EQ(writer.ahead(), 2u);
    writer.put(0, 0, bytes("he"));
    EXPECT_EQ(writer.written(), 2u);
  }
  EXPECT_EQ(read(partial), "he");
  EXPECT_EQ(read(piece), "o\n");
  write(folder_ / "p.incomplete-5", "\n");      // of another attempt, inside the first
  write(folder_ / "p.incomplete-6", "more");    // beyond the end
  write(folder_ / "p.incomplete-3x", "other");  // no piece
  write(folder_ / "q.incomplete-3", "other");   // of another blob
  {
    BlobWriter writer(partial, digest_, 6);
    EXPECT_EQ(writer.written(), 2u);
    EXPECT_EQ(writer.ahead(), 2u);
    EXPECT_EQ(writer.gap(2).begin, 2u);
    EXPECT_EQ(writer.gap(2).end, 4u);
    EXPECT_EQ(writer.gap(4).begin, 6u);
    EXPECT_EQ(writer.gap(4).end, 6u);
    EXPECT_FALSE(fs::exists(folder_ / "p.incomplete-6"));
    writer.put(2, 2, bytes("l"));
    EXPECT_EQ(writer.written(), 3u);
    writer.put(2, 3, bytes("l"));
    EXPECT_EQ(writer.written(), 6u);
    EXPECT_EQ(writer.ahead(), 0u);
    EXPECT_TRUE(writer.finish(folder_ / "whole"));
  }
  EXPECT_EQ(read(folder_ / "whole"), "hello\n");
  EXPECT_FALSE(fs::exists(piece));
  EXPECT_FALSE(fs::exists(folder_ / "p.incomplete-5"));
  EXPECT_EQ(read(folder_ / "q.incomplete-3"), "other");
  EXPECT_EQ(read(folder_ / "p.incomplete-3x"), "other");

  // A prefix that another tool has carried on goes beyond the pieces, or into one.
  write(partial, "hell");
  write(folder_ / "p.incomplete-2", "ll");
  write(folder_ / "p.incomplete-3", "lo");
  {
    BlobWriter writer(partial, digest_, 6);
    EXPECT_EQ(writer.written(), 5u);
    EXPECT_EQ(read(partial), "hello");
    EXPECT_FALSE(fs::exists(folder_ / "p.incomplete-2") || fs::exists(folder_ / "p.incomplete-3"));
    writer.restart();
    writer.put(3, 3, bytes("xx"));
    writer.restart();
    EXPECT_FALSE(fs::exists(folder_ / "p.incomplete-3"));
    writer.put(3, 3, bytes("xx"));
    writer.drop_ahead();
    EXPECT_EQ(writer.ahead(), 0u);
    writer.append(bytes("hello\n"));
    EXPECT_TRUE(writer.finish(folder_ / "whole"));
  }
}

TEST_F(CacheTest, IncompleteFiles) {
  const HubCache cache(folder_);
  EXPECT_TRUE(cache.incomplete_files("org/name").empty());
  EXPECT_EQ(cache.incomplete_bytes("org/name", digest_), 0u);
  const fs::path partial = cache.incomplete("org/name", digest_);
  write(cache.blob("org/name", std::string(40, 'a')), "whole");
  write(partial, "he");
  write(partial.string() + "-1", "ell");
  write(partial.string() + "-5", "\n");
  write(cache.incomplete("org/name", std::string(40, 'b')), "other");
  EXPECT_EQ(cache.incomplete_bytes("org/name", digest_), 5u);
  EXPECT_EQ(cache.incomplete_files("org/name").size(), 4u);
  cache.remove_incomplete("org/name", digest_);
  EXPECT_EQ(cache.incomplete_files("org/name"),
            std::vector<fs::path>{cache.incomplete("org/name", std::string(40, 'b'))});
}

}  // namespace
}  // namespace kvasir::hub
