#include "hub/headers.h"

#include <gtest/gtest.h>

namespace kvasir::hub {
namespace {

TEST(Headers, NextLink) {
  // RFC 8288's own examples, and the hub's form.
  EXPECT_EQ(next_link("<https://h/api?cursor=a%3D>; rel=\"next\""), "https://h/api?cursor=a%3D");
  EXPECT_EQ(next_link("<https://h/1>; rel=\"prev\", <https://h/3>; rel=\"next\""), "https://h/3");
  EXPECT_EQ(next_link("</2>; title=\"a, b; rel=next\"; rel=\"last Next\""), "/2");
  EXPECT_EQ(next_link("<x>; rel=next"), "x");
  EXPECT_EQ(next_link("<x,y>;rel=\"next\""), "x,y");
  EXPECT_EQ(next_link("<x>; rel=\"prev\"; rel=\"next\""), std::nullopt);  // the first rel counts
  for (const char* text : {"", "x", "<x", "<x>", "<>; rel=next", "<x>; rel=nextish", "<x> rel=next",
                           "<x>; rel=\"prev\" <y>; rel=next"})
    EXPECT_EQ(next_link(text), std::nullopt) << text;
}

TEST(Headers, Etags) {
  EXPECT_EQ(bare_etag("\"abc\""), "abc");
  EXPECT_EQ(bare_etag("W/\"abc\""), "abc");
  EXPECT_EQ(bare_etag(" abc "), "abc");
  EXPECT_EQ(bare_etag("\"../../x\""), "");
  EXPECT_TRUE(is_digest(std::string(40, 'a')));
  EXPECT_TRUE(is_digest(std::string(64, '0')));
  EXPECT_FALSE(is_digest(std::string(40, 'A')));
  EXPECT_FALSE(is_digest(std::string(41, 'a')));
  EXPECT_FALSE(is_digest(std::string(40, 'g')));
}

TEST(Headers, ContentRange) {
  const auto range = parse_content_range("bytes 5-9/20");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5u);
  EXPECT_EQ(range->last, 9u);
  EXPECT_EQ(range->total, 20u);
  EXPECT_EQ(parse_content_range("Bytes 0-0/*")->total, std::nullopt);
  for (const char* text :
       {"", "bytes", "bytes */20", "bytes 9-5/20", "bytes 5-9", "bytes 5-20/20", "bytes -9/20",
        "items 5-9/20", "bytes 5-99999999999999999999/20", "bytes 5 - 9/20"})
    EXPECT_FALSE(parse_content_range(text)) << text;
}

TEST(Headers, RetryAfter) {
  EXPECT_EQ(parse_retry_after("120", 0), 120.0);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 40), 60.0);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 400), 0.0);
  EXPECT_EQ(parse_retry_after("soon", 0), std::nullopt);
  EXPECT_EQ(parse_retry_after("-5", 0), std::nullopt);
}

TEST(Headers, Urls) {
  EXPECT_EQ(redirect_target("https://h/a/b?c", "/d?e=%2B"), "https://h/d?e=%2B");
  EXPECT_EQ(redirect_target("https://h/a/b", "c"), "https://h/a/c");
  EXPECT_EQ(redirect_target("https://h/a", "http://other:81/x"), "http://other:81/x");
  EXPECT_EQ(redirect_target("https://h/a", "//other/x"), "https://other/x");
  EXPECT_EQ(redirect_target("https://h/a", "file:///etc/passwd"), std::nullopt);
  EXPECT_EQ(redirect_target("https://h/a", ""), std::nullopt);
  EXPECT_EQ(origin_of("https://H.example/x"), "https://h.example:443");
  EXPECT_EQ(origin_of("http://h:80/x"), origin_of("http://H"));
  EXPECT_NE(origin_of("http://h/x"), origin_of("https://h/x"));
  EXPECT_NE(origin_of("https://h/x"), origin_of("https://h.evil/x"));
  EXPECT_EQ(origin_of("https://h@evil/x"), "https://evil:443");  // what stands before @ is a user
  EXPECT_EQ(origin_of("nonsense"), "");
  EXPECT_EQ(path_and_query("https://h/a/b?c#d"), "/a/b?c#d");
  EXPECT_EQ(path_and_query("https://h"), "/");
  EXPECT_EQ(encode_path("a b/c+d#e?f%g/ü"), "a%20b/c%2Bd%23e%3Ff%25g/%C3%BC");
  EXPECT_EQ(encode_part("refs/pr/1"), "refs%2Fpr%2F1");
}

}  // namespace
}  // namespace kvasir::hub
