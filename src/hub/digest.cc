#include "hub/digest.h"

#include <openssl/evp.h>

#include <fstream>
#include <vector>

#include "base/digest.h"
#include "base/error.h"

namespace kvasir::hub {

ContentDigest::ContentDigest() : ContentDigest(Kind::sha256, 0) {}

ContentDigest::ContentDigest(std::string_view expected, uint64_t size)
    : ContentDigest(expected.size() == 40 ? Kind::git : Kind::sha256, size) {}

ContentDigest::ContentDigest(Kind kind, uint64_t size)
    : context_(EVP_MD_CTX_new()), kind_(kind), size_(size) {
  KVASIR_CHECK(context_ != nullptr);
  restart();
}

ContentDigest::~ContentDigest() {
  EVP_MD_CTX_free(context_);
}

void ContentDigest::restart() {
  KVASIR_CHECK(EVP_DigestInit_ex(context_, kind_ == Kind::git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (kind_ != Kind::git) return;
  const std::string header = fmt::format("blob {}", size_);
  EVP_DigestUpdate(context_, header.c_str(), header.size() + 1);  // with its NUL
}

void ContentDigest::update(std::span<const std::byte> bytes) {
  KVASIR_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
}

std::string ContentDigest::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  KVASIR_CHECK(EVP_DigestFinal_ex(context_, digest, &length) == 1);
  return kvasir::hex(std::span(digest).first(length));
}

std::string sha256(std::string_view content) {
  ContentDigest digest;
  digest.update(std::as_bytes(std::span(content)));
  return digest.hex();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_error(ErrorCode::not_found, "{}: cannot be opened", printable(path.string()));
  ContentDigest digest;
  std::vector<char> buffer(size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    digest.update(std::as_bytes(std::span(buffer).first(static_cast<size_t>(file.gcount()))));
  }
  if (file.bad()) throw_error(ErrorCode::not_found, "{}: cannot be read", printable(path.string()));
  return digest.hex();
}

}  // namespace kvasir::hub
