// Reservation of pages for a step: counted first, so that it happens wholly or not at all; then delayed
// conversion, copy-on-write and new pages. Everything else about a row is in sequence.cc and step.cc.
#include "kv/cache.h"

#include <algorithm>
#include <limits>

#include "kv/row.h"

namespace kvasir::kv {

KvCache::KvCache(CacheShape shape, const LayoutFactory& layouts, const CacheCapacity& capacity,
                 MemoryLedger* ledger, bool poison)
    : shape_(std::move(shape)),
      states_(shape_.state_bytes, capacity.state_slots, ledger),
      checkpoints_(capacity.checkpoints) {
  KVASIR_CHECK(capacity.groups.size() == shape_.groups.size());
  for (size_t g = 0; g < shape_.groups.size(); ++g) {
    const GroupGeometry& geometry = shape_.groups[g].geometry;
    const CacheCapacity::Group& pages = capacity.groups[g];
    Group group;
    group.layout = layouts(geometry);
    group.pool = std::make_unique<PagePool>(fmt::format("group {}: {}", g, describe(geometry)),
                                            group.layout->page_bytes(), pages.pages + pages.extra,
                                            pages.pages, ledger, poison);
    if (shape_.converts(g)) {
      any_converts_ = true;
      const GroupGeometry plain = plain_stage(geometry);
      group.plain_layout = layouts(plain);
      group.plain_pool = std::make_unique<PagePool>(
          fmt::format("group {} before conversion: {}", g, describe(plain)), group.plain_layout->page_bytes(),
          pages.plain_pages + pages.plain_extra, pages.plain_pages, ledger, poison);
    }
    groups_.push_back(std::move(group));
  }
  need_.pages.resize(groups_.size());
  need_.plain_pages.resize(groups_.size());
}

KvCache::~KvCache() = default;

const PageLayout& KvCache::layout(size_t group, bool encoded) const {
  const Group& g = groups_[group];
  return encoded || g.plain_layout == nullptr ? *g.layout : *g.plain_layout;
}

PagePool& KvCache::pool(size_t group, bool encoded) {
  Group& g = groups_[group];
  return encoded || g.plain_pool == nullptr ? *g.pool : *g.plain_pool;
}

bool KvCache::row_encoded(const Row& row) {
  return row.encoded;
}
int32_t KvCache::row_offset(const Row& row) {
  return row.offset;
}

Sequence KvCache::create() {
  auto row = std::make_unique<Row>(*this);
  row->groups.resize(groups_.size());
  row->encoded = !any_converts_;
  return Sequence(std::move(row));
}

void KvCache::check_reserve(std::span<Sequence* const> rows, std::span<const int32_t> counts) const {
  if (rows.size() != counts.size())
    throw_error(ErrorCode::invalid_input, "a step of {} rows with {} token counts", rows.size(),
                counts.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] == nullptr || !*rows[r])
      throw_error(ErrorCode::invalid_input, "row {} of the step is no sequence", r);
    const Row& row = *rows[r]->row_;
    if (row.cache != this)
      throw_error(ErrorCode::invalid_input, "row {} of the step belongs to another cache", r);
    check_between_steps(row, "step");
    if (counts[r] < 0)
      throw_error(ErrorCode::invalid_input, "row {} of the step: {} new tokens", r, counts[r]);
    for (const LayerGroup& group : shape_.groups) check_mla_append(group.geometry, row.offset, counts[r]);
    if (counts[r] > std::numeric_limits<int32_t>::max() - row.offset)
      throw_error(ErrorCode::invalid_input,
                  "a sequence of {} tokens cannot take {} more: positions end at 2^31 - 1", row.offset,
                  counts[r]);
    if (counts[r] > rows[r]->max_append())
      throw_error(ErrorCode::invalid_input,
                  "a sequence of {} tokens cannot take {} in one step: its KV converts at {} tokens, so at "
                  "most {} fit before that; cut the chunk there",
                  row.offset, counts[r], shape_.start, rows[r]->max_append());
  }
}

