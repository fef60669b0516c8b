#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "engine/rng.h"
#include "engine/sampling_kernels.h"

namespace kvasir::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMinusInfinity = -kInfinity;
constexpr size_t kBlock = 1024;

std::span<const int32_t> tail(std::span<const int32_t> history, int context) {
  if (context <= 0 || history.size() <= static_cast<size_t>(context)) return history;
  return history.subspan(history.size() - static_cast<size_t>(context));
}

}  // namespace

float sampling_exp(float x) {
  // exp(x) = 2^n * exp(r), r = x - n ln 2 in two parts (Cody and Waite), |r| <= ln(2)/2; minimax polynomial
  // of degree 6.
  if (!(x > -103.0f)) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float scaled = x * 1.44269504f;
  const float n = static_cast<float>(static_cast<int>(scaled + (scaled < 0 ? -0.5f : 0.5f)));
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = (p * r * r + r) + 1.0f;
  return std::ldexp(value, static_cast<int>(n));
}

namespace {

const SamplingKernels& kernels() {
  static const SamplingKernels& table = sampling_kernels(best_isa_level());
  return table;
}

// Sums of exp(x - shift), of those x - shift < below, over blocks of 1024 ids, each sequential in f64;
// returns the total (blocks added in order). Eight blocks at a time: their sums do not wait for each other.
double block_sums(std::span<const float> logits, float shift, float below, std::vector<double>* blocks) {
  constexpr size_t kTogether = 8;
  alignas(64) std::array<float, kTogether * kBlock> weights;
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += weights.size()) {
    const size_t count = std::min(weights.size(), logits.size() - begin);
    kernels().exps(logits.data() + begin, shift, below, static_cast<int64_t>(count), weights.data());
    std::fill(weights.begin() + static_cast<std::ptrdiff_t>(count), weights.end(), 0.0f);
    std::array<double, kTogether> sums{};
    for (size_t i = 0; i < kBlock; ++i)
      for (size_t b = 0; b < kTogether; ++b) sums[b] += static_cast<double>(weights[b * kBlock + i]);
    for (size_t b = 0; b * kBlock < count; ++b) {
      if (blocks != nullptr) blocks->push_back(sums[b]);
      total += sums[b];
    }
  }
  return total;
}

}  // namespace

int32_t argmax(std::span<const float> logits) {
  const int64_t best = kernels().argmax(logits.data(), static_cast<int64_t>(logits.size()));
  if (best >= 0) return static_cast<int32_t>(best);
  // A row with a logit that is not a number: the largest of the others.
  size_t largest = 0;
  for (size_t i = 1; i < logits.size(); ++i)
    if (logits[i] > logits[largest]) largest = i;
  return static_cast<int32_t>(largest);
}

float log_sum_exp(std::span<const float> logits) {
  const float max = logits[static_cast<size_t>(argmax(logits))];
  if (max == kMinusInfinity) return kMinusInfinity;
  return static_cast<float>(static_cast<double>(max) + std::log(block_sums(logits, max, kInfinity, nullptr)));
}

int32_t categorical(std::span<const float> logits, float u) {
  const float max = logits[static_cast<size_t>(argmax(logits))];
  std::vector<double> blocks;
  const double target = static_cast<double>(u) * block_sums(logits, max, kInfinity, &blocks);
  double prefix = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!(prefix + blocks[b] > target)) {
      prefix += blocks[b];
      continue;
    }
    // Inside the block the sums restart from the exclusive prefix of the block, in the same sequential order.
    double inside = 0;
    for (size_t i = b * kBlock; i < std::min(logits.size(), (b + 1) * kBlock); ++i) {
      inside += static_cast<double>(sampling_exp(logits[i] - max));
      if (prefix + inside > target) return static_cast<int32_t>(i);
    }
    prefix += blocks[b];
  }
  // Only rounding at the very end leads here: the last id with a positive weight.
  for (size_t i = logits.size(); i-- > 0;)
    if (sampling_exp(logits[i] - max) > 0) return static_cast<int32_t>(i);
  return argmax(logits);
}

