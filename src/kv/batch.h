// A batch is a list of sequences. Membership moves no bytes: joining, leaving, re-ordering, merging and
// extracting change the list (and, for extract, reference counts). What is stored for a sequence never
// depends on its neighbours. A wrong call (a row that is not there, an open step, a row of another cache,
// whose layers' signatures may differ) throws Error{invalid_input} and changes nothing; a row that a
// speculative round has left invalid may leave, be filtered out, and nothing else.
#pragma once

#include <span>
#include <vector>

#include "kv/cache.h"

namespace kvasir::kv {

class Batch {
 public:
  size_t size() const { return rows_.size(); }
  Sequence& operator[](size_t row) { return rows_[row]; }
  const Sequence& operator[](size_t row) const { return rows_[row]; }

  size_t join(Sequence sequence);  // at the end; its index
  Sequence leave(size_t row);      // the others close up
  Sequence extract(
      size_t row) const;  // an independent copy by reference, byte for byte what a solo run holds
  void filter(std::span<const size_t> keep);    // keeps these rows, in this order; the others are dropped
  void reorder(std::span<const size_t> order);  // a permutation
  void merge(Batch other);                      // appends the rows of another batch of the same cache
  // Every row loses its last `tokens` (those that have fewer: all, but with MLA layers that is a
  // KvRangeError). Throws NotResumable; then no row has changed.
  void truncate(int32_t tokens);

  // Reserve, for KvCache::reserve.
  std::vector<Sequence*> rows();

 private:
  void check_joins(const Sequence& sequence) const;
  std::vector<Sequence> rows_;
};

}  // namespace kvasir::kv
