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

#include <functional>
#include <optional>

#include "kv/codecs/codec_layout.h"
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

// Bytes that appending a step's tokens writes: keys and values as the rows' layouts store them.
double appended_bytes(const program::StepState& step, const AppendKvOptions& options);

// What a recorded append_kv does, for rewrites; empty for any other op.
std::optional<AppendKvOptions> recorded_append_kv(const program::Op& op);

// The pieces of an append, for ops that bring it along. Work is shared by (run of tokens inside one block of
// 16 slots, head), because codes of neighbouring tokens share bytes: take(token, head_begin, head_end) for
// all that falls to the member.
void share_appended_heads(const program::OpContext& context, int kv_heads,
                          const std::function<void(int32_t token, int head_begin, int head_end)>& take);
// Where a token's keys and values go.
class AppendedToken {
 public:
  AppendedToken(const program::OpContext& context, const AppendKvOptions& options, int32_t token);
  // k [head_dim_k], v [head_dim_v] of one head.
  void append(int head, const float* k, const float* v) const;

 private:
  const kv::CodecLayout& layout_;
  std::byte* page_;
  int layer_;
  int32_t slot_;
};

}  // namespace kvasir::ops