namespace {

[[noreturn]] void refuse_none() {
  throw_error(ErrorCode::invalid_input, "no_valid_token: every token is excluded");
}

}  // namespace

void refuse_nan_logits() {
  throw_error(ErrorCode::internal, "nan_logits: the model produced a logit that is not a number");
}

Sampler::Sampler(SamplingOptions options)
    : options_(std::move(options)),
      order_(options_.order.empty() ? default_order() : options_.order),
      mirostat_mu_(2 * options_.mirostat_tau) {}

void Sampler::apply_penalties(std::span<float> logits, std::span<const int32_t> history) {
  auto distinct = [](std::span<const int32_t> window) {
    std::vector<int32_t> ids(window.begin(), window.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  };
  const auto size = static_cast<int32_t>(logits.size());
  if (options_.repetition_penalty != 0 && options_.repetition_penalty != 1)
    for (int32_t id : distinct(tail(history, options_.repetition_context)))
      if (id < size) {
        float& x = logits[static_cast<size_t>(id)];
        x = x < 0 ? x * options_.repetition_penalty : x / options_.repetition_penalty;
      }
  if (options_.presence_penalty != 0)
    for (int32_t id : distinct(tail(history, options_.presence_context)))
      if (id < size) logits[static_cast<size_t>(id)] -= options_.presence_penalty;
  if (options_.frequency_penalty != 0) {
    std::map<int32_t, int> counts;
    for (int32_t id : tail(history, options_.frequency_context)) ++counts[id];
    for (const auto& [id, count] : counts)
      if (id < size)
        logits[static_cast<size_t>(id)] -= options_.frequency_penalty * static_cast<float>(count);
  }
}

void Sampler::apply_dry(std::span<float> logits, std::span<const int32_t> history) {
  // For each earlier position, the length of the longest suffix of the history that also ends there; the
  // token that followed it would extend a repetition of that length. Z algorithm over the reversed window:
  // linear time.
  const std::span<const int32_t> window = tail(history, options_.dry_context);
  const int n = static_cast<int>(window.size());
  if (n <= options_.dry_allowed_length) return;
  std::vector<int32_t> reversed(window.rbegin(), window.rend());
  // Matches may not run across a breaker.
  const int limit = options_.dry_breakers ? tokens_behind_breaker(*options_.dry_breakers, reversed) : n;
  if (limit < options_.dry_allowed_length) return;
  std::vector<int> z(static_cast<size_t>(n), 0);
  for (int i = 1, left = 0, right = 0; i < n; ++i) {
    int length = i < right ? std::min(right - i, z[static_cast<size_t>(i - left)]) : 0;
    while (i + length < n &&
           reversed[static_cast<size_t>(length)] == reversed[static_cast<size_t>(i + length)])
      ++length;
    z[static_cast<size_t>(i)] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
  std::map<int32_t, int> longest;  // token -> length of the repetition it would extend
  for (int i = 1; i < n; ++i) {
    const int length = std::min(z[static_cast<size_t>(i)], limit);
    if (length < options_.dry_allowed_length) continue;
    int& entry = longest[reversed[static_cast<size_t>(i - 1)]];
    entry = std::max(entry, length);
  }
  const float max_exponent = options_.dry_base > 1.000001f ? 88.7228391f / std::log(options_.dry_base) : 0;
  for (const auto& [id, length] : longest) {
    if (static_cast<size_t>(id) >= logits.size()) continue;
    float exponent = static_cast<float>(length - options_.dry_allowed_length);
    if (max_exponent > 0) exponent = std::min(exponent, max_exponent);
    logits[static_cast<size_t>(id)] -= options_.dry_multiplier * std::pow(options_.dry_base, exponent);
  }
}

// From the whole row to those whose value is `least` or more (never -inf).
void Sampler::collect(float least) {
  if (whole_.empty()) return;
  ids_.resize(whole_.size());
  values_.resize(whole_.size());
  const int64_t count = kernels().at_least(whole_.data(), shift_, least, static_cast<int64_t>(whole_.size()),
                                           ids_.data(), values_.data());
  candidates_.clear();
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) candidates_.push_back({ids_[i], values_[i]});
  whole_ = {};
}

float Sampler::largest() const {
  if (!whole_.empty()) return whole_[static_cast<size_t>(argmax(whole_))] - shift_;
  float max = kMinusInfinity;
  for (const Candidate& c : candidates_) max = std::max(max, c.value);
  return max;
}

void Sampler::keep_top_k(int k) {
  if (!whole_.empty()) {
    if (k <= 0 || static_cast<size_t>(k) >= whole_.size()) return;
    // No more than k - 1 of the k largest lie below the k-th largest of the blocks' maxima.
    std::vector<float> maxima((whole_.size() + 63) / 64);
    float least = kMinusInfinity;
    if (static_cast<size_t>(k) <= maxima.size()) {
      kernels().block_maxima(whole_.data(), static_cast<int64_t>(whole_.size()), maxima.data());
      std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
      least = maxima[static_cast<size_t>(k - 1)] - shift_;
    }
    collect(least);
  }
  if (k <= 0 || static_cast<size_t>(k) >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.value != b.value ? a.value > b.value : a.id < b.id;
                   });
  candidates_.resize(static_cast<size_t>(k));
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

void Sampler::keep_top_p(float p) {
  // Ascending by (value, id); keep i iff the inclusive cumulative probability exceeds 1 - p. Only the upper
  // part needs sorting: the mass below a threshold is summed in id order, and the threshold is lowered until
  // the cut lies above it.
  const double cut = 1.0 - static_cast<double>(p);
  const float max = largest();
  double below = 0;
  for (float depth = 10;; depth *= 2) {
    const float threshold = depth > 200 ? kMinusInfinity : max - depth;
    below = 0;
    if (!whole_.empty()) {
      below = block_sums(whole_, shift_, threshold, nullptr);
    } else {
      for (const Candidate& c : candidates_)
        if (c.value < threshold) below += static_cast<double>(sampling_exp(c.value));
    }
    if (below > cut && threshold != kMinusInfinity) continue;
    if (!whole_.empty())
      collect(threshold);
    else
      std::erase_if(candidates_, [&](const Candidate& c) { return c.value < threshold; });
    break;
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value < b.value : a.id < b.id;
  });
  double sum = below;
  size_t first = 0;
  for (; first < candidates_.size(); ++first) {
    sum += static_cast<double>(sampling_exp(candidates_[first].value));
    if (sum > cut) break;
  }
  if (first == candidates_.size())
    first = candidates_.size() - 1;  // rounding: the most probable token always stays
  candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(first));
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

