// Memory as a contract: address space reserved once, committed in place, and every byte entered in a ledger.
//
// A MemoryLedger counts bytes by category ("weights", "kv", "workspace", ...). What `fit` plans and what the
// ledger holds after a load must be equal to the byte, so only planned amounts are entered: an arena's
// committed bytes, never malloc's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

inline constexpr size_t kCacheLine = 64;

constexpr size_t align_up(size_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

enum class MemoryCategory { weights, kv, workspace };
inline constexpr int kMemoryCategories = 3;

class MemoryLedger {
 public:
  void add(MemoryCategory category, size_t bytes);
  void remove(MemoryCategory category, size_t bytes);
  size_t bytes(MemoryCategory category) const;
  size_t high_water(MemoryCategory category) const;
  size_t total() const;

 private:
  std::atomic<size_t> current_[kMemoryCategories] = {};
  std::atomic<size_t> high_[kMemoryCategories] = {};
};

// A contiguous range of address space whose pages are committed on demand, in place: addresses handed out
// never move. Thread-compatible (one writer). Throws Error{resource_exhausted} when the operating system
// refuses, or past the reservation.
class Reservation {
 public:
  Reservation() = default;
  // `reserve` bytes of address space; nothing is committed yet. `ledger` may be null and must outlive the
  // reservation.
  Reservation(size_t reserve, MemoryLedger* ledger, MemoryCategory category);
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  std::byte* data() const { return data_; }
  size_t reserved() const { return reserved_; }
  size_t committed() const { return committed_; }

  // Makes [0, bytes) usable (zero-filled where new) and enters the growth in the ledger, to the byte.
  void commit(size_t bytes);
  // Gives everything at and beyond `bytes` back to the operating system and the ledger; the addresses stay
  // reserved.
  void shrink(size_t bytes);

 private:
  void release();

  std::byte* data_ = nullptr;
  size_t reserved_ = 0;
  size_t committed_ = 0;
  MemoryLedger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::workspace;
};

// Bump allocation over a Reservation: weights of one model, the workspace of one program. Freed as a whole.
class Arena {
 public:
  Arena() = default;
  Arena(size_t reserve, MemoryLedger* ledger, MemoryCategory category)
      : reservation_(reserve, ledger, category) {}

  // `bytes` zero-filled bytes, aligned (a power of two, at least kCacheLine). Throws
  // Error{resource_exhausted}.
  std::byte* allocate(size_t bytes, size_t alignment = kCacheLine);
  // What a sequence of allocations with these sizes takes: plan with it, and the ledger will agree.
  static size_t planned(size_t used, size_t bytes, size_t alignment = kCacheLine) {
    return align_up(used, alignment) + bytes;
  }

  size_t used() const { return used_; }
  std::byte* data() const { return reservation_.data(); }

 private:
  Reservation reservation_;
  size_t used_ = 0;
};

// Resident set of this process in bytes, now and at its highest (Linux: /proc/self/status; 0 where unknown).
size_t resident_bytes();
size_t peak_resident_bytes();

}  // namespace kvasir
