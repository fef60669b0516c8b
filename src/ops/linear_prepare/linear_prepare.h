// A linear and the rounding of what it gives as one op: pieces of the product's columns are rounded as they
// are finished, for the product behind it (gate, up and their activation function, then down).
//
//   as linear  ->  y [axis, prepared_row_bytes(columns, mode)] u8
//
// It calls the two ops' own kernels one after the other, so its bits are those of the two ops. What it spares
// is a barrier, and memory for [axis, columns] f32 that would be written and read: a piece of a block of rows
// stays in the second-level cache.
#pragma once

#include "program/program.h"

namespace kvasir::ops {

// Program rewrite: replaces every linear of one part without residual whose result nothing but one
// prepare_activations reads. Returns how many.
int fuse_linear_prepare(program::ProgramBuilder& builder);

}  // namespace kvasir::ops
