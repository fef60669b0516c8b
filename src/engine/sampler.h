// From logits to a token: penalties, filters, temperature, one draw (spec: engine.md 9).
//
// Everything is f32 per row and depends on that row alone. The default order of the stages is mlx-lm's:
// filters see the untempered distribution. SamplingOptions::order gives another one (llama.cpp's, or
// temperature first as in vLLM).
//
// Logits are made log-probabilities where a stage or the caller reads probabilities (top_p, typical,
// logprobs); top_k, min_p, the temperature and the draw look at differences alone. So, while nothing else is
// asked for, the largest few logits of a row decide (candidates_wanted), and choosing from them gives the
// token that the whole row gives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dry_breakers.h"

namespace kvasir::engine {

enum class SamplerStage : uint8_t {
  penalties,
  dry,
  top_n_sigma,
  top_k,
  typical,
  top_p,
  min_p,
  xtc,
  temperature
};

struct SamplingOptions {
  float temperature = 0.7f;    // 0: greedy
  int top_k = 0;               // 0 (or >= V): off
  float top_p = 0;             // in (0, 1); 0 and 1: off
  float min_p = 0;             // in (0, 1]; 0: off
  int min_tokens_to_keep = 1;  // of min_p and typical
  float typical_p = 0;         // locally typical sampling (Meister et al. 2022); in (0, 1); 0 and 1: off
  float top_n_sigma =
      0;  // keep logits within n standard deviations of the largest (Tang et al. 2024); 0: off
  float xtc_probability = 0;
  float xtc_threshold = 0.1f;
  float repetition_penalty = 1;  // 0 and 1: off
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int repetition_context = 20;  // tokens of history that the penalty looks at; 0: all
  int presence_context = 20;
  int frequency_context = 20;
  float dry_multiplier = 0;  // 0: off ("don't repeat yourself": penalizes extending a repeated sequence)
  float dry_base = 1.75f;
  int dry_allowed_length = 2;
  int dry_context = 0;                                                      // 0: all
  std::vector<std::string> dry_sequence_breakers = default_dry_breakers();  // matches do not run across these
  std::shared_ptr<const DryBreakers> dry_breakers = {};  // the same in tokens; none: nothing breaks a match
  int mirostat = 0;  // 2: mirostat 2.0 (Basu et al. 2021) in place of the filters; 0: off
  float mirostat_tau = 5;
  float mirostat_eta = 0.1f;
  std::map<int32_t, float> logit_bias = {};
  uint64_t seed = 0;
  std::vector<int32_t> xtc_special = {};  // ids that XTC never removes (end of generation, newline)
  std::vector<SamplerStage> order = {};   // empty: default_order()

  bool greedy() const { return temperature == 0; }
  // The field that gives `stage` something to do; empty: none (temperature has no such field).
  std::string_view asks_for(SamplerStage stage) const;
  // Throws Error{invalid_input} naming the field, its value and its range. `vocabulary`: ids must be below
  // it.
  void validate(int64_t vocabulary) const;
};

std::vector<SamplerStage> default_order();  // mlx-lm's
std::vector<SamplerStage> order_from_text(
    std::string_view text);  // "mlx", "llama", "temperature_first", or stage names joined by ';' or ','
std::string_view name(SamplerStage stage);

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct Sampled {
  int32_t id = -1;
  float logprob = 0;              // of id, when wanted
  std::vector<TokenLogprob> top;  // by (logprob descending, id ascending)
};

// One row's sampler: the options, scratch memory and what mirostat remembers.
class Sampler {
 public:
  explicit Sampler(SamplingOptions options);

  // Draws the t-th token of the row. `logits` [V] is consumed (overwritten). `history`: prompt and committed
  // tokens, in order. `banned` ids cannot be drawn (end-of-generation ids while fewer than min_tokens are
  // out). `top_logprobs` < 0: none wanted. Throws Error{internal-like invalid_input} "nan_logits" or
  // "no_valid_token".
  Sampled sample(std::span<float> logits, std::span<const int32_t> history, uint64_t t,
                 std::span<const int32_t> banned = {}, int top_logprobs = -1);

  const SamplingOptions& options() const { return options_; }

  struct Candidate {
    int32_t id;
    float value;  // log-probability (or logit) as of the last stage, tempered
  };

  // How many of the largest logits decide the next token: 1 when greedy, top_k where nothing but top_k, min_p
  // and the temperature is set; 0: the whole row does, or more than `most` of it.
  int candidates_wanted(int most) const;
  // Draws the t-th token from that many of the row's largest logits, by value descending, then by id (all
  // there are, where the row has fewer); the same token as sample() on the whole row.
  int32_t choose_from(std::span<const Candidate> largest, uint64_t t);

  // What the last draw chose from, by ascending id; nothing where that was every token, or the choice greedy.
  std::span<const Candidate> candidates() const { return candidates_; }

 private:
  void apply_penalties(std::span<float> logits, std::span<const int32_t> history);
  void apply_dry(std::span<float> logits, std::span<const int32_t> history);
  bool has_stage(SamplerStage stage) const;
  bool is_active(SamplerStage stage) const;
  bool reads_probabilities() const;
  int32_t choose(uint64_t t);
  void collect(float least);
  float largest() const;
  void keep_top_k(int k);
  void keep_top_p(float p);
  void keep_min_p(float p);
  void keep_typical(float p);
  void keep_top_n_sigma(float n);
  void drop_xtc(float u);
  void renormalise();
  int32_t draw(float u) const;
  int32_t draw_mirostat(float u);

  SamplingOptions options_;
  std::vector<SamplerStage> order_;
  // The distribution as of the stage under way: every id of `whole_`, whose value is whole_[id] - shift_, or,
  // once a stage has dropped some, `candidates_`.
  std::span<float> whole_;
  float shift_ = 0;
  std::vector<Candidate> candidates_;  // ascending id
  std::vector<int32_t> ids_;           // scratch of collect()
  std::vector<float> values_;
  float mirostat_mu_;
  mutable std::vector<double> blocks_;
};

// Throws Error{internal} "nan_logits".
[[noreturn]] void refuse_nan_logits();

// exp(x) in f32, for x <= 0: one implementation, no library calls, at most 2 ulp from the true value.
float sampling_exp(float x);
// Smallest i whose inclusive prefix sum of exp(logits - max) exceeds u * total, blocks of 1024 summed in f64
// in id order (engine.md 9.3). -inf has weight zero.
int32_t categorical(std::span<const float> logits, float u);
// m + ln sum exp(x - m), the same sums.
float log_sum_exp(std::span<const float> logits);
// Lowest id of the largest value.
int32_t argmax(std::span<const float> logits);

}  // namespace kvasir::engine
