#include "cli/kl_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/sampler.h"

namespace kvasir::cli {
namespace {

// The value below which a share q of the sorted values lies, between the two nearest ones (type 7 of Hyndman
// and Fan 1996, numpy's default).
double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (place - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

struct Normalizer {
  double largest;
  double log_sum;  // ln sum exp(x)
};

Normalizer normalizer(std::span<const float> logits, const char* whose) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  if (!std::isfinite(largest) || !std::isfinite(sum))
    throw_error(ErrorCode::invalid_input, "logits of {} are not finite", whose);
  return {largest, largest + std::log(sum)};
}

}  // namespace

void KlStatistics::add(std::span<const float> reference, std::span<const float> logits, int32_t target) {
  KVASIR_CHECK(reference.size() == logits.size() && !logits.empty());
  const Normalizer p = normalizer(reference, "the reference"), q = normalizer(logits, "the model");
  double divergence = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - p.log_sum;
    const double probability = std::exp(log_p);
    if (probability > 0) divergence += probability * (log_p - (static_cast<double>(logits[i]) - q.log_sum));
  }
  divergences_.push_back(divergence);
  same_top_ += engine::argmax(reference) == engine::argmax(logits) ? 1 : 0;
  if (target >= 0) {
    const auto at = static_cast<size_t>(target);
    ++targets_;
    reference_loss_ += p.log_sum - static_cast<double>(reference[at]);
    loss_ += q.log_sum - static_cast<double>(logits[at]);
  }
}

KlSummary KlStatistics::summary() const {
  KlSummary out;
  out.positions = static_cast<int64_t>(divergences_.size());
  out.targets = targets_;
  if (divergences_.empty()) return out;
  std::vector<double> sorted = divergences_;
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  double sum = 0, squares = 0;
  for (const double d : divergences_) sum += d;
  out.mean = sum / n;
  for (const double d : divergences_) squares += (d - out.mean) * (d - out.mean);
  if (sorted.size() > 1) out.standard_error = std::sqrt(squares / (n - 1) / n);
  out.median = quantile(sorted, 0.5);
  out.p99 = quantile(sorted, 0.99);
  out.max = sorted.back();
  out.top1_agreement = static_cast<double>(same_top_) / n;
  if (targets_ > 0) {
    out.reference_perplexity = std::exp(reference_loss_ / static_cast<double>(targets_));
    out.perplexity = std::exp(loss_ / static_cast<double>(targets_));
  }
  return out;
}

}  // namespace kvasir::cli
