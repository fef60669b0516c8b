// Fast digests of bytes that we wrote ourselves: XXH3-128, in the byte order in which it is printed. Not
// cryptographic: files of strangers are checked with SHA-256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvasir {

using Digest128 = std::array<uint8_t, 16>;
Digest128 xxh3_128(std::span<const std::byte> bytes);

// Two lower-case digits a byte.
std::string hex(std::span<const uint8_t> bytes);

}  // namespace kvasir
