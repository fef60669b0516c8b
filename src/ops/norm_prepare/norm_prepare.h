// rms_norm and prepare_activations as one op: a row is normed into a scratch row that stays in the
// first-level cache, and rounded from there.
//
//   x [axis, width] f32  ->  y [axis, prepared_row_bytes(width, mode)] u8
//
// It calls the two ops' own kernels one after the other, so its bits are those of the two ops. What it spares
// is a barrier, and writing and reading the normed rows.
#pragma once

#include "program/program.h"

namespace kvasir::ops {

// Program rewrite: replaces every rms_norm over whole rows whose result nothing but one prepare_activations
// reads. Returns how many.
int fuse_norm_prepare(program::ProgramBuilder& builder);

}  // namespace kvasir::ops