void Sampler::keep_min_p(float p) {
  const float threshold = largest() + static_cast<float>(std::log(static_cast<double>(p)));
  const std::span<float> all = whole_;
  if (!all.empty()) {
    collect(threshold);
    if (candidates_.size() >= static_cast<size_t>(options_.min_tokens_to_keep)) return;
    candidates_.clear();
    whole_ = all;
    keep_top_k(options_.min_tokens_to_keep);
    return;
  }
  std::vector<Candidate> kept;
  for (const Candidate& c : candidates_)
    if (!(c.value < threshold)) kept.push_back(c);
  if (kept.size() < static_cast<size_t>(options_.min_tokens_to_keep))
    keep_top_k(options_.min_tokens_to_keep);
  else
    candidates_ = std::move(kept);
}

void Sampler::keep_typical(float p) {
  collect(kMinusInfinity);
  double entropy = 0;
  for (const Candidate& c : candidates_)
    if (c.value != kMinusInfinity)
      entropy -= static_cast<double>(sampling_exp(c.value)) * static_cast<double>(c.value);
  struct Scored {
    float distance;
    Candidate candidate;
  };
  std::vector<Scored> scored;
  for (const Candidate& c : candidates_)
    if (c.value != kMinusInfinity) scored.push_back({std::fabs(-c.value - static_cast<float>(entropy)), c});
  std::sort(scored.begin(), scored.end(), [](const Scored& a, const Scored& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.candidate.id < b.candidate.id;
  });
  double sum = 0;
  size_t keep = 0;
  while (keep < scored.size()) {
    sum += static_cast<double>(sampling_exp(scored[keep].candidate.value));
    ++keep;
    if (sum > static_cast<double>(p) && keep >= static_cast<size_t>(options_.min_tokens_to_keep)) break;
  }
  candidates_.clear();
  for (size_t i = 0; i < keep; ++i) candidates_.push_back(scored[i].candidate);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

void Sampler::keep_top_n_sigma(float n) {
  collect(kMinusInfinity);
  double sum = 0, squares = 0;
  float max = kMinusInfinity;
  size_t count = 0;
  for (const Candidate& c : candidates_)
    if (c.value != kMinusInfinity) {
      sum += static_cast<double>(c.value);
      max = std::max(max, c.value);
      ++count;
    }
  if (count == 0) return;
  const double mean = sum / static_cast<double>(count);
  for (const Candidate& c : candidates_)
    if (c.value != kMinusInfinity)
      squares += (static_cast<double>(c.value) - mean) * (static_cast<double>(c.value) - mean);
  const float threshold = max - n * static_cast<float>(std::sqrt(squares / static_cast<double>(count)));
  std::erase_if(candidates_, [&](const Candidate& c) { return c.value < threshold; });
}

void Sampler::drop_xtc(float u) {
  if (u > options_.xtc_probability) return;
  collect(kMinusInfinity);
  renormalise();
  float least = std::numeric_limits<float>::infinity();
  for (const Candidate& c : candidates_) {
    const float p = sampling_exp(c.value);
    if (p > options_.xtc_threshold) least = std::min(least, p);
  }
  std::erase_if(candidates_, [&](const Candidate& c) {
    return sampling_exp(c.value) > least &&
           std::find(options_.xtc_special.begin(), options_.xtc_special.end(), c.id) ==
               options_.xtc_special.end();
  });
}

void Sampler::renormalise() {
  collect(kMinusInfinity);
  float max = kMinusInfinity;
  for (const Candidate& c : candidates_) max = std::max(max, c.value);
  if (max == kMinusInfinity) return;
  double total = 0;
  for (const Candidate& c : candidates_) total += static_cast<double>(sampling_exp(c.value - max));
  const float shift = static_cast<float>(static_cast<double>(max) + std::log(total));
  for (Candidate& c : candidates_) c.value -= shift;
}

int32_t Sampler::draw(float u) const {
  if (!whole_.empty()) return categorical(whole_, u);
  // The same rule as categorical(), over the candidates that are left: absent ids have weight zero, so the
  // blocks of 1024 ids hold the same sums.
  float max = kMinusInfinity;
  for (const Candidate& c : candidates_) max = std::max(max, c.value);
  blocks_.clear();
  std::vector<std::pair<size_t, size_t>> ranges;
  double total = 0;
  for (size_t i = 0; i < candidates_.size();) {
    const int32_t block = candidates_[i].id / static_cast<int32_t>(kBlock);
    double sum = 0;
    size_t j = i;
    for (; j < candidates_.size() && candidates_[j].id / static_cast<int32_t>(kBlock) == block; ++j)
      sum += static_cast<double>(sampling_exp(candidates_[j].value - max));
    blocks_.push_back(sum);
    ranges.emplace_back(i, j);
    total += sum;
    i = j;
  }
  const double target = static_cast<double>(u) * total;
  double prefix = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (prefix + blocks_[b] > target) {
      double inside = 0;
      for (size_t i = ranges[b].first; i < ranges[b].second; ++i) {
        inside += static_cast<double>(sampling_exp(candidates_[i].value - max));
        if (prefix + inside > target) return candidates_[i].id;
      }
    }
    prefix += blocks_[b];
  }
  for (size_t i = candidates_.size(); i-- > 0;)
    if (sampling_exp(candidates_[i].value - max) > 0) return candidates_[i].id;
  return candidates_.front().id;
}

