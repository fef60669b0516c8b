// What a sequence does between steps: fork, truncate, checkpoints, rounds, donor views, canonical bytes.
#include <algorithm>
#include <limits>

#include "kv/cache.h"
#include "kv/row.h"
#include "kv/scheme.h"

namespace kvasir::kv {

NotResumable::NotResumable(int32_t wanted, int32_t nearest)
    : Error(ErrorCode::invalid_input,
            fmt::format("position {} cannot be resumed: its window, recurrent state or plain pages are gone; "
                        "the nearest position before "
                        "it that can is {}",
                        wanted, nearest)),
      nearest_(nearest) {}

Row::~Row() {
  if (cache == nullptr) return;
  if (step != nullptr) {
    // Destroyed inside a step: the step forgets the row; what it holds for the row's undo is returned here.
    for (Step::Copied& entry : step->copied_) {
      if (entry.row == this) {
        if (entry.taken_by == nullptr) cache->pool(entry.group, encoded).release(entry.old);
        entry.row = nullptr;
      } else if (entry.taken_by == this && entry.row != nullptr) {
        entry.row = nullptr;  // the copy stays with its row
      }
    }
    size_t first = 0;
    for (size_t r = 0; r < step_index; ++r) first += static_cast<size_t>(step->rows_[r].count);
    if (!step->token_state_out_.empty())
      for (int32_t i = 0; i < step->rows_[step_index].count; ++i)
        if (const int32_t slot = step->token_state_out_[first + static_cast<size_t>(i)]; slot >= 0)
          cache->states().release(static_cast<SlotId>(slot));
    step->rows_[step_index].row = nullptr;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    PagePool& pool = cache->pool(g, encoded);
    for (auto id = groups[g].ids.rbegin(); id != groups[g].ids.rend(); ++id)
      if (*id != kNoPage) pool.release(*id);
  }
  for (const Checkpoint& point : checkpoints) cache->release_checkpoint(*this, point);
  if (round)
    for (SlotId id : round->states) cache->release_state(id);
  cache->release_state(state);
}

Sequence::Sequence() = default;
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;
Sequence::Sequence(std::unique_ptr<Row> row) : row_(std::move(row)) {}

int32_t Sequence::offset() const {
  return row_->offset;
}
int32_t Sequence::min_reusable() const {
  return row_->min_reusable;
}
bool Sequence::encoded() const {
  return row_->encoded;
}
const Origin& Sequence::origin() const {
  return row_->origin;
}
bool Sequence::in_round() const {
  return row_->round.has_value();
}
bool Sequence::in_step() const {
  return row_->step != nullptr;
}
bool Sequence::valid() const {
  return !row_->poisoned;
}
KvCache& Sequence::cache() const {
  return *row_->cache;
}

int32_t Sequence::max_append() const {
  if (row_->encoded) return std::numeric_limits<int32_t>::max();
  const int32_t left = row_->cache->shape().start - row_->offset;
  // At the boundary the next step converts first; inside a round it may not.
  if (left == 0) return row_->round ? 0 : std::numeric_limits<int32_t>::max();
  return left;
}

int32_t Sequence::nearest_resumable(int32_t position) const {
  const Row& row = *row_;
  position = std::min(position, row.offset);
  if (position <= 0) return 0;
  if (position == row.offset) return position;
  int32_t nearest = 0;
  for (const Checkpoint& point : row.checkpoints)
    if (point.position <= position) nearest = std::max(nearest, point.position);
  if (row.round && row.round->before <= position) nearest = row.round->before;
  if (position < row.min_reusable || !row.cache->states().empty()) return nearest;
  for (size_t g = 0; g < row.groups.size(); ++g) {
    const auto& window = row.cache->shape().groups[g].geometry.window;
    // The query at `position` sees its last W - 1 predecessors.
    if (window && row.groups[g].evicted_below > std::max(0, position - (*window - 1))) return nearest;
  }
  return position;
}

Sequence Sequence::fork() const {
  return fork(offset());
}

Sequence Sequence::fork(int32_t at) const {
  const Row& row = *row_;
  KvCache& cache = *row.cache;
  check_between_steps(row, "fork");
  if (row.round && at > row.round->before)
    throw_error(ErrorCode::invalid_input,
                "fork at token {} inside a speculative round that began at {}: resolve the round first", at,
                row.round->before);
  if (at < 0 || at > row.offset || nearest_resumable(at) != at)
    throw NotResumable(at, nearest_resumable(std::max(at, 0)));
  Sequence copy = cache.create();
  if (at == 0) return copy;
  Row& other = *copy.row_;
  other.encoded = row.encoded;
  other.origin = row.origin;
  other.min_reusable = row.min_reusable;
  other.offset = at;
  const auto point = std::find_if(row.checkpoints.begin(), row.checkpoints.end(),
                                  [&](const Checkpoint& c) { return c.position == at; });
  const size_t count =
      static_cast<size_t>((int64_t{at} + cache.shape().page_tokens - 1) / cache.shape().page_tokens);
  for (size_t g = 0; g < row.groups.size(); ++g) {
    const RowGroup& from = row.groups[g];
    RowGroup& to = other.groups[g];
    PagePool& pool = cache.pool(g, row.encoded);
    to.ids.assign(from.ids.begin(), from.ids.begin() + static_cast<std::ptrdiff_t>(count));
    to.pages.assign(from.pages.begin(), from.pages.begin() + static_cast<std::ptrdiff_t>(count));
    to.evicted_below = from.evicted_below;
    if (point != row.checkpoints.end() && at != row.offset && cache.shape().groups[g].geometry.window) {
      // Back to the window of that boundary; pages of sinks are the row's own.
      const Checkpoint::Window& window = point->windows[g];
      to.evicted_below = window.evicted_below;
      for (size_t i = 0; i < window.ids.size(); ++i) {
        to.ids[window.first + i] = window.ids[i];
        to.pages[window.first + i] = pool.page(window.ids[i]);
      }
    }
    for (PageId id : to.ids)
      if (id != kNoPage) pool.retain(id);
  }
  if (at == row.offset) other.attachments = row.attachments;
  for (const Checkpoint& from : row.checkpoints) {
    if (from.position > at) break;
    Checkpoint& to = other.checkpoints.emplace_back(from);
    cache.retain_state(to.state);
    for (size_t g = 0; g < to.windows.size(); ++g)
      for (PageId id : to.windows[g].ids) cache.pool(g, row.encoded).retain(id);
  }
  if (!cache.states().empty()) {
    // In a round row.state is the state at its start, and `at` is not beyond it.
    other.state = at == row.offset || (row.round && at == row.round->before) ? row.state : point->state;
    cache.retain_state(other.state);
  }
  return copy;
}

namespace {
bool holds_latents(const KvCache& cache) {
  const auto& groups = cache.shape().groups;
  return std::any_of(groups.begin(), groups.end(),
                     [](const LayerGroup& g) { return g.geometry.mla.has_value(); });
}
}  // namespace

void Sequence::truncate(int32_t length) {
  Row& row = *row_;
  check_between_steps(row, "truncation");
  if (row.round)
    throw_error(ErrorCode::invalid_input,
                "truncation inside a speculative round: resolve it with commit or rollback");
  if (length == row.offset) return;
  if ((length < 0 || length > row.offset) && holds_latents(*row.cache))
    throw KvRangeError(fmt::format("trim of MLA rows to {} tokens: expected 0 to {}", length, row.offset));
  if (length < 0 || length > row.offset || nearest_resumable(length) != length)
    throw NotResumable(length, nearest_resumable(std::max(length, 0)));
  // A fork holds exactly what is to stay; the old row then returns the rest.
  Sequence shorter = fork(length);
  std::swap(row_, shorter.row_);
}

void Sequence::checkpoint() {
  Row& row = *row_;
  KvCache& cache = *row.cache;
  check_between_steps(row, "checkpoint");
  if (row.round)
    throw_error(ErrorCode::invalid_input, "checkpoint inside a speculative round: resolve it first");
  if (row.offset == 0 || (!row.checkpoints.empty() && row.checkpoints.back().position == row.offset)) return;
  Checkpoint point{.position = row.offset, .state = row.state, .windows = {}};
  bool needed = !cache.states().empty();
  point.windows.resize(row.groups.size());
  for (size_t g = 0; g < row.groups.size(); ++g) {
    const GroupGeometry& geometry = cache.shape().groups[g].geometry;
    if (!geometry.window) continue;
    needed = true;
    const RowGroup& group = row.groups[g];
    Checkpoint::Window& window = point.windows[g];
    window.evicted_below = group.evicted_below;
    window.first = static_cast<uint32_t>(group.evicted_below / geometry.page_tokens);
    window.ids.assign(group.ids.begin() + window.first, group.ids.end());
    for (PageId id : window.ids) cache.pool(g, row.encoded).retain(id);
  }
  cache.retain_state(point.state);
  if (!needed || cache.checkpoints_ == 0) {
    cache.release_checkpoint(row, point);
    return;
  }
  row.checkpoints.push_back(std::move(point));
  if (row.checkpoints.size() > cache.checkpoints_) {
    cache.release_checkpoint(row, row.checkpoints.front());
    row.checkpoints.erase(row.checkpoints.begin());
  }
}

std::vector<int32_t> Sequence::checkpoints() const {
  std::vector<int32_t> positions;
  for (const Checkpoint& point : row_->checkpoints) positions.push_back(point.position);
  return positions;
}

void Sequence::begin_round() {
  Row& row = *row_;
  check_between_steps(row, "speculative round");
  if (row.round)
    throw_error(ErrorCode::invalid_input,
                "a speculative round is open already (since token {}): rounds do not nest",
                row.round->before);
  // The round may not convert, so a row that is due does so now (kv-cache.md 7, begin).
  row.cache->convert_if_due(row);
  row.round = Round{.before = row.offset, .states = {}};
}

int32_t Sequence::round_tokens() const {
  check_usable(*row_);
  if (!row_->round) throw_error(ErrorCode::invalid_input, "no speculative round is open");
  return row_->offset - row_->round->before;
}

void Sequence::commit_round(int32_t keep) {
  Row& row = *row_;
  KvCache& cache = *row.cache;
  check_between_steps(row, "end of a speculative round");
  const int32_t appended = round_tokens();
  if (keep < 0 || keep > appended)
    throw_error(ErrorCode::invalid_input, "a round of {} tokens cannot keep {}", appended, keep);
  const size_t pages = static_cast<size_t>(
      (int64_t{row.round->before} + keep + cache.shape().page_tokens - 1) / cache.shape().page_tokens);
  for (size_t g = 0; g < row.groups.size(); ++g) {
    RowGroup& group = row.groups[g];
    PagePool& pool = cache.pool(g, row.encoded);
    while (group.ids.size() > pages) {
      pool.release(group.ids.back());
      group.ids.pop_back();
      group.pages.pop_back();
    }
  }
  if (!cache.states().empty()) {
    const std::vector<SlotId>& states = row.round->states;
    if (keep > 0) {
      cache.release_state(row.state);
      row.state = states[static_cast<size_t>(keep - 1)];
    }
    for (size_t i = 0; i < states.size(); ++i)
      if (static_cast<int32_t>(i) != keep - 1) cache.release_state(states[i]);
  }
  row.offset = row.round->before + keep;
  row.round.reset();
  cache.evict(row);
}

int32_t Sequence::first_stored(size_t group) const {
  KVASIR_CHECK(group < row_->groups.size());
  return row_->groups[group].evicted_below;
}

std::vector<std::byte> Sequence::bytes(size_t group, int32_t position, int32_t count) const {
  const Row& row = *row_;
  check_usable(row);
  KVASIR_CHECK(group < row.groups.size());
  const GroupGeometry& geometry = row.cache->shape().groups[group].geometry;
  const int32_t first = row.groups[group].evicted_below;
  const bool sinks = position >= 0 && int64_t{position} + count <= geometry.sinks;
  if (position < 0 || count < 0 || int64_t{position} + count > row.offset || (position < first && !sinks))
    throw_error(ErrorCode::invalid_input, "tokens [{}, {}) are not stored: the sequence holds [{}, {})",
                position, int64_t{position} + count, first, row.offset);
  const PageLayout& layout = row.cache->layout(group, row.encoded);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * layout.token_bytes());
  const int32_t page = geometry.page_tokens;
  for (int32_t done = 0; done < count;) {
    const int32_t slot = (position + done) % page;
    const int32_t run = std::min(page - slot, count - done);
    layout.export_tokens(row.groups[group].pages[static_cast<size_t>((position + done) / page)], slot, run,
                         std::span(bytes).subspan(static_cast<size_t>(done) * layout.token_bytes(),
                                                  static_cast<size_t>(run) * layout.token_bytes()));
    done += run;
  }
  return bytes;
}

