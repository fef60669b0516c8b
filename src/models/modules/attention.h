// Self-attention over the KV cache: projections, q/k norms, rope, append, attend. The output projection is
// the caller's, because the residual addition may be fused into it.
#pragma once

#include <optional>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// x [tokens, hidden] -> o_proj(attention(x)) [tokens, hidden], plus `residual` when given. `rope_tables` has
// one table per ModelConfig::ropes entry.
program::ValueId attention(GraphContext& context, int64_t layer, program::ValueId x,
                           const std::vector<program::ValueId>& rope_tables,
                           std::optional<program::ValueId> residual);

// The row maps of q, k and v in the stored matrices: how packing undoes fusion, GGUF's permutation and tiled
// KV heads.
struct QkvRows {
  std::vector<int32_t> q, k, v;  // empty: rows in their own order
};
QkvRows qkv_rows(const ModelConfig& config);

}  // namespace kvasir::models
