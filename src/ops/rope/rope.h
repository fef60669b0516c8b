// Rotary position embedding: a table of cosines and sines per token, and the rotation of heads by it.
//
//   rope_table: positions of the step -> table [tokens, 2, pairs] f32: cosines, then sines, both times
//   `pre_scale` rope:       x [tokens, heads, head_dim] f32, table -> y of the same shape
//
// Pair i of a head turns by the angle position * inverse_frequency[i]:  (a, b) -> (a cos - b sin, a sin + b
// cos). Elements that belong to no pair pass through. An inverse frequency of 0 is the identity (times
// pre_scale).
//
// Numerics: the angle is the f32 product of the f32 position and the f32 inverse frequency, as in the
// publishers' model files; its cosine and sine are computed in f64 (error below 2^-40 for angles up to 2^24)
// and rounded once to f32. The rotation is a*cos - (b*sin) and b*cos + (a*sin) with the outer product fused
// where the level has fused multiply-add. Both layouts give the same bits for the same pair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/isa.h"
#include "program/program.h"

namespace kvasir::ops {

struct RopeKernels {
  // angle[i] = f32(position[selector[i]]) * inverse_frequency[i]; selector may be null (all 0).
  void (*table)(const float positions[3], const uint8_t* selector, const float* inverse_frequency,
                float pre_scale, int64_t pairs, float* cosines, float* sines);
  void (*half_split)(const float* x, const float* cosines, const float* sines, float* y, int64_t pairs,
                     int64_t head_dim);
  void (*interleaved)(const float* x, const float* cosines, const float* sines, float* y, int64_t pairs,
                      int64_t head_dim);
};
KVASIR_KERNEL_TABLE(RopeKernels, rope_kernels)

struct RopeTable {
  std::vector<float> inverse_frequency;  // [pairs]; 0: the pair does not turn
  float pre_scale = 1.0f;                // YaRN's and LongRoPE's attention factor
  std::vector<uint8_t>
      selector;  // [pairs] in {0, 1, 2}: which rope_position stream turns a pair; empty: all 0
};

enum class RopeLayout : uint8_t {
  half_split,   // pair i is (i, i + pairs), "NeoX"
  interleaved,  // pair i is (2i, 2i + 1), "GPT-J"
};

// Appends the table of this step's positions; shared by every layer with the same rope.
program::ValueId rope_table(program::ProgramBuilder& builder, const RopeTable& table, IsaLevel isa);

// Appends the rotation of every head; 2 * pairs <= head_dim. May work in place.
program::ValueId rope(program::ProgramBuilder& builder, program::ValueId x, program::ValueId table,
                      int64_t heads, RopeLayout layout, IsaLevel isa);

// What a recorded rope does, for rewrites; empty for any other op.
struct RecordedRope {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t pairs = 0;
  RopeLayout layout = RopeLayout::half_split;
  IsaLevel isa = IsaLevel::generic;

  std::string describe() const;
  decltype(RopeKernels::half_split) kernel() const;
};
std::optional<RecordedRope> recorded_rope(const program::Op& op);

}  // namespace kvasir::ops
