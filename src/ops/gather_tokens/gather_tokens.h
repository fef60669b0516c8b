// Rows of a per-token value whose logits are wanted:  x [tokens, width] f32 -> y [logits, width], y_i =
// x_(logit_tokens[i]). Copies bits.
#pragma once

#include "program/program.h"

namespace kvasir::ops {

program::ValueId gather_tokens(program::ProgramBuilder& builder, program::ValueId x);

}  // namespace kvasir::ops
