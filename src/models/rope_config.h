// Which rotary embedding a layer uses: parsing of the many ways to write it, and the table of inverse
// frequencies.
//
// Definitions and fixtures: Su et al. 2021 (default), Chen et al. 2023 (linear), Peng et al. 2023 (YaRN,
// NTK), Ding et al. 2024 (LongRoPE), Llama 3.1's published rule. Kinds whose table depends on the length of
// the text (dynamic, longrope with two lists) are resolved once, from the context limit in force.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config_fields.h"
#include "ops/rope/rope.h"

namespace kvasir::models {

enum class RopeKind : uint8_t {
  standard,
  linear,
  dynamic,
  alpha_ntk,
  llama3,
  yarn,
  longrope,
  proportional,
  factors
};
std::string_view name(RopeKind kind);

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000;
  int64_t dims = 0;                                  // rotated elements of a head (even)
  bool negative = false;                             // turns by minus the angle
  double factor = 1;                                 // linear, dynamic, llama3, yarn, proportional
  double alpha = 1;                                  // alpha_ntk
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double original_max_position = 0;                  // llama3, yarn, longrope
  double max_position = 0;                           // the config's max_position_embeddings
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn
  double attention_factor = 1;                       // yarn, longrope: resolved
  std::vector<double> short_factor, long_factor;     // longrope: dims / 2 each
  double partial = 1;                                // proportional
  std::vector<double> divisor_factors;               // factors: GGUF's rope_freqs, dims / 2

  bool operator==(const RopeConfig&) const = default;
};

// What a descriptor knows about the rope of its family.
struct RopeDefaults {
  double theta = 10000;
  double partial = 1;          // of head_dim
  bool takes_partial = false;  // partial_rotary_factor says which part of a head turns; false: whole heads do
  bool partial_required = false, theta_required = false;
  bool scaling_allowed = true;  // false: plain rope, whatever the config says
  bool phi3_names = false;      // "su" and "yarn" mean longrope; the original limit is a top-level key
  std::vector<RopeKind> kinds;  // what the family has beside the default; empty: every kind
};

// Rope of one layer kind ("full_attention", "sliding_attention") over heads of head_dim elements.
// What a kind needs is what transformers' check of it needs (modeling_rope_utils.py); an absent original
// limit is max_position_embeddings, as there. Throws Error{unsupported} naming an unknown type,
// Error{corrupt_file} for missing or contradictory keys. What is ignored is added to `notes`.
RopeConfig parse_rope(const ConfigFields& config, const std::string& layer_kind, int64_t head_dim,
                      const RopeDefaults& defaults, std::vector<std::string>* notes = nullptr);

// What YaRN multiplies queries and keys by, with its weight k (mscale): 1 + 0.1 k ln(factor).
double yarn_magnitude(double factor, double k);

// Divisors f_i [dims / 2] in f64 (infinity: the pair does not turn) for sequences of at most `context`
// tokens.
std::vector<double> rope_divisors(const RopeConfig& config, int64_t context);
ops::RopeTable rope_table(const RopeConfig& config, int64_t context);
// "fixed", or what the context limit selected: "dynamic:32768", "longrope:long".
std::string rope_regime(const RopeConfig& config, int64_t context);

}  // namespace kvasir::models
