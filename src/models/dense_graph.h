// The forward pass of every plain decoder, in execution order, recorded as two programs.
#pragma once

#include "models/modules/graph_context.h"

namespace kvasir::models {

// trunk: token ids -> keys and values of every layer, and what the last layer's attention gives: "attended"
//        [tokens, heads, head_dim], with the residual stream before it, "residual" [tokens, hidden] (and
//        "normed" [tokens, hidden], what attention read, where a block computes its halves side by side).
// head:  these as inputs -> "hidden" [logits, hidden], the residual stream after the last layer, and "logits"
//        [logits, vocab] of the step's logit_tokens. No later token needs the rest of the last layer, so a
//        prompt pays for it once.
// Asks `weights` for every tensor, in this order; the caller audits. Returns the activation modes that
// products were told (some read finer inputs than that: Inputs).
std::set<ops::ActivationMode> build_dense_graph(const ModelConfig& config, WeightStore& weights,
                                                const GraphOptions& options, program::ProgramBuilder& trunk,
                                                program::ProgramBuilder& head);

}  // namespace kvasir::models
