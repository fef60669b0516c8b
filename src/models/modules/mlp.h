// The feed-forward part of a layer.
#pragma once

#include <optional>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// x [tokens, hidden] -> down(f(gate x) * up x), or down(f(up x)); plus `residual` when given.
program::ValueId mlp(GraphContext& context, int64_t layer, program::ValueId x,
                     std::optional<program::ValueId> residual);

}  // namespace kvasir::models
