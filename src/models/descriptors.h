// The table of plain decoder families: how each reads its configuration and what its layers look like. One
// row a family; the graph (dense_graph.h) has no other knowledge of architectures.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"

namespace kvasir::models {

// What a row decides while it reads the configuration; finish() in config.cc turns it into per-layer records.
struct FamilyTraits {
  RopeDefaults rope;
  bool local_rope =
      false;               // sliding layers: rope_local_base_freq (or the full layers' theta) without scaling
  double local_theta = 0;  // its default; 0: the full layers' theta
  // Whether layer i slides when the config has no layer_types; empty: none does.
  std::function<bool(int64_t)> slides;
  int64_t window = 0;  // default width; 0: only what sliding_window says
  // Whether layer i has rope; empty: all do. `sliding` is whether it slides.
  std::function<bool(int64_t, bool sliding)> has_rope;
  bool gelu_is_tanh = false;         // "gelu" names the row's tanh form, too
  bool head_may_be_missing = false;  // then the embedding is the head, whatever tie_word_embeddings says
};

// Where a family's class takes the epsilon of its norms from.
struct EpsilonRule {
  std::array<std::string_view, 2> keys = {"rms_norm_eps", ""};  // the first that is there counts
  // No default where a class has none here: the publishers' have one each, from 1e-8 to 1e-5.
  double otherwise = 0;
};

struct Descriptor {
  std::string_view model_type;
  void (*read)(const ConfigFields& fields, ModelConfig& config, FamilyTraits& traits);
  EpsilonRule epsilon = {};
};

std::span<const Descriptor> descriptors();
const Descriptor* find_descriptor(std::string_view model_type);  // after remapping
// Nothing: the configuration lacks it, and there is no default.
std::optional<double> norm_epsilon(const EpsilonRule& rule, const ConfigFields& fields);
// The name under which a model_type is handled ("mistral" stays: it has a row of its own).
std::string remapped(std::string_view model_type);

}  // namespace kvasir::models
