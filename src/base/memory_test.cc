#include "base/memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"

namespace kvasir {
namespace {

TEST(Reservation, CommitsInPlaceAndCountsToTheByte) {
  MemoryLedger ledger;
  {
    Reservation reservation(size_t{1} << 30, &ledger, MemoryCategory::kv);
    EXPECT_EQ(ledger.total(), 0u);
    const std::byte* before = reservation.data();
    reservation.commit(1000);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 1000u);
    std::memset(reservation.data(), 1, 1000);
    reservation.commit(100000);
    EXPECT_EQ(reservation.data(), before);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 100000u);
    EXPECT_EQ(reservation.data()[999], std::byte{1});
    EXPECT_EQ(reservation.data()[1000], std::byte{0});
    std::memset(reservation.data(), 2, 100000);
    reservation.shrink(5000);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 5000u);
    EXPECT_EQ(reservation.data()[4999], std::byte{2});
    reservation.commit(100000);  // what was given back comes back as zeros
    for (size_t i = 5000; i < 100000; ++i) ASSERT_EQ(reservation.data()[i], std::byte{0}) << i;
    EXPECT_EQ(ledger.high_water(MemoryCategory::kv), 100000u);
  }
  EXPECT_EQ(ledger.total(), 0u);
  EXPECT_EQ(ledger.high_water(MemoryCategory::kv), 100000u);
}

TEST(Reservation, RefusesPastItsEnd) {
  Reservation reservation(4096, nullptr, MemoryCategory::workspace);
  reservation.commit(4096);
  EXPECT_THROW(reservation.commit(4097), Error);
}

TEST(Reservation, MovesWithItsBytes) {
  MemoryLedger ledger;
  Reservation a(1 << 20, &ledger, MemoryCategory::weights);
  a.commit(100);
  Reservation b = std::move(a);
  EXPECT_EQ(b.committed(), 100u);
  a = Reservation(1 << 20, &ledger, MemoryCategory::weights);
  a.commit(7);
  a = std::move(b);
  EXPECT_EQ(ledger.bytes(MemoryCategory::weights), 100u);
}

TEST(Arena, PlanEqualsUse) {
  MemoryLedger ledger;
  Arena arena(1 << 20, &ledger, MemoryCategory::weights);
  size_t planned = 0;
  for (size_t bytes : {1, 64, 65, 1000, 3}) {
    planned = Arena::planned(planned, bytes);
    const std::byte* at = arena.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % kCacheLine, 0u);
    EXPECT_EQ(arena.used(), planned);
    EXPECT_EQ(ledger.bytes(MemoryCategory::weights), planned);
  }
  EXPECT_THROW(arena.allocate(1 << 20), Error);
}

TEST(Memory, ResidentSetIsKnown) {
  const size_t resident = resident_bytes();  // before the peak is read: it grows as the test runs
  EXPECT_GT(resident, size_t{1} << 20);
  EXPECT_GE(peak_resident_bytes(), resident);
}

}  // namespace
}  // namespace kvasir