void KvCache::count_need(std::span<Sequence* const> rows, std::span<const int32_t> counts, Need& need) const {
  std::fill(need.pages.begin(), need.pages.end(), 0u);
  std::fill(need.plain_pages.begin(), need.plain_pages.end(), 0u);
  need.slots = 0;
  shared_tails_.clear();
  const int32_t page = shape_.page_tokens;
  for (size_t r = 0; r < rows.size(); ++r) {
    const int32_t count = counts[r];
    if (count == 0) continue;
    const Row& row = *rows[r]->row_;
    const bool converting = due(row);
    const uint32_t wanted = static_cast<uint32_t>((int64_t{row.offset} + count + page - 1) / page);
    if (!states_.empty()) need.slots += row.round ? static_cast<uint32_t>(count) : 1u;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const RowGroup& group = row.groups[g];
      const bool moves = converting && groups_[g].plain_pool != nullptr;
      const bool plain = !row.encoded && !converting && groups_[g].plain_pool != nullptr;
      uint32_t pages = wanted - static_cast<uint32_t>(group.ids.size());
      if (moves) {
        for (PageId id : group.ids) pages += id != kNoPage;
      } else if (row.offset % page != 0) {
        // The tail page is copied while others hold it too. Rows of this step that share one need copies
        // until a single holder is left: min(rows that share it, holders - 1).
        const PageId tail = group.ids.back();
        const PagePool& tails = plain ? *groups_[g].plain_pool : *groups_[g].pool;
        if (const uint32_t holders = tails.references(tail); holders > 1) {
          const uint64_t key = (uint64_t{g} << 33) | (uint64_t{plain} << 32) | tail;
          auto seen = std::find_if(shared_tails_.begin(), shared_tails_.end(),
                                   [&](const auto& entry) { return entry.first == key; });
          if (seen == shared_tails_.end()) seen = shared_tails_.insert(shared_tails_.end(), {key, 0u});
          if (++seen->second < holders) ++pages;
        }
      }
      (plain ? need.plain_pages : need.pages)[g] += pages;
    }
  }
}

bool KvCache::lacks(const Need& need) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (need.pages[g] > groups_[g].pool->free_pages()) return true;
    if (need.plain_pages[g] > 0 && need.plain_pages[g] > groups_[g].plain_pool->free_pages()) return true;
  }
  return need.slots > 0 && need.slots > states_.pages().free_pages();
}

void KvCache::require(const Need& need) {
  // Commits what is needed everywhere before anything is handed out: past this point nothing can fail.
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].pool->require(need.pages[g]);
    if (need.plain_pages[g] > 0) groups_[g].plain_pool->require(need.plain_pages[g]);
  }
  if (need.slots > 0) states_.require(need.slots);
}

std::optional<KvCache::Shortage> KvCache::shortage(std::span<Sequence* const> rows,
                                                   std::span<const int32_t> counts) const {
  check_reserve(rows, counts);
  count_need(rows, counts, need_);
  std::optional<Shortage> worst;
  uint32_t missing = 0;
  const auto consider = [&](const PagePool& pool, uint32_t needed) {
    if (needed <= pool.free_pages() || needed - pool.free_pages() <= missing) return;
    missing = needed - pool.free_pages();
    worst = Shortage{pool.name(), needed, pool.free_pages(), pool.capacity()};
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    consider(*groups_[g].pool, need_.pages[g]);
    if (groups_[g].plain_pool != nullptr) consider(*groups_[g].plain_pool, need_.plain_pages[g]);
  }
  if (!states_.empty()) consider(states_.pages(), need_.slots);
  return worst;
}

namespace {
// Room for `size` elements, by doubling: rows grow page by page.
template <typename T>
void grow(std::vector<T>& list, size_t size) {
  if (size > list.capacity()) list.reserve(std::max(size, 2 * list.capacity()));
}
}  // namespace

void KvCache::reserve(std::span<Sequence* const> rows, std::span<const int32_t> counts, Step& step) {
  step.rollback();
  check_reserve(rows, counts);
  count_need(rows, counts, need_);
  while (lacks(need_)) {
    if (!relieve()) break;
    count_need(rows, counts, need_);  // a page that the tree held too may be the row's alone now
  }
  require(need_);
  try {
    reserve_rows(rows, counts, step);
  } catch (...) {
    // Only what a page layout throws comes here: pages are there, and room was made. As if nothing had begun.
    step.rollback();
    for (Sequence* row : rows)
      if (row->row_->step == &step) row->row_->step = nullptr;
    throw;
  }
}

