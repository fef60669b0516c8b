// How far one model's next-token distributions are from another's, position by position.
//
//   KL(p || q) = sum_i p_i (ln p_i - ln q_i),   p = softmax(reference logits), q = softmax(logits)
//
// in float64; the sum runs over the vocabulary in id order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::cli {

struct KlSummary {
  int64_t positions = 0;
  double mean = 0, standard_error = 0;  // of the mean, positions taken as independent
  double median = 0, p99 = 0, max = 0;
  double top1_agreement = 0;  // share of positions with the same likeliest id (the lowest of equals)
  int64_t targets = 0;        // positions whose next token is known
  double reference_perplexity = 0, perplexity = 0;
};

class KlStatistics {
 public:
  // One position's logits [vocab] of both; `target`: the token that follows, -1: none known. Throws
  // Error{invalid_input} for logits that are not finite (-inf has probability zero).
  void add(std::span<const float> reference, std::span<const float> logits, int32_t target);
  KlSummary summary() const;

 private:
  std::vector<double> divergences_;
  int64_t same_top_ = 0, targets_ = 0;
  double reference_loss_ = 0, loss_ = 0;
};

}  // namespace kvasir::cli
