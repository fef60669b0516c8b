#include "kv/state_pool.h"

#include <cstring>

namespace kvasir::kv {

StateSlotPool::StateSlotPool(size_t bytes_per_slot, uint32_t slots, MemoryLedger* ledger)
    : bytes_(bytes_per_slot),
      pool_("recurrent state", bytes_per_slot == 0 ? kCacheLine : stored_bytes(bytes_per_slot),
            bytes_per_slot == 0 ? 0 : slots, bytes_per_slot == 0 ? 0 : slots, ledger) {
  if (empty()) return;
  KVASIR_CHECK(slots >= 1);
  const SlotId initial = pool_.allocate();
  KVASIR_CHECK(initial == kInitial);
  std::memset(pool_.page(initial), 0, pool_.page_bytes());
}

}  // namespace kvasir::kv
