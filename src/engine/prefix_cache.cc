#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/error.h"
#include "kv/tokens.h"

namespace kvasir::engine {
namespace {

constexpr std::string_view kBase;  // the namespace of no adapters; the store's identity says the rest

}  // namespace

PrefixCache::PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval,
                         std::unique_ptr<kv::DiskStore> disk, ThreadTeam* team,
                         kv::WriteBehind::Options writing)
    : cache_(cache),
      disk_(std::move(disk)),
      team_(team),
      tree_(cache, cap_bytes),
      key_(std::move(key)),
      interval_(interval),
      page_(cache.shape().page_tokens) {
  if (disk_ != nullptr) {
    writing.ns = [](std::string_view) { return std::string(kBase); };
    writing_ = std::make_unique<kv::WriteBehind>(*disk_, tree_, std::move(writing));
  }
  cache.on_pressure([this] { return writing_ != nullptr ? writing_->relieve() : tree_.yield(); });
}

PrefixCache::~PrefixCache() {
  writing_.reset();  // writes what is left
  cache_.on_pressure(nullptr);
}

void PrefixCache::be_patient(bool patient) {
  if (writing_ != nullptr) writing_->be_patient(patient);
}

void PrefixCache::idle() {
  if (writing_ != nullptr) writing_->idle();
}

kv::WriteBehind::Flushed PrefixCache::flush(std::chrono::milliseconds limit) {
  return writing_ != nullptr ? writing_->flush(limit) : kv::WriteBehind::Flushed{.durable = true};
}

size_t PrefixCache::demote_idle(std::chrono::milliseconds unused) {
  return writing_ != nullptr ? writing_->demote_idle(unused) : 0;
}

size_t PrefixCache::relieve_pressure(size_t bytes) {
  if (writing_ != nullptr) return writing_->relieve_pressure(bytes);
  return tree_.relieve(bytes, [](auto&&...) { return true; });
}

int32_t PrefixCache::peek(std::span<const int32_t> prompt) const {
  const int32_t there = tree_.peek(key_, prompt);
  if (disk_ == nullptr) return there;
  const auto found = disk_->find(kBase, prompt);
  return found ? std::max(there, found->length) : there;
}

std::optional<kv::Sequence> PrefixCache::take(std::span<const int32_t> prompt, int32_t than) {
  const int32_t there = tree_.peek(key_, prompt);
  const auto found = disk_ == nullptr ? std::nullopt : disk_->find(kBase, prompt);
  if (found && found->length > std::max(there, than)) {
    try {
      if (auto sequence = disk_->restore(cache_, found->entry, found->length, team_)) {
        tree_.put(key_, prompt.first(static_cast<size_t>(found->length)), *sequence);
        return sequence;
      }
    } catch (const kv::KvPoolExhausted&) {
      // Live rows need the pages: what memory has must do.
    }
  }
  // Asked again: making room for what the disk has may have cost the tree what it had.
  if (tree_.peek(key_, prompt) <= than) return std::nullopt;
  return tree_.take(key_, prompt);
}

std::optional<kv::DiskStore::Stats> PrefixCache::disk_stats() const {
  if (disk_ == nullptr) return std::nullopt;
  return disk_->stats();
}

std::optional<kv::WriteBehind::Stats> PrefixCache::write_stats() const {
  if (writing_ == nullptr) return std::nullopt;
  return writing_->stats();
}

std::vector<int32_t> PrefixCache::stops(int32_t reused, int32_t length, int32_t stable) const {
  std::vector<int32_t> stops;
  if (tree_.needs_points()) {
    if (interval_ > 0)
      for (int64_t at = (reused / interval_ + 1) * interval_; at < length; at += interval_)
        stops.push_back(static_cast<int32_t>(at));
    stops.push_back(stable);
    stops.push_back(length - 1);
  }
  stops.push_back(length);
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  std::erase_if(stops, [&](int32_t at) { return at <= reused || at > length; });
  return stops;
}

int32_t PrefixCache::promised(std::span<const int32_t> prompt, std::span<const int32_t> other,
                              std::span<const int32_t> stops) const {
  const int32_t length = kv::common_prefix(prompt.first(prompt.size() - 1), other);
  int32_t best = tree_.needs_points() ? 0 : length / page_ * page_;
  for (const int32_t stop : stops)
    if (stop <= length) best = std::max(best, stop);
  return best;
}

void PrefixCache::stored(std::span<const int32_t> tokens, const kv::Sequence& sequence,
                         std::vector<int32_t>& stops, Stage stage) {
  const int32_t length = sequence.offset();
  const auto ahead = std::upper_bound(stops.begin(), stops.end(), length);
  bool point = stage == Stage::finished || (ahead != stops.begin() && *(ahead - 1) == length);
  stops.erase(stops.begin(), ahead);
  if (sequence.origin()) return;  // another engine's: nobody else may begin with it
  if (tree_.needs_points()) point = point || (interval_ > 0 && length % interval_ == 0);
  if (point) {
    if (tree_.put(key_, tokens, sequence)) {
      if (writing_ != nullptr) writing_->mark(key_, tokens, sequence);
    } else if (writing_ != nullptr && stage == Stage::finished) {
      writing_->write(key_, tokens, sequence);
    }
  } else if (stage == Stage::prefill && !tree_.needs_points()) {
    tree_.publish(key_, tokens, sequence);  // pages without a resume point are of no use where one is needed
  }
}

}  // namespace kvasir::engine
