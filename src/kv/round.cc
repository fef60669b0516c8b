#include "kv/round.h"

#include <algorithm>

#include "kv/row.h"

namespace kvasir::kv {

SpeculativeRound::SpeculativeRound(std::vector<Sequence*> rows) : rows_(std::move(rows)) {
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] == nullptr || !*rows_[r])
      throw_error(ErrorCode::invalid_input, "row {} of the speculative round is no sequence", r);
    if (&rows_[r]->cache() != &rows_[0]->cache())
      throw_error(ErrorCode::invalid_input, "row {} of the speculative round belongs to another cache", r);
    if (std::find(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(r), rows_[r]) !=
        rows_.begin() + static_cast<std::ptrdiff_t>(r))
      throw_error(ErrorCode::invalid_input, "row {} is twice in the speculative round", r);
  }
}

SpeculativeRound::~SpeculativeRound() {
  if (!open_ || !valid()) return;
  try {
    const std::vector<int32_t> nothing(rows_.size(), 0);
    for (Sequence* row : rows_) row->rollback_round();
    for (const Member& member : members_) member.rollback(nothing);
  } catch (...) {
    poison();
  }
}

void SpeculativeRound::add(Member member) {
  if (!valid()) throw InvalidState();
  if (open_ || !member.begin || !member.commit || !member.rollback)
    throw_error(ErrorCode::invalid_input, "cache exposes an incomplete speculative transaction: {} {}",
                printable(member.name),
                open_ ? "joins a round that is open" : "lacks one of begin, commit and rollback");
  members_.push_back(std::move(member));
}

bool SpeculativeRound::valid() const {
  return !poisoned_ &&
         std::all_of(rows_.begin(), rows_.end(), [](const Sequence* row) { return row->valid(); });
}

bool SpeculativeRound::can_begin(int32_t drafts) const {
  if (open_ || !valid() || drafts < 0 || drafts == INT32_MAX) return false;
  return std::all_of(rows_.begin(), rows_.end(), [&](const Sequence* row) {
    if (row->in_round() || row->in_step() || row->max_append() <= drafts) return false;
    for (const LayerGroup& group : row->cache().shape().groups)
      if (group.geometry.mla && int64_t{row->offset()} + drafts + 1 > group.geometry.mla->max_tokens)
        return false;
    return true;
  });
}

void SpeculativeRound::begin(int32_t drafts) {
  if (!valid()) throw InvalidState();
  if (open_) poison("begin of a round that is open");
  if (drafts < 0 || drafts == INT32_MAX)
    throw_error(ErrorCode::invalid_input, "invalid speculative draft count {}", drafts);
  if (!can_begin(drafts))
    throw_error(
        ErrorCode::invalid_input,
        "speculative state cannot begin this round: a row has a step or a round open, or cannot take {} "
        "tokens now",
        int64_t{drafts} + 1);
  // Rows first: each of them begins wholly or not at all, and beginning is undone without a trace.
  size_t begun = 0;
  try {
    for (; begun < rows_.size(); ++begun) rows_[begun]->begin_round();
  } catch (...) {
    while (begun-- > 0) rows_[begun]->rollback_round();
    throw;
  }
  try {
    for (const Member& member : members_) member.begin(drafts);
  } catch (...) {
    poison();
    throw;
  }
  drafts_ = drafts;
  open_ = true;
}

void SpeculativeRound::resolve(std::span<const int32_t> accepted) {
  if (!valid()) throw InvalidState();
  if (!open_) poison("resolve without a round");
  if (accepted.size() != rows_.size() ||
      std::any_of(accepted.begin(), accepted.end(), [&](int32_t n) { return n < 0 || n > drafts_; }))
    throw_error(ErrorCode::invalid_input,
                "invalid speculative acceptance count: expected {} numbers of 0 to {}", rows_.size(),
                drafts_);
  for (const Sequence* row : rows_)
    if (row->in_step() || !row->in_round() || row->round_tokens() != drafts_ + 1)
      poison("resolve before every row has appended its tokens");
  std::vector<int32_t> keep;
  for (const int32_t drafts : accepted) keep.push_back(drafts + 1);
  const bool all = std::all_of(accepted.begin(), accepted.end(), [&](int32_t n) { return n == drafts_; });
  try {
    for (size_t r = 0; r < rows_.size(); ++r) rows_[r]->commit_round(keep[r]);
    for (const Member& member : members_) {
      if (all)
        member.commit();
      else
        member.rollback(keep);
    }
  } catch (...) {
    poison();
    throw;
  }
  open_ = false;
}

void SpeculativeRound::poison() {
  poisoned_ = true;
  for (Sequence* row : rows_) SequenceAccess::row(*row).poisoned = true;
}

void SpeculativeRound::poison(const std::string& reason) {
  poison();
  throw_error(ErrorCode::invalid_input, "{}: {}", InvalidState().what(), reason);
}

}  // namespace kvasir::kv
