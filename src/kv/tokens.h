// Token ids as the cache compares them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvasir::kv {

// How many tokens two sequences begin with alike.
inline int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace kvasir::kv
