#include "ops/attention/attention.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"
#include "kv/codecs/codec_layout.h"
#include "kv/codecs/rotation_tables.h"
#include "ops/attention/attention_kernels.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::StepState;
using program::ValueId;

constexpr int kSplitRows = 16;      // rows of a tile whose segments may be split over threads
constexpr int kItemsPerMember = 8;  // with fewer work items than this a member, items are split
constexpr int64_t kRowCost = 8;     // cost of a segment beside one row's: reading the keys
constexpr int kMaxHeadDim = 2048;

// Consecutive (token, head of the KV head's group) pairs of one sequence.
struct RowRange {
  int row = 0;        // sequence
  int64_t begin = 0;  // index of token * group + head
  int64_t end = 0;
};

// Segments that the tokens of a tile see: of the sinks, then from the window's begin on.
struct SegmentRange {
  int32_t sink_end = 0;        // [0, sink_end)
  int32_t begin = 0, end = 0;  // [begin, end), begin >= sink_end
  int32_t count() const { return sink_end + end - begin; }
  int32_t at(int32_t i) const { return i < sink_end ? i : begin + i - sink_end; }
};

// bf16 dot products and the chain of fused multiply-adds that they are defined as give the same bits; the
// latter have twice the rate on Intel's processors, half of it on AMD's.
bool dot_is_faster() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return true;
#endif
}

// AVX-512 VBMI: in every processor of the level avx512bf16, and in some of avx512vnni (Intel from Ice Lake
// on).
bool has_byte_permutes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

class Attention final : public program::Op {
 public:
  Attention(ValueId q, ValueId out, const AttentionOptions& options, IsaLevel isa)
      : Op({q}, {out}),
        options_(options),
        group_(options.heads / options.kv_heads),
        kernels_(attention_kernels(isa)),
        byte_permutes_(options.byte_permutes && has_byte_permutes()) {
    const size_t dim_k = align_up(static_cast<size_t>(options_.head_dim_k), 16);
    out_stride_ = align_up(static_cast<size_t>(options_.head_dim_v), 16);
    const size_t groups_k = (dim_k + 31) / 32, groups_v = (out_stride_ + 31) / 32,
                 groups = std::max(groups_k, groups_v);
    size_t at = 0;
    const auto take = [&](size_t bytes) {
      const size_t offset = at;
      at += align_up(bytes, kCacheLine);
      return offset;
    };
    queries_ = take(kTileRows * dim_k * 4);
    query_sums_ = take(kTileRows * groups_k * 4);
    row_scales_ = take(kTileRows * 4);
    scores_ = take(size_t{kTileRows} * kSegmentKeys * 4);
    weights_ = take(size_t{kTileRows} * kSegmentKeys * 4);
    bias_ = take(kTileRows * 4);
    scales_ = take(2 * groups * kSegmentKeys * 4);
    tile_ = take(std::max(dim_k * 64 * 4, size_t{kSegmentKeys} * 64 * 4));
    state_ = take(state_bytes(kTileRows));
    parts_ = at;
    member_bytes_ = at + static_cast<size_t>(max_segments()) * state_bytes(kSplitRows);
  }

  std::string_view kind() const override { return "attention"; }
  std::string describe() const override {
    return fmt::format("group {}, layer {}, mask {}, {} heads of {}, {} + {}, scale {:g}{}{}, {}",
                       options_.group, options_.layer, options_.mask_class, options_.heads, options_.kv_heads,
                       options_.head_dim_k, options_.head_dim_v, options_.scale,
                       options_.softcap != 0.0f ? fmt::format(", softcap {:g}", options_.softcap) : "",
                       options_.sink_logits != nullptr ? ", sink logits" : "",
                       options_.precision == AttentionPrecision::f32 ? "f32" : "bf16");
  }
  size_t workspace_bytes(const program::Counts&, int threads) const override {
    return member_bytes_ * static_cast<size_t>(threads);
  }
  // Queries, results, and every key and value that some query of a row sees, once, as they are stored; of
  // each query and key a product and a weighted sum.
  program::OpCost cost_in_step(int64_t rows, const StepState& step) const override {
    program::OpCost cost;
    const auto ranges = step.key_ranges[static_cast<size_t>(options_.mask_class)];
    double pairs = 0;
    for (int32_t row = 0; row < step.rows; ++row) {
      int32_t begin = INT32_MAX, end = 0;
      for (int32_t t = step.first_token[static_cast<size_t>(row)];
           t < step.first_token[static_cast<size_t>(row) + 1]; ++t) {
        const program::KeyRange& keys = ranges[static_cast<size_t>(t)];
        begin = std::min(begin, keys.begin);
        end = std::max(end, keys.end);
        pairs += seen_keys(keys.begin, keys.end);
      }
      const kv::RowPages& pages = step.kv[static_cast<size_t>(options_.group)].rows[static_cast<size_t>(row)];
      cost.kv_bytes += seen_keys(begin, end) * pages.layout->layer_token_bytes();
    }
    cost.bytes = cost.kv_bytes + 4.0 * static_cast<double>(rows) * options_.heads *
                                     (options_.head_dim_k + options_.head_dim_v);
    cost.operations = 2.0 * pairs * options_.heads * (options_.head_dim_k + options_.head_dim_v);
    return cost;
  }

