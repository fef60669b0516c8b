#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "kv/state_pool.h"

namespace kvasir::kv {
namespace {

TEST(PagePool, HandsOutLowestFirstThenLastReleased) {
  MemoryLedger ledger;
  PagePool pool("test", 256, 8, 2, &ledger);
  EXPECT_EQ(pool.allocate(), 0u);
  EXPECT_EQ(pool.allocate(), 1u);
  EXPECT_EQ(pool.allocate(), 2u);
  pool.release(0);
  pool.release(2);
  EXPECT_EQ(pool.allocate(), 2u);
  EXPECT_EQ(pool.allocate(), 0u);
  EXPECT_EQ(pool.allocate(), 3u);
}

TEST(PagePool, LedgerIsCommittedPagesToTheByte) {
  MemoryLedger ledger;
  {
    PagePool pool("test", 320, 100, 10, &ledger);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 3200u);
    for (int i = 0; i < 10; ++i) pool.allocate();
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 3200u);
    pool.allocate();
    EXPECT_EQ(pool.committed_pages(), 15u);  // half as many again
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 15u * 320u);
    pool.require(89);
    EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 100u * 320u);
  }
  EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 0u);
}

TEST(PagePool, AddressesStayWhereTheyAre) {
  PagePool pool("test", 4096, 1000, 1, nullptr);
  const PageId first = pool.allocate();
  std::byte* address = pool.page(first);
  address[0] = std::byte{42};
  for (int i = 0; i < 999; ++i) pool.allocate();
  EXPECT_EQ(pool.page(first), address);
  EXPECT_EQ(address[0], std::byte{42});
}

// P2.
TEST(PagePool, ExhaustionIsTypedAndChangesNothing) {
  PagePool pool("group 0", 64, 3, 0, nullptr);
  pool.allocate();
  try {
    pool.require(3);
    FAIL();
  } catch (const KvPoolExhausted& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_EQ(error.needed(), 3u);
    EXPECT_EQ(error.free(), 2u);
    EXPECT_EQ(error.capacity(), 3u);
    EXPECT_NE(std::string(error.what()).find("3 needed, 2 free of 3 pages"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(pool.used_pages(), 1u);
  EXPECT_EQ(pool.allocate(), 1u);
  EXPECT_EQ(pool.allocate(), 2u);
  EXPECT_THROW(pool.allocate(), KvPoolExhausted);
}

TEST(PagePool, CountsReferencesAndHighWater) {
  PagePool pool("test", 64, 4, 4, nullptr);
  const PageId page = pool.allocate();
  pool.retain(page);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 1u);
  EXPECT_EQ(pool.used_pages(), 1u);
  pool.allocate();
  pool.release(page);
  EXPECT_EQ(pool.used_pages(), 1u);
  EXPECT_EQ(pool.high_water(), 2u);
}

TEST(PagePool, PoisonsWhatNobodyUses) {
  PagePool pool("test", 64, 2, 2, nullptr, /*poison=*/true);
  const PageId page = pool.allocate();
  EXPECT_EQ(pool.page(page)[5], std::byte{0xFF});
  pool.page(page)[5] = std::byte{1};
  pool.release(page);
  EXPECT_EQ(pool.page(page)[5], std::byte{0xFF});
}

// P2.
TEST(PagePool, RandomUseKeepsTheCounts) {
  std::mt19937 random(7);
  PagePool pool("test", 64, 40, 0, nullptr);
  std::vector<PageId> held;
  std::vector<uint32_t> counts(40, 0);
  for (int i = 0; i < 20000; ++i) {
    if (random() % 3 != 0 && (pool.free_pages() > 0 || !held.empty())) {
      if (pool.free_pages() > 0 && random() % 2 == 0) {
        const PageId id = pool.allocate();
        ASSERT_EQ(counts[id], 0u);
        held.push_back(id);
        ++counts[id];
      } else if (!held.empty()) {
        const PageId id = held[random() % held.size()];
        pool.retain(id);
        held.push_back(id);
        ++counts[id];
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.release(held.back());
      --counts[held.back()];
      held.pop_back();
    }
    uint32_t used = 0;
    for (PageId id = 0; id < 40; ++id) used += counts[id] > 0;
    ASSERT_EQ(pool.used_pages(), used);
  }
}

TEST(StateSlotPool, BeginsWithTheSharedZeroState) {
  MemoryLedger ledger;
  StateSlotPool states(100, 3, &ledger);
  EXPECT_EQ(states.stored_bytes(), 128u);
  EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 384u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(states.slot(StateSlotPool::kInitial)[i], std::byte{0});
  EXPECT_EQ(states.allocate(), 1u);
  EXPECT_EQ(states.allocate(), 2u);
  EXPECT_THROW(states.allocate(), KvPoolExhausted);
  const StateSlotPool none(0, 5, &ledger);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(ledger.bytes(MemoryCategory::kv), 384u);
}

}  // namespace
}  // namespace kvasir::kv
