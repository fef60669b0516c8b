#include "kv/page_pool.h"

#include <algorithm>
#include <cstring>

namespace kvasir::kv {

KvPoolExhausted::KvPoolExhausted(std::string_view what, uint32_t needed, uint32_t free, uint32_t capacity)
    : Error(ErrorCode::resource_exhausted, fmt::format("paged KV pool exhausted ({} needed, {} free of {} "
                                                       "pages; {}): end other sequences, or plan for a "
                                                       "longer context or a larger batch",
                                                       needed, free, capacity, what)),
      needed_(needed),
      free_(free),
      capacity_(capacity) {}

PagePool::PagePool(std::string what, size_t page_bytes, uint32_t capacity, uint32_t committed,
                   MemoryLedger* ledger, bool poison)
    : name_(std::move(what)), page_bytes_(page_bytes), capacity_(capacity), poison_(poison) {
  KVASIR_CHECK(page_bytes > 0 && page_bytes % kCacheLine == 0);
  KVASIR_CHECK(committed <= capacity && capacity < kNoPage);
  KVASIR_CHECK(capacity == 0 || page_bytes <= SIZE_MAX / capacity);
  memory_ = Reservation(page_bytes * capacity, ledger, MemoryCategory::kv);
  commit_pages(committed);
}

void PagePool::commit_pages(uint32_t pages) {
  if (pages <= committed_) return;
  references_.reserve(pages);
  free_.reserve(pages);
  memory_.commit(page_bytes_ * pages);
  references_.resize(pages, 0);
  committed_ = pages;
}

void PagePool::require(uint32_t count) {
  if (count > free_pages()) throw KvPoolExhausted(name_, count, free_pages(), capacity_);
  const uint64_t wanted =
      uint64_t{used_} + count;  // released pages are below fresh_, so only used + count can pass it
  if (wanted <= committed_) return;
  const uint64_t grown = std::max<uint64_t>(wanted, uint64_t{committed_} + (committed_ + 1) / 2);
  commit_pages(static_cast<uint32_t>(std::min<uint64_t>(grown, capacity_)));
}

PageId PagePool::allocate() {
  PageId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    require(1);
    id = fresh_++;
    if (poison_) std::memset(page(id), 0xFF, page_bytes_);
  }
  references_[id] = 1;
  high_water_ = std::max(high_water_, ++used_);
  return id;
}

void PagePool::recycle(PageId id) {
  --used_;
  if (poison_) std::memset(page(id), 0xFF, page_bytes_);
  free_.push_back(id);
}

}  // namespace kvasir::kv