  void run(const OpContext& context) const override {
    if (context.step.tokens == 0) return;
    for (const kv::RowPages& row : context.step.kv[static_cast<size_t>(options_.group)].rows)
      KVASIR_CHECK(row.layout->geometry().page_tokens % kv::kBlockTokens == 0);
    const int64_t items = count_items(context.step, kTileRows);
    if (items >= int64_t{kItemsPerMember} * context.members || context.members == 1) {
      run_whole(context);
    } else {
      run_split(context);
    }
  }

 private:
  // Keys of a range and the sinks before it.
  double seen_keys(int32_t begin, int32_t end) const {
    return std::max(end - begin, 0) + std::clamp(std::min(begin, end), 0, options_.sinks);
  }
  int64_t max_segments() const { return (options_.max_context + kSegmentKeys - 1) / kSegmentKeys + 1; }
  size_t state_bytes(int rows) const {
    return align_up(static_cast<size_t>(rows) * (2 + out_stride_) * 4, kCacheLine);
  }
  AttentionState state_at(std::byte* memory, int rows) const {
    float* floats = reinterpret_cast<float*>(memory);
    return {floats, floats + rows, floats + 2 * rows};
  }

  int64_t row_items(const StepState& step, int row, int tile_rows) const {
    const int64_t tokens =
        step.first_token[static_cast<size_t>(row) + 1] - step.first_token[static_cast<size_t>(row)];
    return (tokens * group_ + tile_rows - 1) / tile_rows;
  }
  int64_t count_items(const StepState& step, int tile_rows) const {
    int64_t tiles = 0;
    for (int row = 0; row < step.rows; ++row) tiles += row_items(step, row, tile_rows);
    return tiles * options_.kv_heads;
  }

  SegmentRange segments_of(const StepState& step, const RowRange& range) const {
    const int32_t first = step.first_token[static_cast<size_t>(range.row)];
    const auto ranges = step.key_ranges[static_cast<size_t>(options_.mask_class)];
    int32_t begin = INT32_MAX, end = 0;
    for (int64_t t = range.begin / group_; t <= (range.end - 1) / group_; ++t) {
      const program::KeyRange& keys = ranges[static_cast<size_t>(first + t)];
      if (keys.begin >= keys.end && options_.sinks == 0) continue;
      begin = std::min(begin, keys.begin);
      end = std::max(end, keys.end);
    }
    SegmentRange out;
    if (end == 0) return out;
    out.end = (end + kSegmentKeys - 1) / kSegmentKeys;
    out.sink_end = std::min((options_.sinks + kSegmentKeys - 1) / kSegmentKeys, out.end);
    out.begin = std::min(std::max(begin / kSegmentKeys, out.sink_end), out.end);
    return out;
  }

  // Calls visit(row range, KV head) for the items [begin, end) of the step, in order: sequences, tiles,
  // heads.
  template <typename Visit>
  void for_items(const StepState& step, int tile_rows, Visit visit) const {
    for (int row = 0; row < step.rows; ++row) {
      const int64_t rows = int64_t{group_} * (step.first_token[static_cast<size_t>(row) + 1] -
                                              step.first_token[static_cast<size_t>(row)]);
      for (int64_t begin = 0; begin < rows; begin += tile_rows) {
        const RowRange range{row, begin, std::min(rows, begin + tile_rows)};
        if (!visit(range)) return;
      }
    }
  }