std::span<const std::byte> Sequence::state() const {
  check_usable(*row_);
  const StateSlotPool& states = row_->cache->states();
  if (states.empty()) return {};
  const SlotId id = row_->round && !row_->round->states.empty() ? row_->round->states.back() : row_->state;
  return {states.slot(id), states.bytes_per_slot()};
}

uint32_t Sequence::pages(size_t group) const {
  const auto& ids = row_->groups[group].ids;
  return static_cast<uint32_t>(ids.size() - static_cast<size_t>(std::count(ids.begin(), ids.end(), kNoPage)));
}

size_t Sequence::physical_bytes() const {
  size_t bytes = 0;
  for (size_t g = 0; g < row_->groups.size(); ++g)
    bytes += pages(g) * row_->cache->pool(g, row_->encoded).page_bytes();
  if (row_->state != StateSlotPool::kInitial) bytes += row_->cache->states().stored_bytes();
  return bytes + attached_bytes(attachments());
}

void Sequence::attach(Attachments attachments) {
  Row& row = *row_;
  check_between_steps(row, "attachment");
  if (row.round || row.offset == 0)
    throw_error(ErrorCode::invalid_input, "attachments belong to a number of tokens: {}",
                row.round ? "resolve the speculative round first" : "the sequence has none");
  check_attachments(attachments);
  row.attachments =
      attachments.empty() ? nullptr : std::make_shared<const Attachments>(std::move(attachments));
}

