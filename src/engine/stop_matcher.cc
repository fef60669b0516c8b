#include "engine/stop_matcher.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  if (stops_.size() > 16) throw_error(ErrorCode::invalid_input, "{} stop strings, at most 16", stops_.size());
  for (const std::string& stop : stops_)
    if (stop.size() > 1024)
      throw_error(ErrorCode::invalid_input, "stop string of {} bytes, at most 1024", stop.size());
}

size_t StopMatcher::earliest_partial() const {
  for (size_t start = 0; start < held_.size(); ++start) {
    const std::string_view rest = std::string_view(held_).substr(start);
    for (const std::string& stop : stops_)
      if (rest.size() < stop.size() && std::string_view(stop).starts_with(rest)) return start;
  }
  return held_.size();
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at < match || (at == match && stop.size() > matched_.size())) {
      match = at;
      matched_ = stop;
    }
  }
  const size_t partial = earliest_partial();
  if (match != std::string::npos && match <= partial) {
    stopped_ = true;
    std::string out = held_.substr(0, match);
    held_.clear();
    return out;
  }
  // Either nothing matched, or a longer string that starts earlier may still complete.
  const size_t safe = std::min(match, partial);
  std::string out = held_.substr(0, safe);
  held_.erase(0, safe);
  if (match != std::string::npos) matched_.clear();
  return out;
}

std::string StopMatcher::finish() {
  if (stopped_) return {};
  // A match that waited for an earlier, longer candidate now counts.
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < match) {
      match = at;
      matched_ = stop;
    }
  }
  std::string out = held_.substr(0, std::min(match, held_.size()));
  stopped_ = match != std::string::npos;
  held_.clear();
  return out;
}

}  // namespace kvasir::engine
