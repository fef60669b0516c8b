// Self-attention over the KV cache, in two halves: what every token must do, so that later ones can attend to
// it, and what only tokens need whose results are wanted.
#pragma once

#include <optional>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// Projections, q/k norms, rope, append, attend: x [tokens, hidden] -> [tokens, heads, head_dim].
// `rope_tables` has one table per ModelConfig::ropes entry.
program::ValueId attention(GraphContext& context, int64_t layer, program::ValueId x,
                           const std::vector<program::ValueId>& rope_tables);

// The output projection: heads [axis, heads, head_dim] -> [axis, hidden], plus `residual` when given.
program::ValueId attention_out(GraphContext& context, int64_t layer, program::ValueId heads,
                               std::optional<program::ValueId> residual);

// The row maps of q, k and v in the stored matrices: how packing undoes fusion, GGUF's permutation and tiled
// KV heads.
struct QkvRows {
  std::vector<int32_t> q, k, v;  // empty: rows in their own order
};
QkvRows qkv_rows(const ModelConfig& config);

}  // namespace kvasir::models
