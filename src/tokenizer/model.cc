#include "tokenizer/model.h"

// Hashes of a few bytes cost less than a call.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace kvasir::tokenizer {

bool WordCache::find(std::string_view piece, std::span<const int32_t>& ids) {
  last_ = nullptr;
  if (piece.size() > kLongestKey || piece.empty()) return false;
  if (!entries_) entries_ = std::make_unique<Entry[]>(kEntries);
  Entry& e = entries_[XXH3_64bits(piece.data(), piece.size()) & (kEntries - 1)];
  if (e.key_length == piece.size() && std::memcmp(e.key, piece.data(), piece.size()) == 0) {
    ids = {e.ids, e.count};
    return true;
  }
  last_ = &e;
  return false;
}

void WordCache::store(std::string_view piece, std::span<const int32_t> ids) {
  if (!last_ || ids.size() > kMostIds) return;
  last_->key_length = static_cast<uint8_t>(piece.size());
  std::memcpy(last_->key, piece.data(), piece.size());
  last_->count = static_cast<uint32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), last_->ids);
  last_ = nullptr;
}

}  // namespace kvasir::tokenizer
