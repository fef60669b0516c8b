#include "kv/batch.h"

#include <algorithm>

#include "base/error.h"
#include "kv/scheme.h"

namespace kvasir::kv {
namespace {

void check_rows(const std::vector<Sequence>& rows) {
  for (const Sequence& row : rows) {
    if (!row.valid()) throw InvalidState();
    if (row.in_step())
      throw_error(ErrorCode::invalid_input, "a batch changes between steps only, and a row has an open step");
  }
}

// Pages cannot move between caches. Where that is not all that differs, it says what state each has.
void refuse_foreign(const Sequence& row, const Sequence& other) {
  const std::vector<std::string> mine = signatures(row.cache().shape()),
                                 its = signatures(other.cache().shape());
  if (mine.size() != its.size())
    throw_error(ErrorCode::invalid_input, "a row of {} cached layers cannot join rows of {}", its.size(),
                mine.size());
  for (size_t i = 0; i < mine.size(); ++i)
    if (mine[i] != its[i])
      throw_error(ErrorCode::invalid_input, "cached layer {}: {} row layout cannot merge {}", i, mine[i],
                  its[i]);
  throw_error(ErrorCode::invalid_input, "a row of another cache cannot join: its pages are in other pools");
}

void check_index(size_t row, size_t rows) {
  if (row >= rows) throw_error(ErrorCode::invalid_input, "there is no row {} in a batch of {}", row, rows);
}

}  // namespace

void Batch::check_joins(const Sequence& sequence) const {
  if (!sequence) throw_error(ErrorCode::invalid_input, "what joins a batch is no sequence");
  if (!sequence.valid()) throw InvalidState();
  if (!rows_.empty() && &rows_.front().cache() != &sequence.cache()) refuse_foreign(rows_.front(), sequence);
}

size_t Batch::join(Sequence sequence) {
  check_joins(sequence);
  rows_.push_back(std::move(sequence));
  return rows_.size() - 1;
}

Sequence Batch::leave(size_t row) {
  check_index(row, rows_.size());
  // A row that is to be dropped may always leave.
  if (rows_[row].valid()) check_rows(rows_);
  Sequence leaving = std::move(rows_[row]);
  rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(row));
  return leaving;
}

Sequence Batch::extract(size_t row) const {
  check_index(row, rows_.size());
  return rows_[row].fork();
}

void Batch::filter(std::span<const size_t> keep) {
  std::vector<bool> kept(rows_.size(), false);
  for (size_t row : keep) {
    check_index(row, rows_.size());
    if (kept[row]) throw_error(ErrorCode::invalid_input, "row {} of a batch is named twice", row);
    kept[row] = true;
  }
  // Those that a round has left invalid can be dropped, and not kept.
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (kept[row] && !rows_[row].valid()) throw InvalidState();
    if (rows_[row].in_step())
      throw_error(ErrorCode::invalid_input, "a batch changes between steps only, and row {} has an open step",
                  row);
  }
  std::vector<Sequence> rows;
  rows.reserve(keep.size());
  for (size_t row : keep) rows.push_back(std::move(rows_[row]));
  rows_ = std::move(rows);
}

void Batch::reorder(std::span<const size_t> order) {
  if (order.size() != rows_.size())
    throw_error(ErrorCode::invalid_input, "an order of {} rows for a batch of {}", order.size(),
                rows_.size());
  filter(order);
}

void Batch::merge(Batch other) {
  check_rows(rows_);
  check_rows(other.rows_);
  for (const Sequence& row : other.rows_) check_joins(row);
  rows_.reserve(rows_.size() + other.rows_.size());
  for (Sequence& row : other.rows_) rows_.push_back(std::move(row));
}

void Batch::truncate(int32_t tokens) {
  if (tokens < 0) throw KvRangeError(fmt::format("a batch cannot lose {} tokens", tokens));
  check_rows(rows_);
  const auto shorter = [&](const Sequence& row) {
    for (const LayerGroup& group : row.cache().shape().groups)
      if (group.geometry.mla && tokens > row.offset())
        throw KvRangeError(
            fmt::format("trim of {} tokens of MLA rows: expected 0 to {}", tokens, row.offset()));
    return std::max(0, row.offset() - tokens);
  };
  for (const Sequence& row : rows_) {
    if (row.in_round())
      throw_error(ErrorCode::invalid_input, "rows are cut between rounds only: resolve the round first");
    const int32_t length = shorter(row);
    if (const int32_t nearest = row.nearest_resumable(length); nearest != length)
      throw NotResumable(length, nearest);
  }
  for (Sequence& row : rows_) row.truncate(shorter(row));
}

std::vector<Sequence*> Batch::rows() {
  std::vector<Sequence*> list;
  for (Sequence& row : rows_) list.push_back(&row);
  return list;
}

}  // namespace kvasir::kv
