// Rows of a per-token value whose logits are wanted:  x [tokens, width] f32 -> y [logits, width], y_i =
// x_(logit_tokens[i]). Copies bits.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace kvasir::ops {

program::ValueId gather_tokens(program::ProgramBuilder& builder, program::ValueId x);

// Heads of a row in another order: x [axis, heads, head_dim] f32 -> y of the same shape, head h of y is head
// from[h] of x.
program::ValueId reorder_heads(program::ProgramBuilder& builder, program::ValueId x,
                               const std::vector<int32_t>& from);

}  // namespace kvasir::ops
