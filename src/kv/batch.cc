#include "kv/batch.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::kv {
namespace {

void check_between_steps(const std::vector<Sequence>& rows) {
  for (const Sequence& row : rows) KVASIR_CHECK_MSG(!row.in_step(), "membership changes between steps only");
}

}  // namespace

size_t Batch::join(Sequence sequence) {
  KVASIR_CHECK(static_cast<bool>(sequence));
  KVASIR_CHECK_MSG(rows_.empty() || &rows_.front().cache() == &sequence.cache(),
                   "a row of another cache cannot join");
  rows_.push_back(std::move(sequence));
  return rows_.size() - 1;
}

Sequence Batch::leave(size_t row) {
  KVASIR_CHECK(row < rows_.size());
  check_between_steps(rows_);
  Sequence leaving = std::move(rows_[row]);
  rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(row));
  return leaving;
}

Sequence Batch::extract(size_t row) const {
  KVASIR_CHECK(row < rows_.size());
  return rows_[row].fork();
}

void Batch::filter(std::span<const size_t> keep) {
  check_between_steps(rows_);
  std::vector<bool> kept(rows_.size(), false);
  for (size_t row : keep) {
    KVASIR_CHECK_MSG(row < rows_.size() && !kept[row], "filter: row {} of {}, or named twice", row,
                     rows_.size());
    kept[row] = true;
  }
  std::vector<Sequence> rows;
  rows.reserve(keep.size());
  for (size_t row : keep) rows.push_back(std::move(rows_[row]));
  rows_ = std::move(rows);
}

void Batch::reorder(std::span<const size_t> order) {
  KVASIR_CHECK_MSG(order.size() == rows_.size(), "an order of {} rows for a batch of {}", order.size(),
                   rows_.size());
  filter(order);
}

void Batch::merge(Batch other) {
  check_between_steps(rows_);
  rows_.reserve(rows_.size() + other.rows_.size());
  for (Sequence& row : other.rows_) join(std::move(row));
}

void Batch::truncate(int32_t tokens) {
  KVASIR_CHECK(tokens >= 0);
  check_between_steps(rows_);
  for (const Sequence& row : rows_) {
    KVASIR_CHECK_MSG(!row.in_round(), "rows are cut between rounds only");
    const int32_t length = std::max(0, row.offset() - tokens);
    if (const int32_t nearest = row.nearest_resumable(length); nearest != length)
      throw NotResumable(length, nearest);
  }
  for (Sequence& row : rows_) row.truncate(std::max(0, row.offset() - tokens));
}

std::vector<Sequence*> Batch::rows() {
  std::vector<Sequence*> list;
  for (Sequence& row : rows_) list.push_back(&row);
  return list;
}

}  // namespace kvasir::kv
