#include "base/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace kvasir {

Digest128 xxh3_128(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Digest128 digest;
  std::copy_n(canonical.digest, digest.size(), digest.begin());
  return digest;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace kvasir