void KvCache::reserve_rows(std::span<Sequence* const> rows, std::span<const int32_t> counts, Step& step) {
  // What is due is converted and room for all that follows is made before any row is part of the step.
  const size_t groups = groups_.size();
  step.row_pages_.resize(groups);
  step.views_.resize(groups);
  for (auto& pages : step.row_pages_) pages.resize(rows.size());
  step.page_counts_.resize(rows.size() * groups);
  step.rows_.reserve(rows.size());
  step.copied_.reserve(rows.size() * groups);
  step.state_in_.reserve(rows.size());
  step.state_out_.reserve(rows.size());
  size_t tokens = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = *rows[r]->row_;
    tokens += static_cast<size_t>(counts[r]);
    if (counts[r] > 0 && due(row)) convert(row);
    const auto wanted =
        static_cast<size_t>((int64_t{row.offset} + counts[r] + shape_.page_tokens - 1) / shape_.page_tokens);
    for (RowGroup& group : row.groups) {
      grow(group.ids, wanted);
      grow(group.pages, wanted);
    }
    if (row.round && !states_.empty())
      grow(row.round->states, row.round->states.size() + static_cast<size_t>(counts[r]));
  }
  if (!states_.empty()) step.token_state_out_.reserve(tokens);

  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = *rows[r]->row_;
    if (row.step == &step) throw_error(ErrorCode::invalid_input, "row {} appears twice in one step", r);
    row.step = &step;
    row.step_index = r;
  }

  // From here on only copy_tokens of a layout could fail, and Step::rollback undoes what was done till then.
  step.cache_ = this;
  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = *rows[r]->row_;
    step.rows_.push_back({&row, counts[r]});
    append_pages(row, r, counts[r], step);
  }
  for (size_t g = 0; g < groups; ++g) step.views_[g] = {.rows = step.row_pages_[g]};
}

void KvCache::require_pages(std::span<const uint32_t> pages, bool encoded, uint32_t slots) {
  KVASIR_CHECK(pages.size() == groups_.size());
  const auto lacking = [&] {
    for (size_t g = 0; g < groups_.size(); ++g)
      if (pages[g] > pool(g, encoded).free_pages()) return true;
    return slots > 0 && slots > states_.pages().free_pages();
  };
  while (lacking() && relieve()) {
  }
  for (size_t g = 0; g < groups_.size(); ++g) pool(g, encoded).require(pages[g]);
  if (slots > 0) states_.require(slots);
}

void KvCache::append_states(const Row& row, int32_t count, Step& step) {
  const bool inside = row.round && !row.round->states.empty();
  int32_t last = static_cast<int32_t>(inside ? row.round->states.back() : row.state);
  step.state_in_.push_back(last);
  for (int32_t token = 0; token < count; ++token) {
    const bool stored = row.round.has_value() || token == count - 1;
    if (stored) last = static_cast<int32_t>(states_.allocate());
    step.token_state_out_.push_back(stored ? last : -1);
  }
  step.state_out_.push_back(last);
}

void KvCache::append_pages(Row& row, size_t index, int32_t count, Step& step) {
  const int32_t page = shape_.page_tokens;
  const uint32_t wanted = static_cast<uint32_t>((int64_t{row.offset} + count + page - 1) / page);
  for (size_t g = 0; g < groups_.size(); ++g)
    step.page_counts_[index * groups_.size() + g] = static_cast<uint32_t>(row.groups[g].ids.size());
  if (!states_.empty()) append_states(row, count, step);
  for (size_t g = 0; g < groups_.size(); ++g) {
    RowGroup& group = row.groups[g];
    PagePool& pages = pool(g, row.encoded);
    if (count > 0 && row.offset % page != 0) {
      const uint32_t tail = static_cast<uint32_t>(group.ids.size() - 1);
      const PageId old = group.ids[tail];
      // A row of this step may have left its reference with the step (for undo); then this one may be the
      // only real holder.
      uint32_t parked = 0;
      const auto is_parked = [&](const Step::Copied& entry) {
        return entry.old == old && entry.group == g && entry.taken_by == nullptr &&
               &pool(g, entry.row->encoded) == &pages;
      };
      for (const Step::Copied& entry : step.copied_) parked += is_parked(entry);
      if (pages.references(old) - parked > 1) {
        const PageId copy = pages.allocate();
        step.copied_.push_back(
            {&row, static_cast<uint32_t>(g), tail, old, nullptr});  // its reference moves to the step
        group.ids[tail] = copy;
        group.pages[tail] = pages.page(copy);
        layout(g, row.encoded).copy_tokens(pages.page(old), pages.page(copy), 0, row.offset % page);
        ++pages_copied_;
      } else if (parked > 0) {
        for (Step::Copied& entry : step.copied_)
          if (is_parked(entry)) {
            entry.taken_by = &row;
            pages.release(old);
          }
      }
    }
    while (group.ids.size() < wanted) {
      const PageId id = pages.allocate();
      group.ids.push_back(id);
      group.pages.push_back(pages.page(id));
    }
    step.row_pages_[g][index] = {.pages = group.pages.data(),
                                 .page_count = static_cast<int32_t>(group.pages.size()),
                                 .layout = &layout(g, row.encoded)};
  }
}

void KvCache::convert_if_due(Row& row) {
  if (!due(row)) return;
  std::vector<uint32_t> pages(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& ids = row.groups[g].ids;
    if (groups_[g].plain_pool != nullptr)
      pages[g] = static_cast<uint32_t>(ids.size() -
                                       static_cast<size_t>(std::count(ids.begin(), ids.end(), kNoPage)));
  }
  require_pages(pages, true, 0);
  convert(row);
}