  // `first_segment`: of the segments that this member computes; its keys are asked for meanwhile.
  void prepare(const OpContext& context, const RowRange& range, int head, const SegmentRange& segments,
               int32_t first_segment, AttentionTile& tile) const {
    const StepState& step = context.step;
    const int32_t first = step.first_token[static_cast<size_t>(range.row)];
    const auto ranges = step.key_ranges[static_cast<size_t>(options_.mask_class)];
    const int64_t token_begin = range.begin / group_;
    tile.rows = static_cast<int>(range.end - range.begin);
    tile.tokens = static_cast<int>((range.end - 1) / group_ - token_begin + 1);
    for (int t = 0; t < tile.tokens; ++t) {
      const size_t token = static_cast<size_t>(first + token_begin + t);
      tile.visible[t] = {ranges[token].begin, ranges[token].end,
                         step.draft_mask.empty() ? ~uint64_t{0} : step.draft_mask[token]};
    }
    for (int m = 0; m < tile.rows; ++m) {
      const int64_t index = range.begin + m, token = index / group_;
      tile.row_token[m] = static_cast<int>(token - token_begin);
      tile.queries[m] = context.row<const float>(inputs()[0], first + token) +
                        (static_cast<int64_t>(head) * group_ + index % group_) * options_.head_dim_k;
    }
    const auto& layout = layout_of(step, range.row);
    tile.key = &layout.key();
    tile.value = &layout.value();
    tile.key_table = &layout.key_table();
    tile.value_table = &layout.value_table();
    const auto signs = [](const kv::PlaneFormat& f) {
      return f.codec.rotates() ? kv::rotation_signs(f.dim) : nullptr;
    };
    tile.key_signs = signs(layout.key());
    tile.value_signs = signs(layout.value());
    tile.scale = options_.scale;
    tile.softcap = options_.softcap;
    tile.sinks = options_.sinks;
    tile.bf16 = options_.precision == AttentionPrecision::bf16;
    tile.use_dot = use_dot_;
    tile.byte_permutes = byte_permutes_;
    tile.out_stride = out_stride_;
    std::byte* memory = context.workspace + static_cast<size_t>(context.member) * member_bytes_;
    tile.scratch = {memory + queries_,
                    reinterpret_cast<float*>(memory + query_sums_),
                    reinterpret_cast<float*>(memory + row_scales_),
                    reinterpret_cast<float*>(memory + scores_),
                    memory + weights_,
                    reinterpret_cast<float*>(memory + bias_),
                    reinterpret_cast<float*>(memory + scales_),
                    memory + tile_};
    if (first_segment < segments.count())
      kernels_.request(tile, segment_at(step, range.row, head, segments.at(first_segment)));
    kernels_.load_queries(tile);
  }

  const kv::CodecLayout& layout_of(const StepState& step, int row) const {
    return static_cast<const kv::CodecLayout&>(
        *step.kv[static_cast<size_t>(options_.group)].rows[static_cast<size_t>(row)].layout);
  }

  KeySegment segment_at(const StepState& step, int row, int head, int32_t index) const {
    const kv::RowPages& pages = step.kv[static_cast<size_t>(options_.group)].rows[static_cast<size_t>(row)];
    const kv::CodecLayout& layout = layout_of(step, row);
    const int page_tokens = layout.geometry().page_tokens;
    KeySegment out;
    out.first_key = index * kSegmentKeys;
    const int page_blocks = page_tokens / kv::kBlockTokens;
    int32_t page = out.first_key / page_tokens;
    int block = out.first_key % page_tokens / kv::kBlockTokens;
    for (int b = 0; b < kSegmentBlocks; ++page, block = 0) {
      const int end = std::min(kSegmentBlocks, b + page_blocks - block);
      out.run[out.runs++] = b;
      out.run[out.runs] = end;
      const std::byte* memory = page < pages.page_count ? pages.pages[page] : nullptr;
      if (memory == nullptr) {
        for (; b < end; ++b) out.keys[b] = out.values[b] = nullptr;
        continue;
      }
      const std::byte* keys = layout.key_block(memory, options_.layer, head, block);
      const std::byte* values = layout.value_block(memory, options_.layer, head, block);
      for (; b < end; ++b) {
        out.keys[b] = keys;
        out.values[b] = values;
        keys += layout.key().block_bytes;
        values += layout.value().block_bytes;
      }
    }
    return out;
  }