std::span<const Attachment> Sequence::attachments() const {
  return row_->attachments != nullptr ? std::span<const Attachment>(*row_->attachments)
                                      : std::span<const Attachment>();
}

DonorView Sequence::donate(size_t group) const {
  const Row& row = *row_;
  KVASIR_CHECK(group < row.groups.size());
  check_between_steps(row, "donor view");
  if (row.offset == 0)
    throw_error(ErrorCode::invalid_input, "cache is empty: a donor view needs at least one committed token");
  DonorView view;
  view.pool_ = &row.cache->pool(group, row.encoded);
  view.layout_ = &row.cache->layout(group, row.encoded);
  view.ids_ = row.groups[group].ids;
  view.pages_ = row.groups[group].pages;
  view.offset_ = row.offset;
  // An open round keeps more than the window.
  const auto& window = row.cache->shape().groups[group].geometry.window;
  view.start_ = std::max(row.groups[group].evicted_below, window ? row.offset - *window : 0);
  for (PageId id : view.ids_)
    if (id != kNoPage) view.pool_->retain(id);
  return view;
}

DonorView::DonorView(DonorView&& other) noexcept {
  *this = std::move(other);
}

DonorView& DonorView::operator=(DonorView&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    layout_ = other.layout_;
    pages_ = std::move(other.pages_);
    ids_ = std::move(other.ids_);
    start_ = std::exchange(other.start_, 0);
    offset_ = std::exchange(other.offset_, 0);
  }
  return *this;
}

