#include "base/nearest_name.h"

#include <algorithm>
#include <numeric>

namespace kvasir {
namespace {

// Levenshtein distance.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(const std::string& unknown, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(3, unknown.size() / 2);
  for (const std::string& candidate : names) {
    const size_t d = distance(unknown, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& name) {
  return name.empty() ? name : ": did you mean " + name + "?";
}

}  // namespace kvasir
