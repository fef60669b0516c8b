// The two digests by which a hub names content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace kvasir::hub {

// SHA-256 of content, or git's name of a blob: SHA-1 of "blob <size>\0" and the content.
class ContentDigest {
 public:
  ContentDigest();  // SHA-256, of content of any size
  // `expected`: 64 or 40 hexadecimal digits say which kind; `size` is the content's.
  ContentDigest(std::string_view expected, uint64_t size);
  ~ContentDigest();
  ContentDigest(const ContentDigest&) = delete;
  ContentDigest& operator=(const ContentDigest&) = delete;

  void restart();
  void update(std::span<const std::byte> bytes);
  std::string hex();  // of everything so far; nothing may follow

 private:
  enum class Kind : uint8_t { sha256, git };
  ContentDigest(Kind kind, uint64_t size);

  evp_md_ctx_st* context_;
  Kind kind_;
  uint64_t size_;
};

// SHA-256 in hexadecimal digits.
std::string sha256(std::string_view content);
// Throws Error{not_found} when the file cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace kvasir::hub
