// Commit and undo of one step.
#include <algorithm>

#include "kv/cache.h"
#include "kv/row.h"

namespace kvasir::kv {

void Step::commit() {
  if (!open()) throw_error(ErrorCode::invalid_input, "commit of a step that is not open: reserve it first");
  for (const Copied& entry : copied_)
    if (entry.taken_by == nullptr && entry.row != nullptr)
      cache_->pool(entry.group, entry.row->encoded).release(entry.old);
  const int32_t* token_state = token_state_out_.data();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const auto [row, count] = rows_[r];
    const int32_t* states = token_state;
    if (!token_state_out_.empty()) token_state += count;
    if (row == nullptr) continue;  // destroyed during the step; its slots were returned then
    row->step = nullptr;
    row->offset += count;
    if (count > 0) row->attachments.reset();
    if (!token_state_out_.empty() && count > 0) {
      // In a round the states are the round's until it is resolved, and the one at its start stays the row's.
      if (row->round) {
        row->round->states.insert(row->round->states.end(), states, states + count);
      } else {
        cache_->release_state(row->state);
        row->state = static_cast<SlotId>(states[count - 1]);
      }
    }
    if (!row->round) cache_->evict(*row);
  }
  finish();
}

void Step::rollback() {
  if (!open()) return;
  const size_t groups = cache_->groups();
  for (auto entry = copied_.rbegin(); entry != copied_.rend(); ++entry) {
    Row* row = entry->row;
    if (row == nullptr) continue;
    PagePool& pool = cache_->pool(entry->group, row->encoded);
    RowGroup& group = row->groups[entry->group];
    if (entry->taken_by != nullptr) {
      // The other row kept the old page. Share it again, unless it wrote below this row's end: then the copy
      // stays.
      if (entry->taken_by->offset < row->offset) continue;
      pool.retain(entry->old);
    }
    pool.release(group.ids[entry->index]);
    group.ids[entry->index] = entry->old;
    group.pages[entry->index] = pool.page(entry->old);
  }
  const int32_t* token_state = token_state_out_.data();
  for (size_t r = 0; r < rows_.size(); ++r) {
    const auto [row, count] = rows_[r];
    const int32_t* states = token_state;
    if (!token_state_out_.empty()) token_state += count;
    if (row == nullptr) continue;
    row->step = nullptr;
    for (size_t g = 0; g < groups; ++g) {
      RowGroup& group = row->groups[g];
      PagePool& pool = cache_->pool(g, row->encoded);
      while (group.ids.size() >
             page_counts_[r * groups + g]) {  // newest first: the free list returns to its order
        pool.release(group.ids.back());
        group.ids.pop_back();
        group.pages.pop_back();
      }
    }
    if (!token_state_out_.empty())
      for (int32_t i = count; i-- > 0;)
        if (states[i] >= 0) cache_->states_.release(static_cast<SlotId>(states[i]));
  }
  finish();
}

void Step::finish() {
  cache_ = nullptr;
  rows_.clear();
  copied_.clear();
  state_in_.clear();
  state_out_.clear();
  token_state_out_.clear();
  for (GroupView& view : views_) view.rows = {};
}

}  // namespace kvasir::kv
