// Attention over one segment of 256 keys, as two small matrix products with a softmax between them:
//
//   scores [rows, keys] = Q [rows, channels] K^T      channels ascend, keys in the lanes
//   out [rows, channels] += P [rows, keys] V          keys ascend, channels in the lanes
//
// Both have the same shape: an element of the left matrix (two of bf16, four bytes) is broadcast against
// vectors of 16 lanes. An output element is one chain of additions whatever the register tile, so tiles may
// differ between one query and 2,048 without a trace in the bits. Blocks are read from the page as they are
// where they hold f32, bf16 or bytes; narrower codes are decoded, 32 to 64 keys or 32 to 64 channels of a
// segment at a time, into a tile of the first-level cache that all rows of the query tile use.
#include <limits.h>
#include <math.h>
#include <string.h>

#include <hwy/highway.h>

#include "ops/attention/attention_kernels.h"

namespace kvasir::ops {
namespace KVASIR_ISA_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using kv::DecodeTable;
using kv::kBlockTokens;
using kv::PlaneFormat;
using kv::PlaneRole;

#include "kv/codecs/rotation-inl.h"

#include "ops/attention/lanes-inl.h"

#include "ops/attention/fetch-inl.h"

#include "ops/attention/products-inl.h"

#include "ops/attention/lookup-inl.h"

#include "ops/attention/decode-inl.h"

#include "ops/attention/visibility-inl.h"

#include "ops/attention/softmax-inl.h"

#include "ops/attention/integer-inl.h"

// ---- the segment

size_t query_stride(const AttentionTile& tile) {
  const size_t dims = static_cast<size_t>((tile.key->dim + 1) / 2 * 2);
  const Operand operand = key_operand(tile);
  return dims * (operand == Operand::dot || operand == Operand::integer ? 2 : 4);
}

void load_queries(const AttentionTile& tile) {
  const PlaneFormat& key = *tile.key;
  const int dim = key.dim, even = (dim + 1) / 2 * 2;
  const Operand operand = key_operand(tile);
  const size_t stride = query_stride(tile);
  float row[2048 + 16];
  for (int m = 0; m < tile.rows; ++m) {
    if (tile.key_signs != nullptr) {
      rotate(tile.queries[m], tile.key_signs, row, dim);
    } else {
      memcpy(row, tile.queries[m], static_cast<size_t>(dim) * 4);
    }
    if (even != dim) row[dim] = 0.0f;
    tile.scratch.row_scales[m] = score_unit(tile);
    if (operand == Operand::integer) {
      load_integer_query(tile, m, row, tile.scratch.queries + static_cast<size_t>(m) * stride);
      continue;
    }
    if (tile.bf16) {
      for (int i = 0; i < even; i += 16) store(round_bf16(load(row + i)), row + i);
    }
    std::byte* to = tile.scratch.queries + static_cast<size_t>(m) * stride;
    if (operand == Operand::dot) {
      for (int i = 0; i < even; ++i) {
        uint32_t bits;
        memcpy(&bits, row + i, 4);
        const uint16_t upper = static_cast<uint16_t>(bits >> 16);
        memcpy(to + i * 2, &upper, 2);
      }
    } else {
      memcpy(to, row, static_cast<size_t>(even) * 4);
    }
    if (!key.has_offset) continue;
    for (int g = 0; g < key.groups; ++g) {
      float sum = 0.0f;
      for (int i = 0; i < key.group; ++i) sum += row[g * key.group + i];
      tile.scratch.query_sums[m * key.groups + g] = sum;
    }
  }
}

void clear(const AttentionTile& tile, const AttentionState& state) {
  for (int m = 0; m < tile.rows; ++m) {
    state.max[m] = -INFINITY;
    state.sum[m] = 0.0f;
  }
  memset(state.out, 0, static_cast<size_t>(tile.rows) * tile.out_stride * 4);
}

// Scales and offsets (in the form of decode_table.h that the operand takes) of the seen blocks: [groups][256]
// each.
void load_scales(const PlaneFormat& f, const DecodeTable& table, bool integer, const SeenBlocks& seen,
                 const std::byte* const* blocks, float* scales, float* offsets) {
  const bool affine = f.codec.kind == kv::PlaneCodec::Kind::affine;
  const Dtype type = affine ? f.codec.scale_dtype : Dtype::f16;
  const size_t bytes = static_cast<size_t>(f.scale_size) * kBlockTokens;
  const V16 shift = set((integer ? 0.0f : table.center) - table.stored_bias),
            byte_scale = set(table.byte_scale);
  for (int i = 0; i < seen.count; ++i) {
    const int b = seen.at[i].block;
    for (int g = 0; g < f.groups; ++g) {
      const int at = g * kSegmentKeys + b * kBlockTokens;
      V16 scale = load_scale(blocks[b] + f.scale_offset + static_cast<size_t>(g) * bytes, type);
      if (f.has_offset) {
        const V16 offset = load_scale(blocks[b] + f.offset_offset + static_cast<size_t>(g) * bytes, type);
        store(affine ? fma(scale, shift, offset) : mul(scale, add(offset, shift)), offsets + at);
      } else if (integer) {
        scale = mul(scale, byte_scale);
      }
      store(scale, scales + at);
    }
  }
}

void compute_scores(const AttentionTile& tile, const KeySegment& segment, Fetch& fetch,
                    const SeenBlocks& seen) {
  const PlaneFormat& f = *tile.key;
  const Operand operand = key_operand(tile);
  const bool integer = operand == Operand::integer, book = operand == Operand::book;
  const bool decode = f.plain() ? f.codec.plain == Dtype::f16 : !book;
  const TileShape shape(tile.rows, operand);
  const int even = (f.dim + 1) / 2 * 2, columns = shape.vectors();
  const size_t tile_bytes = static_cast<size_t>(even) * kBlockTokens * (integer ? 1 : 4);
  const size_t stride = query_stride(tile);
  float* offsets = tile.scratch.scales + f.groups * kSegmentKeys;
  if (!f.plain()) load_scales(f, *tile.key_table, integer, seen, segment.keys, tile.scratch.scales, offsets);
  for (int first = 0; first < seen.count; first += columns) {
    const int vectors = seen.count - first < columns ? seen.count - first : columns;
    ScoreTask task;
    task.fetch = &fetch;
    for (int n = 0; n < vectors; ++n) {
      const int b = seen.at[first + n].block;
      task.columns[n] = b * kBlockTokens;
      task.keys[n] = segment.keys[b];
      if (!decode) continue;
      std::byte* to = tile.scratch.tile + static_cast<size_t>(n) * tile_bytes;
      if (f.plain()) {
        halves_to_floats(segment.keys[b], f.dim * kBlockTokens, reinterpret_cast<float*>(to));
      } else if (integer) {
        to = const_cast<std::byte*>(decode_bytes(f, *tile.key_table, segment.keys[b], 0, f.dim, to));
      } else {
        decode_keys(f, *tile.key_table, tile.byte_permutes, segment.keys[b], reinterpret_cast<float*>(to));
      }
      task.keys[n] = to;
    }
    const int channels = integer || book ? 4 : operand == Operand::f32 ? 1 : 2;  // of one step
    task.group_steps = f.plain() ? (f.dim + channels - 1) / channels : f.group / channels;
    task.groups = f.groups;
    task.scales = f.plain() ? nullptr : tile.scratch.scales;
    task.offsets = f.has_offset ? offsets : nullptr;
    task.query_stride = stride;
    task.query_sum_stride = static_cast<size_t>(f.groups);
    task.low_bytes = static_cast<size_t>(f.dim);
    task.byte_center = tile.key_table->byte_center;
    task.table = tile.key_table;
    for (int m = 0, rows; m < tile.rows; m += rows) {
      rows = shape.rows(tile.rows - m);
      task.queries = tile.scratch.queries + static_cast<size_t>(m) * stride;
      task.query_sums = tile.scratch.query_sums + m * f.groups;
      task.scores = tile.scratch.scores + m * kSegmentKeys;
      if (integer) {
        integer_score_tile(rows, vectors, task);
      } else if (book) {
        book_score_tile(rows, vectors, task);
      } else {
        score_tile(operand, rows, vectors, task);
      }
    }
  }
}

// Channels [first, first + width) of a plain V block into the tile, as zero where bit j of `keys`, for key j,
// is not set.
void blend_values(const PlaneFormat& f, const std::byte* block, uint32_t keys, int first, int width,
                  std::byte* out) {
  const auto keep = [keys](int key) { return ((keys >> key) & 1u) != 0; };
  if (f.codec.plain == Dtype::bf16) {
    if (first + width <= f.dim) {
      for (int pair = 0; pair < kBlockTokens / 2; ++pair) {
        const auto mask =
            hn::Set(DU(), (keep(pair * 2) ? 0x0000FFFFu : 0u) | (keep(pair * 2 + 1) ? 0xFFFF0000u : 0u));
        const uint32_t* from = reinterpret_cast<const uint32_t*>(block) + pair * f.dim + first;
        uint32_t* words = reinterpret_cast<uint32_t*>(out) + pair * width;
        for (int i = 0; i < width; i += kLanes)
          hn::StoreU(hn::And(hn::LoadU(DU(), from + i), mask), DU(), words + i);
      }
      return;
    }
    uint16_t* to = reinterpret_cast<uint16_t*>(out);
    for (int pair = 0; pair < kBlockTokens / 2; ++pair) {
      const std::byte* from = block + (pair * f.dim + first) * 4;
      for (int i = 0; i < width * 2; ++i) {
        uint16_t bits = 0;
        if (keep(pair * 2 + i % 2) && first + i / 2 < f.dim) memcpy(&bits, from + i * 2, 2);
        to[pair * width * 2 + i] = bits;
      }
    }
    return;
  }
  float* to = reinterpret_cast<float*>(out);
  const int size = f.codec.plain == Dtype::f32 ? 4 : 2;
  for (int j = 0; j < kBlockTokens; ++j) {
    const int count = f.dim - first < width ? f.dim - first : width;
    const std::byte* from = block + (j * f.dim + first) * size;
    for (int i = 0; i < width; ++i) to[j * width + i] = 0.0f;
    if (!keep(j)) continue;
    if (size == 4) {
      memcpy(to + j * width, from, static_cast<size_t>(count) * 4);
    } else {
      halves_to_floats(from, count, to + j * width);
    }
  }
}

// Whether the seen keys of the partly seen blocks are free of infinities and NaN. If not, a weight of zero
// does not hide a key from the rows that must not see it.
bool values_finite(const AttentionTile& tile, const KeySegment& segment, const SeenBlocks& seen) {
  const PlaneFormat& f = *tile.value;
  const bool wide = f.codec.plain == Dtype::f32, paired = f.codec.plain == Dtype::bf16;
  const size_t count = static_cast<size_t>(f.dim);
  uint32_t found = 0;
  for (int i = 0; i < seen.count; ++i) {
    if (seen.at[i].whole) continue;
    const uint32_t keys = seen.at[i].keys;
    const std::byte* block = segment.values[seen.at[i].block];
    if (paired) {
      for (int pair = 0; pair < kBlockTokens / 2; ++pair, block += count * 4) {
        const uint32_t even = (keys >> (2 * pair)) & 1u ? 0x7F80u : ~0u,
                       odd = (keys >> (2 * pair + 1)) & 1u ? 0x7F800000u : ~0u;
        for (size_t c = 0; c < count; ++c) {
          const uint32_t word = load_u32(block + c * 4);
          found |=
              ((word & even & 0xFFFFu) == even ? 1u : 0u) | ((word & odd & 0xFFFF0000u) == odd ? 1u : 0u);
        }
      }
      continue;
    }
    for (int j = 0; j < kBlockTokens; ++j) {
      if (((keys >> j) & 1u) == 0) continue;
      for (size_t c = 0; c < count; ++c) {
        const size_t at = static_cast<size_t>(j) * count + c;
        if (wide) {
          found |= (load_u32(block + at * 4) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
        } else {
          uint16_t half;
          memcpy(&half, block + at * 2, 2);
          found |= (half & 0x7C00u) == 0x7C00u ? 1u : 0u;
        }
      }
    }
  }
  return found == 0;
}

// Rows [row_begin, row_end), which belong to tokens [token_begin, token_end), of a plain V.
void weigh_plain(const AttentionTile& tile, const KeySegment& segment, Fetch& fetch, const SeenBlocks& seen,
                 int row_begin, int row_end, int token_begin, int token_end, const float* keep,
                 const float* take, const AttentionState& state) {
  const PlaneFormat& f = *tile.value;
  const Operand operand = value_operand(tile);
  const bool half = f.codec.plain == Dtype::f16;
  const size_t element = operand == Operand::f32 ? 4 : 2;
  const size_t weight_bytes = operand == Operand::dot ? 2 : 4;
  constexpr size_t kStored = 4;  // bytes from one channel to the next: a pair of bf16, or one f32
  const TileShape shape(row_end - row_begin, operand);
  const bool all_tokens = token_end - token_begin == tile.tokens;
  for (int first = 0; first < f.dim; first += shape.vectors() * 16) {
    const int left = (f.dim - first + 15) / 16, vectors = left < shape.vectors() ? left : shape.vectors(),
              width = vectors * 16;
    ValueTask task;
    task.fetch = &fetch;
    task.blocks = seen.count;
    const size_t tile_bytes = static_cast<size_t>(width) * kBlockTokens * element;
    for (int i = 0; i < seen.count; ++i) {
      const int b = seen.at[i].block;
      task.columns[i] = b * kBlockTokens;
      if (seen.at[i].whole && !half) {
        task.values[i] = segment.values[b] + static_cast<size_t>(first) * kStored;
        task.steps[i] = static_cast<size_t>(f.dim) * kStored;
        continue;
      }
      std::byte* to = tile.scratch.tile + static_cast<size_t>(i) * tile_bytes;
      const uint32_t keys =
          all_tokens ? seen.at[i].keys
                     : seen_bits(tile, segment.first_key + b * kBlockTokens, token_begin, token_end);
      blend_values(f, segment.values[b], keys, first, width, to);
      task.values[i] = to;
      task.steps[i] = static_cast<size_t>(width) * 4;
    }
    task.weight_stride = kSegmentKeys * weight_bytes;
    task.out_stride = tile.out_stride;
    for (int m = row_begin, rows; m < row_end; m += rows) {
      rows = shape.rows(row_end - m);
      task.weights = operand == Operand::dot
                         ? tile.scratch.weights + static_cast<size_t>(m) * task.weight_stride
                         : reinterpret_cast<const std::byte*>(tile.scratch.scores + m * kSegmentKeys);
      task.bias = tile.scratch.bias + m;
      task.keep = keep + m;
      task.take = take + m;
      task.out = state.out + static_cast<size_t>(m) * tile.out_stride + first;
      value_tile(operand, rows, vectors, task);
    }
  }
}

// Quantized V in f32: one scale group after the other, weights times the keys' scales.
void weigh_codes(const AttentionTile& tile, const KeySegment& segment, Fetch& fetch, const SeenBlocks& seen,
                 const float* keep, const float* take, const AttentionState& state) {
  const PlaneFormat& f = *tile.value;
  float* scales = tile.scratch.scales;
  float* offsets = scales + f.groups * kSegmentKeys;
  load_scales(f, *tile.value_table, false, seen, segment.values, scales, offsets);
  const V16 zero = set(0.0f);
  const Operand operand = value_operand(tile);
  const bool book = operand == Operand::book;
  const TileShape shape(tile.rows, operand);
  const bool rounds = tile.bf16, has_offset = f.has_offset;
  for (int g = 0; g < f.groups; ++g) {
    for (int m = 0; m < tile.rows; ++m) {
      const float* p = tile.scratch.scores + m * kSegmentKeys;
      float* row = reinterpret_cast<float*>(tile.scratch.weights) + m * kSegmentKeys;
      V16 bias = zero;
      for (int i = 0; i < seen.count; ++i) {
        const int column = seen.at[i].block * kBlockTokens;
        const V16 weight = load(p + column);
        // A weight of zero stays zero whatever lies in the slots of keys that are not seen.
        V16 scaled = select_nonzero(weight, mul(weight, load(scales + g * kSegmentKeys + column)), zero);
        if (has_offset) {
          const V16 offset = select_nonzero(weight, load(offsets + g * kSegmentKeys + column), zero);
          bias = fma(weight, offset, bias);
        }
        if (rounds) scaled = round_bf16(scaled);
        store(scaled, row + column);
      }
      tile.scratch.bias[m] = has_offset ? sum_of(bias) : 0.0f;
    }
    for (int first = g * f.group; first < (g + 1) * f.group; first += shape.vectors() * 16) {
      const int left = ((g + 1) * f.group - first) / 16,
                vectors = left < shape.vectors() ? left : shape.vectors(), width = vectors * 16;
      ValueTask task;
      task.fetch = &fetch;
      task.blocks = seen.count;
      for (int i = 0; i < seen.count; ++i) {
        const int b = seen.at[i].block;
        task.columns[i] = b * kBlockTokens;
        task.steps[i] = static_cast<size_t>(width) * 4;
        if (book) {
          task.values[i] = segment.values[b] + first / 32 * 512;
          continue;
        }
        float* to = reinterpret_cast<float*>(tile.scratch.tile) + i * width * kBlockTokens;
        decode_values(f, *tile.value_table, tile.byte_permutes, segment.values[b], first, width, to);
        task.values[i] = reinterpret_cast<const std::byte*>(to);
      }
      task.weight_stride = kSegmentKeys * 4;
      task.table = tile.value_table;
      task.out_stride = tile.out_stride;
      for (int m = 0, rows; m < tile.rows; m += rows) {
        rows = shape.rows(tile.rows - m);
        task.weights = tile.scratch.weights + static_cast<size_t>(m) * task.weight_stride;
        task.bias = tile.scratch.bias + m;
        task.keep = keep + m;
        task.take = take + m;
        task.out = state.out + static_cast<size_t>(m) * tile.out_stride + first;
        if (book) {
          book_value_tile(rows, task);
        } else {
          value_tile(Operand::f32, rows, vectors, task);
        }
      }
    }
  }
}

// Quantized V on 8-bit dot products. A row's weights times scales of one group become 16-bit integers (two
// bytes) on a scale of their own, the largest of the segment: finer than bf16 for all that matters to the
// sum, and exact from there.
void weigh_integers(const AttentionTile& tile, const KeySegment& segment, Fetch& fetch,
                    const SeenBlocks& seen, const float* keep, const float* take,
                    const AttentionState& state) {
  const PlaneFormat& f = *tile.value;
  float* scales = tile.scratch.scales;
  float* offsets = scales + f.groups * kSegmentKeys;
  load_scales(f, *tile.value_table, true, seen, segment.values, scales, offsets);
  const TileShape shape(tile.rows, Operand::integer);
  float factors[kTileRows];
  int32_t centers[kTileRows];
  for (int g = 0; g < f.groups; ++g) {
    for (int m = 0; m < tile.rows; ++m)
      quantize_weights(tile, seen, scales + g * kSegmentKeys,
                       f.has_offset ? offsets + g * kSegmentKeys : nullptr, m, factors[m], centers[m]);
    for (int first = g * f.group; first < (g + 1) * f.group; first += 32) {
      ValueTask task;
      task.fetch = &fetch;
      task.blocks = seen.count;
      for (int i = 0; i < seen.count; ++i) {
        const int b = seen.at[i].block;
        task.values[i] =
            decode_bytes(f, *tile.value_table, segment.values[b], first, 32, tile.scratch.tile + i * 512);
        task.columns[i] = b * kBlockTokens;
      }
      task.weight_stride = kSegmentKeys * 2;
      task.out_stride = tile.out_stride;
      for (int m = 0, rows; m < tile.rows; m += rows) {
        rows = shape.rows(tile.rows - m);
        task.weights = tile.scratch.weights + static_cast<size_t>(m) * task.weight_stride;
        task.bias = tile.scratch.bias + m;
        task.factors = factors + m;
        task.centers = centers + m;
        task.keep = keep + m;
        task.take = take + m;
        task.out = state.out + static_cast<size_t>(m) * tile.out_stride + first;
        integer_value_tile(rows, task);
      }
    }
  }
}

// V is read over and over where its channels do not fit one tile, or come unit by unit: the first reading
// needs all of its lines, most of which are asked for while K is multiplied. (How many do best was measured.)
FetchPlan fetch_plan(const AttentionTile& tile, int blocks) {
  const auto steps = [&](const PlaneFormat& f, Operand operand, bool is_key) {
    const TileShape shape(tile.rows, operand);
    const int per_step = operand == Operand::integer || operand == Operand::book ? 4
                         : operand == Operand::f32                               ? 1
                                                                                 : 2;
    // K: channels along the product, blocks wide; V: keys along the product, channels wide.
    const int length = (is_key ? f.dim : blocks * kBlockTokens) / per_step,
              width = is_key ? blocks : (f.dim + 15) / 16;
    return shape.tiles() * (length > 0 ? length : 1) * ((width + shape.vectors() - 1) / shape.vectors());
  };
  const PlaneFormat &key = *tile.key, &value = *tile.value;
  const Operand operand = value_operand(tile);
  const int lines = Fetch::lines_of(kSegmentBlocks * (key.block_bytes + value.block_bytes)),
            channels = 16 * TileShape(tile.rows, operand).vectors(),
            passes = (value.dim + channels - 1) / channels;
  FetchPlan plan;
  plan.key_steps = steps(key, key_operand(tile), true);
  plan.softmax_steps = tile.rows * kSegmentBlocks / 4;
  plan.value_steps = steps(value, operand, false);
  plan.side_by_side = value.plain() && passes == 1;
  plan.lead = !value.plain() ? lines * 3 / 4 : passes > 1 ? lines * passes / 8 : kLeadLines;
  plan.key_bytes = key.block_bytes;
  plan.value_bytes = value.block_bytes;
  return plan;
}

void request(const AttentionTile& tile, const KeySegment& segment) {
  const FetchPlan plan = fetch_plan(tile, kSegmentBlocks);
  Fetch fetch(plan, segment);
  fetch.advance(plan.lead * kRateUnit);
}

void segment(const AttentionTile& tile, const KeySegment& segment, const KeySegment* next,
             const AttentionState& state) {
  const SeenBlocks seen = seen_blocks(tile, segment);
  if (seen.count == 0) return;
  const Operand operand = value_operand(tile);
  Fetch fetch(fetch_plan(tile, seen.count), segment, next);
  compute_scores(tile, segment, fetch, seen);
  RowNumbers row_max(tile.rows), row_sum(tile.rows), factors_of_old(tile.rows), factors_of_new(tile.rows);
  float *const keep = factors_of_old.at, *const take = factors_of_new.at;
  for (int m = 0; m < tile.rows; ++m) {
    softmax_row(tile, segment, seen, m, fetch, row_max.at[m], row_sum.at[m]);
    tile.scratch.bias[m] = 0.0f;
    if (operand == Operand::dot)
      pack_bf16(tile.scratch.scores + m * kSegmentKeys, seen,
                reinterpret_cast<uint16_t*>(tile.scratch.weights) + m * kSegmentKeys);
  }
  merge_factors(tile.rows, row_max.at, row_sum.at, state, keep, take);
  if (operand == Operand::integer) return weigh_integers(tile, segment, fetch, seen, keep, take, state);
  if (!tile.value->plain()) return weigh_codes(tile, segment, fetch, seen, keep, take, state);
  if (tile.tokens == 1 || values_finite(tile, segment, seen))
    return weigh_plain(tile, segment, fetch, seen, 0, tile.rows, 0, tile.tokens, keep, take, state);
  for (int begin = 0; begin < tile.rows;) {
    int end = begin;
    const int token = tile.row_token[begin];
    while (end < tile.rows && tile.row_token[end] == token) ++end;
    weigh_plain(tile, segment, fetch, seen, begin, end, token, token + 1, keep, take, state);
    begin = end;
  }
}

void merge(const AttentionTile& tile, const AttentionState& part, const AttentionState& state) {
  RowNumbers part_max(tile.rows, part.max), part_sum(tile.rows, part.sum), keep(tile.rows), take(tile.rows);
  merge_factors(tile.rows, part_max.at, part_sum.at, state, keep.at, take.at);
  for (int m = 0; m < tile.rows; ++m) {
    float* out = state.out + static_cast<size_t>(m) * tile.out_stride;
    const float* from = part.out + static_cast<size_t>(m) * tile.out_stride;
    const V16 k = set(keep.at[m]), t = set(take.at[m]);
    for (size_t i = 0; i < tile.out_stride; i += 16)
      store(fma(load(out + i), k, mul(load(from + i), t)), out + i);
  }
}

void finish(const AttentionTile& tile, const AttentionState& state, const float* const* sink_logits,
            float* const* out) {
  const int dim = tile.value->dim;
  for (int m = 0; m < tile.rows; ++m) {
    float sum = state.sum[m], factor = 1.0f;
    if (sink_logits != nullptr) {
      const float logit = *sink_logits[m] * kLog2E, top = logit > state.max[m] ? logit : state.max[m];
      factor = state.max[m] == -INFINITY ? 0.0f : exp2_negative(state.max[m] - top);
      sum = sum * factor + exp2_negative(logit - top);
    }
    factor = sum > 0.0f ? factor / sum : 0.0f;
    float* from = state.out + static_cast<size_t>(m) * tile.out_stride;
    // + 0: a zero has one sign, whether it came from keys that were masked or from none.
    for (size_t i = 0; i < tile.out_stride; i += 16)
      store(fma(load(from + i), set(factor), set(0.0f)), from + i);
    if (tile.value_signs != nullptr) unrotate(from, tile.value_signs, dim);
    memcpy(out[m], from, static_cast<size_t>(dim) * 4);
  }
}

}  // namespace
}  // namespace KVASIR_ISA_NAMESPACE

extern const AttentionKernels KVASIR_ISA_SYMBOL(attention_kernels);
const AttentionKernels KVASIR_ISA_SYMBOL(attention_kernels) = {
    KVASIR_ISA_NAMESPACE::request, KVASIR_ISA_NAMESPACE::load_queries, KVASIR_ISA_NAMESPACE::clear,
    KVASIR_ISA_NAMESPACE::segment, KVASIR_ISA_NAMESPACE::merge,        KVASIR_ISA_NAMESPACE::finish};

}  // namespace kvasir::ops