  // Segments [begin, end) of the list, the i-th merged into state_of(i).
  template <typename StateOf>
  void attend(const StepState& step, int row, int head, const AttentionTile& tile,
              const SegmentRange& segments, int32_t begin, int32_t end, StateOf state_of) const {
    if (begin >= end) return;
    KeySegment current = segment_at(step, row, head, segments.at(begin));
    for (int32_t i = begin; i < end; ++i) {
      // After the last one comes, as a rule, the first one of the next head.
      const bool more = i + 1 < end, other_head = !more && head + 1 < options_.kv_heads;
      KeySegment next;
      if (more || other_head)
        next = segment_at(step, row, more ? head : head + 1, segments.at(more ? i + 1 : 0));
      kernels_.segment(tile, current, more || other_head ? &next : nullptr, state_of(i));
      if (more) current = next;
    }
  }

  void finish(const OpContext& context, const RowRange& range, int head, const AttentionTile& tile,
              const AttentionState& state) const {
    const int32_t first = context.step.first_token[static_cast<size_t>(range.row)];
    float* out[kTileRows];
    const float* sinks[kTileRows];
    for (int m = 0; m < tile.rows; ++m) {
      const int64_t index = range.begin + m,
                    query_head = static_cast<int64_t>(head) * group_ + index % group_;
      out[m] = context.row<float>(outputs()[0], first + index / group_) + query_head * options_.head_dim_v;
      sinks[m] = options_.sink_logits == nullptr ? nullptr : options_.sink_logits + query_head;
    }
    kernels_.finish(tile, state, options_.sink_logits == nullptr ? nullptr : sinks, out);
  }

  // Each item is computed whole by the member that takes it. Items come in ascending order but where another
  // member's part begins: one walk over them serves all up to there.
  void run_whole(const OpContext& context) const {
    const StepState& step = context.step;
    AttentionTile tile;
    std::byte* memory = context.workspace + static_cast<size_t>(context.member) * member_bytes_ + state_;
    const int64_t total = count_items(step, kTileRows);
    WorkRange item{};
    bool more = context.work.take(context.member, total, 1, item);
    while (more) {
      int64_t first = 0;  // item of the range's first head
      for_items(step, kTileRows, [&](const RowRange& range) {
        for (; more && item.begin >= first && item.begin < first + options_.kv_heads;
             more = context.work.take(context.member, total, 1, item)) {
          const int head = static_cast<int>(item.begin - first);
          const SegmentRange segments = segments_of(step, range);
          prepare(context, range, head, segments, 0, tile);
          const AttentionState state = state_at(memory, tile.rows);
          kernels_.clear(tile, state);
          attend(step, range.row, head, tile, segments, 0, segments.count(), [&](int32_t) { return state; });
          finish(context, range, head, tile, state);
        }
        first += options_.kv_heads;
        return more && item.begin >= first;
      });
    }
  }

  int64_t item_cost(const StepState& step, const RowRange& range) const {
    return (kRowCost + range.end - range.begin) * std::max(1, segments_of(step, range).count());
  }

  // The segments of an item that belong to a member: [first, last).
  struct Portion {
    int64_t first, last;
  };

