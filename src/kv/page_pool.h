// Fixed-size pages of one layout: counted, never moved, handed out in a deterministic order.
//
// Address space for the whole capacity is reserved once; pages are committed in place, so an address that was
// handed out stays valid for the pool's life, and the ledger holds exactly committed_pages() * page_bytes().
// A page is free when its count of references is 0. The free list is last in, first out, lowest id first at
// the start (kv-cache.md 2.2), so page ids are a function of the order of calls. One thread uses a pool at a
// time (the engine's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/memory.h"

namespace kvasir::kv {

using PageId = uint32_t;
inline constexpr PageId kNoPage = ~PageId{0};

// A reservation that the pool cannot serve. Nothing was changed: drop or wait for rows, or plan a larger
// context or batch.
class KvPoolExhausted : public Error {
 public:
  KvPoolExhausted(std::string_view what, uint32_t needed, uint32_t free, uint32_t capacity);
  uint32_t needed() const { return needed_; }
  uint32_t free() const { return free_; }
  uint32_t capacity() const { return capacity_; }

 private:
  uint32_t needed_, free_, capacity_;
};

// Debug and sanitizer builds fill unused pages with 0xFF (NaN in every float plane): whatever reads them
// unblended shows.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kPoisonPages = true;
#else
inline constexpr bool kPoisonPages = false;
#endif

class PagePool {
 public:
  // `capacity` pages of `page_bytes`; `committed` of them (at most capacity) are committed at once, the
  // others on demand, half as many again at a time. `what` names the pool in messages. `ledger` may be null,
  // else outlives the pool.
  PagePool(std::string what, size_t page_bytes, uint32_t capacity, uint32_t committed, MemoryLedger* ledger,
           bool poison = kPoisonPages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page with one reference; its content is undefined. Throws KvPoolExhausted.
  PageId allocate();
  // Throws KvPoolExhausted, changing nothing, unless `count` pages can be allocated; commits what they need,
  // so that the next `count` allocations cannot fail.
  void require(uint32_t count);
  void retain(PageId id) { ++references_[id]; }
  void release(PageId id) {
    if (--references_[id] == 0) recycle(id);
  }

  std::byte* page(PageId id) const { return memory_.data() + static_cast<size_t>(id) * page_bytes_; }
  uint32_t references(PageId id) const { return references_[id]; }

  size_t page_bytes() const { return page_bytes_; }
  uint32_t capacity() const { return capacity_; }
  uint32_t used_pages() const { return used_; }
  uint32_t free_pages() const { return capacity_ - used_; }
  uint32_t committed_pages() const { return committed_; }
  uint32_t high_water() const { return high_water_; }  // most pages ever in use at once
  const std::string& name() const { return name_; }

 private:
  void recycle(PageId id);
  void commit_pages(uint32_t pages);

  std::string name_;
  size_t page_bytes_;
  uint32_t capacity_;
  uint32_t committed_ = 0;
  uint32_t fresh_ = 0;  // pages below were handed out at least once
  uint32_t used_ = 0;
  uint32_t high_water_ = 0;
  bool poison_;
  std::vector<uint32_t> references_;  // [committed]
  std::vector<PageId>
      free_;  // released pages, newest last; room for all of them is kept, so release never allocates
  Reservation memory_;
};

}  // namespace kvasir::kv
