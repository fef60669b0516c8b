#include "engine/prefix_cache.h"

#include <algorithm>

#include "kv/tokens.h"

namespace kvasir::engine {

PrefixCache::PrefixCache(kv::KvCache& cache, std::string key, size_t cap_bytes, int64_t interval)
    : tree_(cache, cap_bytes), key_(std::move(key)), interval_(interval), page_(cache.shape().page_tokens) {
  cache.on_pressure([this] { return tree_.yield(); });
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
