// The normalizations of a family, as its configuration names them.
#pragma once

#include <string>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// Over the whole hidden vector; `path` is the tensor without ".weight" (unused by norms without weights).
program::ValueId norm(GraphContext& context, program::ValueId x, const std::string& path, int64_t width);

}  // namespace kvasir::models