DonorView::~DonorView() {
  release();
}

void DonorView::release() {
  if (pool_ == nullptr) return;
  for (PageId id : ids_)
    if (id != kNoPage) pool_->release(id);
  pool_ = nullptr;
  ids_.clear();
  pages_.clear();
  start_ = offset_ = 0;
}

namespace {
Dtype attended_dtype(const PlaneCodec& codec) {
  switch (codec.kind) {
    case PlaneCodec::Kind::plain:
      return codec.plain;
    case PlaneCodec::Kind::affine:
      return codec.scale_dtype;
    default:
      return Dtype::f16;
  }
}
}  // namespace

Dtype DonorView::key_dtype() const {
  KVASIR_CHECK(layout_ != nullptr);
  return attended_dtype(layout_->geometry().codec.k);
}
Dtype DonorView::value_dtype() const {
  KVASIR_CHECK(layout_ != nullptr);
  return attended_dtype(layout_->geometry().codec.v);
}

RowPages DonorView::pages() const {
  return {.pages = pages_.data(), .page_count = static_cast<int32_t>(pages_.size()), .layout = layout_};
}

std::vector<std::string> signatures(const Sequence& row) {
  const KvCache& cache = row.cache();
  std::vector<std::string> list;
  for (const int group : cache.shape().group_of)
    list.push_back(layer_signature(cache.layout(static_cast<size_t>(group), row.encoded()).geometry()));
  return list;
}

bool match_signatures(std::span<const std::string> built_for, std::span<Sequence* const> rows) {
  return std::all_of(rows.begin(), rows.end(), [&](const Sequence* row) {
    const std::vector<std::string> stored = signatures(*row);
    return std::equal(stored.begin(), stored.end(), built_for.begin(), built_for.end());
  });
}

}  // namespace kvasir::kv
