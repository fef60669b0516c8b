// The forward pass of every plain decoder, in execution order, recorded as two programs.
#pragma once

#include "models/modules/graph_context.h"

namespace kvasir::models {

// trunk: token ids -> "hidden" [tokens, hidden], the residual stream after the last layer.
// head:  input "hidden" -> "logits" [logits, vocab] of the step's logit_tokens.
// Asks `weights` for every tensor, in this order; the caller audits.
void build_dense_graph(const ModelConfig& config, WeightStore& weights, const GraphOptions& options,
                       program::ProgramBuilder& trunk, program::ProgramBuilder& head);

}  // namespace kvasir::models
