// Recurrent state (gated delta net, short convolutions): fixed-size slots, each the state of all recurrent
// layers of one sequence at one token boundary. A slot is written once, by the step that produced it, and
// then only read: a step reads one slot and writes another, so a failed step, a rollback and a reused prefix
// need no copy, only a reference.
#pragma once

#include "kv/page_pool.h"

namespace kvasir::kv {

using SlotId = PageId;

class StateSlotPool {
 public:
  static constexpr SlotId kInitial =
      0;  // all zeros, shared by every sequence that has no tokens yet; never written

  // `slots` counts the initial one. bytes_per_slot 0: a model without recurrent layers, no memory at all.
  StateSlotPool(size_t bytes_per_slot, uint32_t slots, MemoryLedger* ledger);

  bool empty() const { return bytes_ == 0; }
  size_t bytes_per_slot() const { return bytes_; }  // as the model asked
  size_t stored_bytes() const {
    return bytes_ == 0 ? 0 : pool_.page_bytes();
  }  // with the padding to a cache line
  static size_t stored_bytes(size_t bytes_per_slot) { return align_up(bytes_per_slot, kCacheLine); }

  SlotId allocate() { return pool_.allocate(); }
  void require(uint32_t count) { pool_.require(count); }
  void retain(SlotId id) { pool_.retain(id); }
  void release(SlotId id) { pool_.release(id); }
  std::byte* slot(SlotId id) const { return pool_.page(id); }
  std::byte* data() const { return pool_.page(0); }  // slot i at data() + i * stored_bytes()
  const PagePool& pages() const { return pool_; }

 private:
  size_t bytes_;
  PagePool pool_;
};

}  // namespace kvasir::kv
