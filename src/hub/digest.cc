#include "hub/digest.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace kvasir::hub {

ContentDigest::ContentDigest(std::string_view expected, uint64_t size)
    : context_(EVP_MD_CTX_new()), git_(expected.size() == 40), size_(size) {
  KVASIR_CHECK(context_ != nullptr);
  restart();
}

ContentDigest::~ContentDigest() {
  EVP_MD_CTX_free(context_);
}

void ContentDigest::restart() {
  KVASIR_CHECK(EVP_DigestInit_ex(context_, git_ ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (!git_) return;
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
  std::string out;
  for (unsigned i = 0; i < length; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace kvasir::hub