int32_t Sampler::draw_mirostat(float u) {
  // Candidates whose surprise (in bits) exceeds mu are dropped; mu then moves towards the target surprise
  // tau.
  renormalise();
  constexpr float kBitsPerNat = 1.44269504f;
  std::vector<Candidate> all = candidates_;
  std::erase_if(candidates_, [&](const Candidate& c) { return -c.value * kBitsPerNat > mirostat_mu_; });
  if (candidates_.empty()) {
    const auto best = std::max_element(
        all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.value < b.value; });
    candidates_.push_back(*best);
  }
  renormalise();
  const int32_t id = draw(u);
  for (const Candidate& c : candidates_)
    if (c.id == id) mirostat_mu_ -= options_.mirostat_eta * (-c.value * kBitsPerNat - options_.mirostat_tau);
  return id;
}

Sampled Sampler::sample(std::span<float> logits, std::span<const int32_t> history, uint64_t t,
                        std::span<const int32_t> banned, int top_logprobs) {
  for (const auto& [id, bias] : options_.logit_bias) logits[static_cast<size_t>(id)] += bias;
  if (has_stage(SamplerStage::penalties)) apply_penalties(logits, history);
  if (options_.dry_multiplier > 0 && has_stage(SamplerStage::dry)) apply_dry(logits, history);
  for (int32_t id : banned)
    if (static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = kMinusInfinity;

  Sampled result;
  const int64_t best = kernels().argmax(logits.data(), static_cast<int64_t>(logits.size()));
  if (best < 0) refuse_nan_logits();
  if (logits[static_cast<size_t>(best)] == kMinusInfinity) refuse_none();

  const bool wants_logprobs = top_logprobs >= 0;
  candidates_.clear();
  result.id = static_cast<int32_t>(best);
  if (!wants_logprobs) {
    if (options_.greedy()) return result;
    whole_ = logits;
    shift_ = reads_probabilities() ? log_sum_exp(logits) : 0;
    result.id = choose(t);
    return result;
  }
  const std::vector<float> all(logits.begin(), logits.end());
  const float normaliser = log_sum_exp(all);
  if (!options_.greedy()) {
    whole_ = logits;
    shift_ = reads_probabilities() ? normaliser : 0;
    result.id = choose(t);
  }
  result.logprob = all[static_cast<size_t>(result.id)] - normaliser;
  const size_t count = std::min<size_t>(static_cast<size_t>(top_logprobs), all.size());
  std::vector<TokenLogprob> top;
  top.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) top.push_back({static_cast<int32_t>(i), all[i] - normaliser});
  std::partial_sort(top.begin(), top.begin() + static_cast<std::ptrdiff_t>(count), top.end(),
                    [](const TokenLogprob& a, const TokenLogprob& b) {
                      return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
                    });
  top.resize(count);
  result.top = std::move(top);
  return result;
}

