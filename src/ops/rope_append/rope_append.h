// The norm of heads (where there is one), their rotation, and the append of keys and values to the cache as
// one op.
//
//   x [tokens, heads + kv_heads, head_dim] f32, table [tokens, 2, pairs], v [tokens, kv_heads, head_dim_v]
//   f32
//   ->  y of x's shape, of which the first `heads` are written (the queries); keys and values go to the pages
//
// It calls the ops' own kernels one after the other (rms_norm.h, rope.h, append_kv.h), so its bits are those
// of the ops. What it spares is one or two barriers a layer, and writing and reading the keys.
#pragma once

#include "program/program.h"

namespace kvasir::ops {

// Program rewrite: joins every rope to the append_kv that alone reads its last heads, and to the rms_norm
// before it where that norms the same heads and nothing else reads it. Returns how many ropes were joined.
int fuse_rope_append(program::ProgramBuilder& builder);

}  // namespace kvasir::ops
