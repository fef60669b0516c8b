#include "tokenizer/charsmap.h"

#include <cstring>

#include "base/error.h"

namespace kvasir::tokenizer {
namespace {

// Units of the double array (Darts-clone): where the children are, the label, whether a key ends, and a
// leaf's value.
constexpr uint32_t children(uint32_t unit) {
  return (unit >> 10) << ((unit & 512) >> 6);
}
constexpr uint32_t label(uint32_t unit) {
  return unit & 0x800000FF;
}
constexpr bool has_leaf(uint32_t unit) {
  return unit >> 8 & 1;
}
constexpr uint32_t leaf_value(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}

}  // namespace

Charsmap::Charsmap(std::span<const uint8_t> data, std::string_view where) {
  uint32_t size = 0;
  if (data.size() < sizeof(size)) {
    throw_error(ErrorCode::corrupt_file, "{}: precompiled_charsmap has {} bytes, expected at least 4", where,
                data.size());
  }
  std::memcpy(&size, data.data(), sizeof(size));
  if (size % 4 != 0 || size == 0 || size > data.size() - sizeof(size)) {
    throw_error(ErrorCode::corrupt_file, "{}: precompiled_charsmap says its trie has {} bytes of {}", where,
                size, data.size() - sizeof(size));
  }
  trie_.resize(size / 4);
  std::memcpy(trie_.data(), data.data() + sizeof(size), size);
  texts_.assign(reinterpret_cast<const char*>(data.data()) + sizeof(size) + size,
                data.size() - sizeof(size) - size);
}

std::optional<Charsmap::Hit> Charsmap::find(std::string_view text, bool longest) const {
  std::optional<Hit> hit;
  uint32_t node = children(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= trie_.size() || label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= children(unit);
    if (node >= trie_.size()) break;
    if (!has_leaf(unit)) continue;
    const uint32_t begin = leaf_value(trie_[node]);
    if (begin > texts_.size()) break;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    hit = Hit{i + 1, rest.substr(0, std::min(rest.find('\0'), rest.size()))};
    if (!longest) break;
  }
  return hit;
}

}  // namespace kvasir::tokenizer
