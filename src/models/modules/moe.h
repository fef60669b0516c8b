// A mixture-of-experts feed-forward part.
#pragma once

#include <optional>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// x [tokens, hidden] -> the chosen experts' weighted sum; plus `residual` when given. The router is always
// f32.
program::ValueId moe(GraphContext& context, int64_t layer, program::ValueId x,
                     std::optional<program::ValueId> residual);

}  // namespace kvasir::models
