#include "engine/dry_breakers.h"

#include <algorithm>
#include <iterator>

namespace kvasir::engine {

std::vector<std::string> default_dry_breakers() {
  return {"\n", ":", "\"", "*"};
}

int tokens_behind_breaker(const DryBreakers& breakers, std::span<const int32_t> reversed) {
  for (size_t i = 0; i < reversed.size(); ++i) {
    const auto found = breakers.find(reversed[i]);
    if (found == breakers.end()) continue;
    std::ptrdiff_t longest = -1;
    for (const std::vector<int32_t>& tail : found->second) {
      const auto length = static_cast<std::ptrdiff_t>(tail.size());
      if (length <= longest || tail.size() > i) continue;
      if (std::equal(tail.begin(), tail.end(),
                     std::make_reverse_iterator(reversed.begin() + static_cast<std::ptrdiff_t>(i))))
        longest = length;
    }
    if (longest >= 0) return static_cast<int>(static_cast<std::ptrdiff_t>(i) - longest);
  }
  return static_cast<int>(reversed.size());
}

}  // namespace kvasir::engine
