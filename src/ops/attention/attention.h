// Attention of a step's queries over the pages of their rows.
//
//   q [tokens, heads, head_dim_k] f32 (may be a column view)  ->  out [tokens, heads, head_dim_v] f32
//
// Query head h reads KV head h / (heads / kv_heads) of layer `layer` of layer group `group`, in the page
// layout that its row has at this step. Token t sees key j of its row iff key_ranges[mask_class][t].begin <=
// j < .end (with a draft mask: and its bit is set), or j < sinks and j < .end.
//
// Numerics. Keys are cut into segments of 256 at absolute positions. Inside a segment, for one (token, head):
//
//   - s_j = scale q.k_j, one f32 chain over the channels in ascending order. Capped: s_j = c tanh(s_j / c).
//   - m = max s_j over the visible keys; p_j = 2^(s_j log2(e) - m log2(e)); l = sum p_j, as 16 partial sums
//     by j mod 16 and a fixed tree.
//   - o = sum p_j v_j, one f32 chain over the keys in ascending order.
//
// Segments are merged in ascending order: M' = max(M, m), O' = O 2^(M - M') + o 2^(m - M'), L' likewise; out
// = O / L, after a per-head sink logit joined L. Nothing else enters, so the bits of a token's output do not
// depend on the chunk, batch, threads, page size or tiling that it was computed in. Keys outside the range
// are blended away: their pages may hold anything.
//
// Precision f32: q and p in f32. Precision bf16 (activation modes bf16 and int8): q and p rounded to bf16,
// products exact, sums in f32.
//
// Quantized keys: one chain a scale group, times the key's scale, plus its offset times the group's sum of q.
// Quantized values: p_j times the key's scale first, plus the sum of p_j times the offsets. In bf16
// precision, on levels with AVX-512 VNNI, q and p_j times scale are not rounded to bf16 but to 16-bit
// integers on a scale of their own (a row's largest element, a segment's largest weight), and a group's
// products are summed exactly. Rotated keys: q is rotated (f32) first. Rotated values: out is un-rotated
// (f32) at the end.
#pragma once

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

enum class AttentionPrecision : uint8_t { f32, bf16 };

struct AttentionOptions {
  int group = 0;       // layer group (StepState.kv)
  int layer = 0;       // index of the layer in its group
  int mask_class = 0;  // index into StepState.key_ranges
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim_k = 0;
  int head_dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;                // 0: none
  const float* sink_logits = nullptr;  // [heads], or null. Must outlive the program
  int sinks = 0;                       // first keys of a row that every later query sees
  AttentionPrecision precision = AttentionPrecision::bf16;
  bool byte_permutes = true;  // false: none, as on a processor without AVX-512 VBMI. The same bits
  int64_t max_context =
      0;  // most keys of a row: sizes the workspace of long rows that are split over threads
};

program::ValueId attention(program::ProgramBuilder& builder, program::ValueId q,
                           const AttentionOptions& options, IsaLevel isa);

}  // namespace kvasir::ops
