// A row would get shorter than nothing, or longer than its layers may hold.
#pragma once

#include "base/error.h"
#include "kv/geometry.h"

namespace kvasir::kv {

class KvRangeError : public Error {
 public:
  explicit KvRangeError(const std::string& message) : Error(ErrorCode::invalid_input, message) {}
};

// Throws KvRangeError when `count` more tokens behind `offset` are more than an MLA group holds; for other
// groups nothing.
inline void check_mla_append(const GroupGeometry& geometry, int32_t offset, int32_t count) {
  if (!geometry.mla || int64_t{offset} + count <= geometry.mla->max_tokens) return;
  throw KvRangeError(
      fmt::format("MLA append would exceed maxTokens {}: the row holds {} and {} more would make {}",
                  geometry.mla->max_tokens, offset, count, int64_t{offset} + count));
}

}  // namespace kvasir::kv
