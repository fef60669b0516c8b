// What the modules of a graph share while they record one program.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/weights.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "program/program.h"

namespace kvasir::models {

// Where a layer's keys and values live, and what its tokens see.
struct LayerKv {
  int group = 0;
  int index = 0;  // in its group
  int mask_class = 0;
};

struct GraphOptions {
  IsaLevel isa = IsaLevel::generic;
  Activations activations = Activations::automatic;
  ops::AttentionPrecision precision = ops::AttentionPrecision::bf16;
  int64_t context = 0;
  bool fuse = true;         // rewrites that join ops (fuse_norm_prepare); off in tests that compare
  std::vector<LayerKv> kv;  // [layers]
};

struct GraphContext {
  const ModelConfig& config;
  WeightStore& weights;
  const GraphOptions& options;
  program::ProgramBuilder* builder;
  // Rounded forms of values that products have asked for, by value and activation mode.
  std::map<std::pair<int32_t, int>, program::ValueId> prepared;
  std::set<ops::ActivationMode> modes = {};  // that products were told, before finer inputs

  std::string layer_path(int64_t layer) const;  // "model.layers.3."
};

}  // namespace kvasir::models