int Sampler::candidates_wanted(int most) const {
  const bool changed = !options_.logit_bias.empty() ||
                       (options_.dry_multiplier > 0 && has_stage(SamplerStage::dry)) ||
                       (has_stage(SamplerStage::penalties) &&
                        ((options_.repetition_penalty != 0 && options_.repetition_penalty != 1) ||
                         options_.presence_penalty != 0 || options_.frequency_penalty != 0));
  if (changed) return 0;
  if (options_.greedy()) return 1;
  if (options_.mirostat == 2 || reads_probabilities() ||
      (options_.top_n_sigma > 0 && has_stage(SamplerStage::top_n_sigma)) ||
      (options_.xtc_probability > 0 && has_stage(SamplerStage::xtc)) || !has_stage(SamplerStage::top_k))
    return 0;
  // min_p may keep more than its threshold leaves.
  const int wanted = std::max(options_.top_k, options_.min_p > 0 ? options_.min_tokens_to_keep : 0);
  return options_.top_k > 0 && wanted <= most ? wanted : 0;
}

int32_t Sampler::choose_from(std::span<const Candidate> largest, uint64_t t) {
  if (largest.empty() || largest.front().value == kMinusInfinity) refuse_none();
  candidates_.clear();
  if (options_.greedy()) return largest.front().id;
  for (const Candidate& c : largest)
    if (c.value != kMinusInfinity) candidates_.push_back(c);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  whole_ = {};
  return choose(t);
}

