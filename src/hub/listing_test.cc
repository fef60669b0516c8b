#include "hub/listing.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/test_folder.h"
#include "hub/digest.h"

namespace kvasir::hub {
namespace {

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

TEST(Listing, Commit) {
  EXPECT_EQ(parse_commit("{\"id\": \"x\", \"sha\": \"" + kSha1 + "\"}", "test"), kSha1);
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("x"), std::string(R"({"sha": 5})"),
        std::string(R"({"sha": "main"})"), "{\"sha\": \"" + kSha256 + "\"}",
        std::string(R"({"sha": "../../../../../../../../../../../etc/xx"})")})
    EXPECT_THROW((void)parse_commit(text, "test"), Error) << text;
}

TEST(Listing, Page) {
  const std::string page = R"([{"type":"directory","oid":")" + kSha1 + R"(","size":0,"path":"dir"},
    {"type":"file","oid":")" +
                           kSha1 + R"(","size":12,"path":"dir/config.json"},
    {"type":"file","oid":")" +
                           kSha1 + R"(","size":135,"path":"w.gguf","lfs":{"oid":")" + kSha256 +
                           R"(","size":5000000000,"pointerSize":135},"xetHash":"x"}])";
  std::vector<RemoteFile> files;
  parse_tree_page(page, "test", &files);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, "dir/config.json");
  EXPECT_EQ(files[0].name(), "config.json");
  EXPECT_EQ(files[0].size, 12u);
  EXPECT_FALSE(files[0].is_large());
  EXPECT_EQ(files[1].digest, kSha256);
  EXPECT_EQ(files[1].size, 5000000000u);
}

TEST(Listing, HostilePages) {
  const auto file = [](const std::string& members) { return "[{\"type\":\"file\"," + members + "}]"; };
  const std::string oid = "\"oid\":\"" + kSha1 + "\"";
  std::vector<RemoteFile> files;
  for (const std::string& page :
       {std::string("{}"), std::string("[5]"), std::string("[{}]"), file(oid + ",\"size\":1"),
        file(oid + ",\"path\":\"a\""), file(oid + ",\"path\":\"a\",\"size\":-1"),
        file(oid + ",\"path\":\"a\",\"size\":1.5"), file(oid + ",\"path\":\"a\",\"size\":1e30"),
        file(oid + ",\"path\":\"a\",\"size\":18446744073709551615"),
        file(oid + ",\"path\":\"../a\",\"size\":1"), file(oid + ",\"path\":\"/a\",\"size\":1"),
        file(oid + ",\"path\":\"a\\u0000b\",\"size\":1"), file("\"oid\":\"x\",\"path\":\"a\",\"size\":1"),
        file(oid + ",\"path\":\"a\",\"size\":1,\"lfs\":{}"),
        file(oid + ",\"path\":\"a\",\"size\":1,\"lfs\":{\"oid\":\"" + kSha1 + "\"}")})
    EXPECT_THROW(parse_tree_page(page, "test", &files), Error) << page;
}

// `printf 'hello\n' | git hash-object --stdin`, and sha256sum of the same.
TEST(Digest, KnownValues) {
  const std::string text = "hello\n";
  for (const char* expected : {"ce013625030ba8dba906f756967f9e9ca394464a",
                               "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"}) {
    ContentDigest digest(expected, text.size());
    digest.update(std::as_bytes(std::span(text.data(), 2)));
    digest.update(std::as_bytes(std::span(text.data() + 2, text.size() - 2)));
    EXPECT_EQ(digest.hex(), expected);
    digest.restart();
    digest.update(std::as_bytes(std::span(text.data(), text.size())));
    EXPECT_EQ(digest.hex(), expected);
  }
  const std::string hex = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
  EXPECT_EQ(sha256(text), hex);
  const TestFolder folder("digest");
  write_file_atomically(folder.path() / "hello", text);
  EXPECT_EQ(sha256_of_file(folder.path() / "hello"), hex);
  EXPECT_THROW(sha256_of_file(folder.path() / "other"), Error);
}

}  // namespace
}  // namespace kvasir::hub