  // The segments of all items in a line are cut into equal shares. A member merges the segments of an item
  // that it begins as it goes; segments of an item that another began are kept one by one. Who comes last of
  // those that share an item merges them, in order: nobody waits.
  void run_split(const OpContext& context) const {
    const StepState& step = context.step;
    int64_t total = 0;
    for_items(step, kSplitRows, [&](const RowRange& range) {
      total += item_cost(step, range) * options_.kv_heads;
      return true;
    });
    const auto share = [&](int member) { return total * member / context.members; };
    // Segment i of an item begins at `at + i * unit`; it belongs to the share in which it begins.
    const auto portion_of = [&](int member, int64_t at, int64_t unit, int64_t count) {
      return Portion{std::clamp<int64_t>((share(member) - at + unit - 1) / unit, 0, count),
                     std::clamp<int64_t>((share(member + 1) - at + unit - 1) / unit, 0, count)};
    };
    const auto memory_of = [&](int member) {
      return context.workspace + static_cast<size_t>(member) * member_bytes_;
    };
    const auto part_at = [&](int member, int64_t i, int rows) {
      return state_at(memory_of(member) + parts_ + static_cast<size_t>(i) * state_bytes(kSplitRows), rows);
    };
    AttentionTile tile;
    int64_t at = 0;
    for_items(step, kSplitRows, [&](const RowRange& range) {
      const SegmentRange segments = segments_of(step, range);
      const int64_t unit = kRowCost + range.end - range.begin, count = std::max(1, segments.count());
      for (int head = 0; head < options_.kv_heads; ++head, at += unit * count) {
        const Portion mine = portion_of(context.member, at, unit, count);
        if (mine.first >= mine.last) continue;
        prepare(context, range, head, segments, static_cast<int32_t>(mine.first), tile);
        const auto last = static_cast<int32_t>(std::min<int64_t>(mine.last, segments.count()));
        if (mine.first == 0) {
          const AttentionState state = state_at(memory_of(context.member) + state_, tile.rows);
          kernels_.clear(tile, state);
          attend(step, range.row, head, tile, segments, 0, last, [&](int32_t) { return state; });
          if (mine.last == count) {
            finish(context, range, head, tile, state);
            continue;
          }
        } else {
          attend(step, range.row, head, tile, segments, static_cast<int32_t>(mine.first), last,
                 [&](int32_t i) {
                   const AttentionState part = part_at(context.member, i - mine.first, tile.rows);
                   kernels_.clear(tile, part);
                   return part;
                 });
        }
        int opener = context.member, sharing = 0;
        while (share(opener) > at) --opener;
        for (int member = opener; member < context.members; ++member) {
          const Portion portion = portion_of(member, at, unit, count);
          if (portion.first < portion.last) ++sharing;
        }
        if (context.work.arrive(opener) + 1 < sharing) continue;
        const AttentionState state = state_at(memory_of(opener) + state_, tile.rows);
        for (int member = opener + 1; member < context.members; ++member) {
          const Portion portion = portion_of(member, at, unit, count);
          for (int64_t i = portion.first; i < portion.last; ++i)
            kernels_.merge(tile, part_at(member, i - portion.first, tile.rows), state);
        }
        finish(context, range, head, tile, state);
      }
      return at < share(context.member + 1);
    });
  }

  AttentionOptions options_;
  int group_;
  const AttentionKernels& kernels_;
  size_t out_stride_ = 0;
  size_t queries_ = 0, query_sums_ = 0, row_scales_ = 0, scores_ = 0, weights_ = 0, bias_ = 0, scales_ = 0,
         tile_ = 0, state_ = 0, parts_ = 0;
  size_t member_bytes_ = 0;
  bool use_dot_ = dot_is_faster();
  bool byte_permutes_;
};

}  // namespace

program::ValueId attention(program::ProgramBuilder& builder, program::ValueId q,
                           const AttentionOptions& options, IsaLevel isa) {
  const program::Value& queries = builder.at(q);
  KVASIR_CHECK(options.heads > 0 && options.kv_heads > 0 && options.heads % options.kv_heads == 0);
  KVASIR_CHECK(options.scale > 0.0f);
  KVASIR_CHECK(options.head_dim_k > 0 && options.head_dim_v > 0 && options.max_context > 0);
  KVASIR_CHECK(queries.dtype == Dtype::f32 && queries.width == int64_t{options.heads} * options.head_dim_k);
  if (std::max(options.head_dim_k, options.head_dim_v) > kMaxHeadDim)
    throw_error(ErrorCode::unsupported,
                "attention: head_dim {} is above {}, the largest that this build runs",
                std::max(options.head_dim_k, options.head_dim_v), kMaxHeadDim);
  const ValueId out = builder.value(queries.name + ".attention", Dtype::f32, queries.axis,
                                    {options.heads, options.head_dim_v});
  builder.append(std::make_unique<Attention>(q, out, options, isa));
  return out;
}

}  // namespace kvasir::ops
