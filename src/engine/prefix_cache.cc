#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/error.h"
#include "kv/tokens.h"

namespace kvasir::engine {
namespace {

constexpr std::string_view kBase;  // the namespace of no adapters; the store's identity says the rest

}  // namespace

PrefixCache::PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval,
                         std::unique_ptr<kv::DiskStore> disk, ThreadTeam* team)
    : cache_(cache),
      disk_(std::move(disk)),
      team_(team),
      tree_(cache, cap_bytes),
      key_(std::move(key)),
      interval_(interval),
      page_(cache.shape().page_tokens) {
  cache.on_pressure([this] { return tree_.yield(); });
  if (disk_ != nullptr)
    tree_.on_evict([this](std::string_view, std::span<const int32_t> tokens, const kv::Sequence& sequence) {
      keep_on_disk(tokens, sequence);
    });
}

PrefixCache::~PrefixCache() {
  cache_.on_pressure(nullptr);
  if (disk_ == nullptr) return;
  // The last used first, as far as the store's cap goes: it would evict what comes after.
  uint64_t bytes = 0;
  tree_.each_point([&](std::string_view, std::span<const int32_t> tokens, const kv::Sequence& sequence) {
    bytes += sequence.physical_bytes();
    if (bytes <= disk_->cap_bytes()) keep_on_disk(tokens, sequence);
    return bytes < disk_->cap_bytes();
  });
}

void PrefixCache::keep_on_disk(std::span<const int32_t> tokens, const kv::Sequence& sequence) {
  try {
    if (!disk_->serves(kBase, tokens)) disk_->put(kBase, tokens, sequence);
  } catch (const Error&) {
    // put() has warned of what it could not write; without an index this prefix is computed again.
  }
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
  if (there <= than) return std::nullopt;
  return tree_.take(key_, prompt);
}

std::optional<kv::DiskStore::Stats> PrefixCache::disk_stats() const {
  if (disk_ == nullptr) return std::nullopt;
  return disk_->stats();
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
  if (tree_.needs_points()) point = point || (interval_ > 0 && length % interval_ == 0);
  if (point)
    tree_.put(key_, tokens, sequence);
  else if (stage == Stage::prefill && !tree_.needs_points())
    tree_.publish(key_, tokens, sequence);  // pages without a resume point are of no use where one is needed
}

}  // namespace kvasir::engine