void KvCache::convert(Row& row) {
  const int32_t page = shape_.page_tokens;
  // Encoded pages of all groups, in order; the row changes when all of them are there.
  struct Made {
    PagePool* pool;
    PageId id;
  };
  std::vector<Made> made;
  try {
    for (size_t g = 0; g < groups_.size(); ++g) {
      Group& store = groups_[g];
      if (store.plain_pool == nullptr) continue;
      const RowGroup& group = row.groups[g];
      const int32_t sinks = shape_.groups[g].geometry.sinks;
      for (size_t i = 0; i < group.ids.size(); ++i) {
        const PageId plain = group.ids[i];
        if (plain == kNoPage) continue;
        const int32_t begin = static_cast<int32_t>(i) * page;
        const int32_t end = std::min(begin + page, row.offset);
        made.push_back({store.pool.get(), kNoPage});
        const PageId encoded = made.back().id = store.pool->allocate();
        const auto encode = [&](int32_t from, int32_t to) {
          if (from < to)
            store.layout->convert_tokens(*store.plain_layout, store.plain_pool->page(plain),
                                         store.pool->page(encoded), from - begin, to - from);
        };
        // Live positions of the page: sinks, and what the window has not left behind.
        const int32_t sink_end = std::clamp(sinks, begin, end);
        encode(begin, sink_end);
        encode(std::clamp(group.evicted_below, sink_end, end), end);
      }
    }
  } catch (...) {
    for (auto at = made.rbegin(); at != made.rend(); ++at)
      if (at->id != kNoPage) at->pool->release(at->id);
    throw;
  }
  auto next = made.begin();
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& store = groups_[g];
    if (store.plain_pool == nullptr) continue;
    RowGroup& group = row.groups[g];
    for (size_t i = 0; i < group.ids.size(); ++i) {
      const PageId plain = group.ids[i];
      if (plain == kNoPage) continue;
      group.ids[i] = next->id;
      group.pages[i] = store.pool->page(next->id);
      store.plain_pool->release(plain);
      ++next;
      ++pages_converted_;
    }
  }
  // Nothing before the conversion can be resumed from encoded pages: an earlier boundary would have been
  // plain.
  for (const Checkpoint& point : row.checkpoints) release_checkpoint(row, point);
  row.checkpoints.clear();
  row.encoded = true;
  row.min_reusable = row.offset;
}

void KvCache::release_checkpoint(const Row& row, const Checkpoint& point) {
  for (size_t g = 0; g < point.windows.size(); ++g)
    for (PageId id : point.windows[g].ids) pool(g, row.encoded).release(id);
  release_state(point.state);
}

void KvCache::evict(Row& row) {
  const int32_t page = shape_.page_tokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupGeometry& geometry = shape_.groups[g].geometry;
    if (!geometry.window || row.offset <= *geometry.window) continue;
    RowGroup& group = row.groups[g];
    PagePool& pages = pool(g, row.encoded);
    const int32_t before = group.evicted_below;
    group.evicted_below = std::max(before, row.offset - *geometry.window);
    const int32_t sink_pages = (geometry.sinks + page - 1) / page;
    for (int32_t i = std::max(before / page, sink_pages); i < group.evicted_below / page; ++i) {
      if (group.ids[i] == kNoPage) continue;
      pages.release(group.ids[i]);
      group.ids[i] = kNoPage;
      group.pages[i] = nullptr;
    }
  }
}

std::vector<KvCache::PoolStats> KvCache::stats() const {
  std::vector<PoolStats> stats;
  const auto add = [&](const PagePool& pool, size_t bytes_per_token) {
    stats.push_back({pool.name(), pool.page_bytes(), bytes_per_token, pool.capacity(), pool.committed_pages(),
                     pool.used_pages(), pool.high_water()});
  };
  for (const Group& group : groups_) {
    add(*group.pool, group.layout->token_bytes());
    if (group.plain_pool != nullptr) add(*group.plain_pool, group.plain_layout->token_bytes());
  }
  if (!states_.empty()) add(states_.pages(), 0);
  return stats;
}

size_t KvCache::committed_bytes() const {
  size_t bytes = 0;
  for (const PoolStats& pool : stats()) bytes += pool.page_bytes * pool.committed;
  return bytes;
}

size_t KvCache::used_bytes() const {
  size_t bytes = 0;
  for (const PoolStats& pool : stats()) bytes += pool.page_bytes * pool.used;
  return bytes;
}

}  // namespace kvasir::kv