// Takes the distribution through the stages and draws.
int32_t Sampler::choose(uint64_t t) {
  const RandomKey key = step_key(options_.seed, t);
  const bool xtc = options_.xtc_probability > 0 && has_stage(SamplerStage::xtc);
  const SplitKeys keys = split(key);
  const float u = uniform(xtc ? keys.second : key);
  bool tempered = false;
  const auto apply_temperature = [&] {
    const float r = static_cast<float>(1.0 / static_cast<double>(options_.temperature));
    for (float& x : whole_) x = (x - shift_) * r;
    shift_ = 0;
    for (Candidate& c : candidates_) c.value *= r;
    tempered = true;
  };
  for (SamplerStage stage : order_) {
    if (!is_active(stage)) continue;
    // After the temperature, what reads probabilities needs a distribution again.
    if (tempered && (stage == SamplerStage::top_p || stage == SamplerStage::typical)) renormalise();
    switch (stage) {
      case SamplerStage::penalties:
      case SamplerStage::dry:
        break;
      case SamplerStage::top_n_sigma:
        keep_top_n_sigma(options_.top_n_sigma);
        break;
      case SamplerStage::top_k:
        keep_top_k(options_.top_k);
        break;
      case SamplerStage::typical:
        keep_typical(options_.typical_p);
        break;
      case SamplerStage::top_p:
        keep_top_p(options_.top_p);
        break;
      case SamplerStage::min_p:
        keep_min_p(options_.min_p);
        break;
      case SamplerStage::xtc:
        drop_xtc(uniform(keys.first));
        break;
      case SamplerStage::temperature:
        apply_temperature();
        break;
    }
    if (whole_.empty() && candidates_.empty())
      throw_error(ErrorCode::invalid_input, "no_valid_token: stage {} left no token", name(stage));
  }
  if (!tempered) apply_temperature();
  const int32_t id = options_.mirostat == 2 ? draw_mirostat(u) : draw(u);
  whole_ = {};
  return id;
}

bool Sampler::has_stage(SamplerStage stage) const {
  return std::find(order_.begin(), order_.end(), stage) != order_.end();
}

// Whether a stage of the order does anything to the distribution.
bool Sampler::is_active(SamplerStage stage) const {
  if (stage == SamplerStage::temperature) return true;
  if (stage == SamplerStage::penalties || stage == SamplerStage::dry) return false;  // done with the logits
  return options_.mirostat != 2 && !options_.asks_for(stage).empty();  // mirostat takes their place
}

// Whether a stage needs log-probabilities, not logits.
bool Sampler::reads_probabilities() const {
  return (has_stage(SamplerStage::top_p) && is_active(SamplerStage::top_p)) ||
         (has_stage(SamplerStage::typical) && is_active(SamplerStage::typical));
}

}  // namespace kvasir::engine
