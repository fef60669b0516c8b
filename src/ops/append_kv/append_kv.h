// Writes a step's keys and values into the pages of its rows.
//
//   k [tokens, kv_heads, head_dim_k] f32, v [tokens, kv_heads, head_dim_v] f32 (either may be a column view)
//   ->  pages
//
// Token t goes to slot StepState.kv_position[t] of its row, in layer `layer` of layer group `group`, encoded
// by the row's page layout as it is at this step (plain or encoded). Encoding is a pure function of one
// token's vector, so the bytes depend on nothing else. Must be recorded before the attention that reads the
// tokens.
#pragma once

#include "program/program.h"

namespace kvasir::ops {

struct AppendKvOptions {
  int group = 0;  // layer group (StepState.kv)
  int layer = 0;  // index of the layer in its group
  int kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
};

void append_kv(program::ProgramBuilder& builder, program::ValueId k, program::ValueId v,
               const AppendKvOptions& options);

}  // namespace kvasir::ops
