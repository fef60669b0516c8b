#include "base/digest.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvasir {
namespace {

// The digest of no bytes is published with the algorithm's test vectors (XXH3-128, seed 0).
TEST(Digest, IsXxh3InPrintedOrder) {
  EXPECT_EQ(hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
  const char text[] = "abc";
  EXPECT_EQ(hex(xxh3_128(std::as_bytes(std::span(text, 3)))), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, HexKeepsLeadingZeros) {
  const uint8_t bytes[] = {0x00, 0x0f, 0xf0};
  EXPECT_EQ(hex(bytes), "000ff0");
  EXPECT_EQ(hex({}), "");
}

}  // namespace
}  // namespace kvasir
