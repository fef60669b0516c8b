#include "engine/prefix_cache.h"

#include <algorithm>

namespace kvasir::engine {

PrefixCache::PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval)
    : tree_(cache, cap_bytes),
      key_(std::move(key)),
      interval_(interval),
      page_(cache.shape().page_tokens),
      needs_points_(!cache.states().empty()) {
  for (const kv::LayerGroup& group : cache.shape().groups)
    needs_points_ = needs_points_ || group.geometry.window.has_value();
  cache.on_pressure([this] { return tree_.yield(); });
}

std::vector<int32_t> PrefixCache::stops(int32_t reused, int32_t length, int32_t stable) const {
  std::vector<int32_t> stops;
  if (needs_points_) {
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
  const size_t most = std::min(prompt.size() - 1, other.size());
  size_t common = 0;
  while (common < most && prompt[common] == other[common]) ++common;
  const auto length = static_cast<int32_t>(common);
  int32_t best = needs_points_ ? 0 : length / page_ * page_;
  for (const int32_t stop : stops)
    if (stop <= length) best = std::max(best, stop);
  return best;
}

void PrefixCache::publish(std::span<const int32_t> tokens, const kv::Sequence& sequence) {
  // Without a resume point the pages of a model that needs one are of no use.
  if (!needs_points_) tree_.publish(key_, tokens, sequence);
}

void PrefixCache::record(std::span<const int32_t> tokens, const kv::Sequence& sequence) {
  tree_.put(key_, tokens, sequence);
}

}  // namespace kvasir::engine
