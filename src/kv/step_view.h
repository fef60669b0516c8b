// What kernels see of the KV cache during one step: page tables, nothing else. Built by kv/, read by
// ops/append_kv and ops/attention.
#pragma once

#include <cstdint>
#include <span>

#include "kv/page_layout.h"

namespace kvasir::kv {

// One row's (sequence's) pages of one layer group. Position p lies in pages[p / page_tokens], slot p %
// page_tokens; entries of evicted pages are null. Pages that this step appends to are writable and held by
// this row alone.
struct RowPages {
  std::byte* const* pages = nullptr;
  int32_t page_count = 0;
  const PageLayout* layout =
      nullptr;  // plain or encoded: rows of one batch may be at different stages of conversion
};

struct GroupView {
  std::span<const RowPages> rows;  // [rows of the step]
};

}  // namespace kvasir::kv
