// The kernels of attention: one over a segment of 256 keys, one that merges segments. Where the keys come
// from is the caller's business: a segment is 16 pointers to blocks of 16 keys (kv/codecs/plane.h), in pages
// or in any other memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "kv/codecs/decode_table.h"
#include "kv/codecs/plane.h"

namespace kvasir::ops {

inline constexpr int kSegmentKeys = 256;
inline constexpr int kSegmentBlocks = kSegmentKeys / kv::kBlockTokens;
inline constexpr int kTileRows = 64;

// Keys that one token sees: [begin, end) and [0, min(sinks, end)); bit j of draft: key end - 1 - j (older
// keys are not masked).
struct Visibility {
  int32_t begin = 0;
  int32_t end = 0;
  uint64_t draft = ~uint64_t{0};
};

// Running softmax of a tile's rows. A segment's own result is the state after merging it into an empty one.
struct AttentionState {
  float* max;  // [rows], -inf: nothing yet
  float* sum;  // [rows]
  float* out;  // [rows][out_stride], not yet divided by sum
};

struct AttentionScratch {
  std::byte* queries;  // [kTileRows][dim_k, even] f32, bf16, or 16-bit integers as upper and lower bytes
  float* query_sums;   // [kTileRows][groups of K]
  float* row_scales;   // [kTileRows]: times a row's scores
  float* scores;       // [kTileRows][256]
  std::byte* weights;  // [kTileRows][256] f32, bf16, or integers: what multiplies V
  float* bias;         // [kTileRows]
  float* scales;       // [groups][256]: scales, then offsets, of a segment
  std::byte* tile;     // decoded or blended blocks
};

// Up to kTileRows rows (token, head), ascending tokens, of one sequence and one KV head.
struct AttentionTile {
  int rows = 0;
  int tokens = 0;
  int row_token[kTileRows];         // index into visible
  const float* queries[kTileRows];  // [dim_k]
  Visibility visible[kTileRows];    // [tokens]
  const kv::PlaneFormat* key = nullptr;
  const kv::PlaneFormat* value = nullptr;
  const kv::DecodeTable* key_table = nullptr;
  const kv::DecodeTable* value_table = nullptr;
  const uint64_t* key_signs = nullptr;    // rotated keys: signs of the rotation
  const uint64_t* value_signs = nullptr;  // rotated values
  float scale = 1.0f;
  float softcap = 0.0f;
  int sinks = 0;
  bool bf16 = false;           // q and p rounded to bf16
  bool use_dot = false;        // bf16 dot products rather than the same chain of fused multiply-adds
  bool byte_permutes = false;  // the processor has them (AVX-512 VBMI)
  size_t out_stride = 0;       // floats
  AttentionScratch scratch;
};

struct KeySegment {
  int32_t first_key = 0;  // multiple of 256
  // Blocks of 16 keys; null: holds no visible key.
  const std::byte* keys[kSegmentBlocks];
  const std::byte* values[kSegmentBlocks];
  // Run i: blocks [run[i], run[i + 1]), whose keys lie side by side, and whose values do.
  int runs = 0;
  int run[kSegmentBlocks + 1];
};

struct AttentionKernels {
  // Asks for the first lines of a segment's K: of the first one that a tile meets.
  void (*request)(const AttentionTile& tile, const KeySegment& segment);
  // Rounds (and rotates) the tile's queries into the scratch.
  void (*load_queries)(const AttentionTile& tile);
  void (*clear)(const AttentionTile& tile, const AttentionState& state);
  // Merges the segment's keys into the state. `next` (may be null) is only fetched.
  void (*segment)(const AttentionTile& tile, const KeySegment& segment, const KeySegment* next,
                  const AttentionState& state);
  // Merges `part` (a later segment's own result) into `state`.
  void (*merge)(const AttentionTile& tile, const AttentionState& part, const AttentionState& state);
  // Joins the sink logits (null: none; one per row), divides, un-rotates and writes rows of dim_v floats.
  void (*finish)(const AttentionTile& tile, const AttentionState& state, const float* const* sink_logits,
                 float* const* out);
};
KVASIR_KERNEL_TABLE(AttentionKernels, attention_kernels)

}  // namespace kvasir::ops
