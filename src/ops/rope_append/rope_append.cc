#include "ops/rope_append/rope_append.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "ops/append_kv/append_kv.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"

namespace kvasir::ops {
namespace {

using program::OpContext;
using program::Value;
using program::ValueId;

// From so many tokens a member on, work is shared by tokens (runs of one block of 16 slots), not by heads.
constexpr int64_t kManyTokens = 64;

class RopeAppend final : public program::Op {
 public:
  RopeAppend(ValueId x, ValueId table, ValueId v, std::vector<ValueId> y,
             const std::optional<RecordedRmsNorm>& norm, const RecordedRope& rope,
             const AppendKvOptions& append)
      : Op({x, table, v}, std::move(y)), norm_(norm), rope_(rope), append_(append), rotate_(rope.kernel()) {
    if (!norm_) return;
    norm_kernels_ = &rms_norm_kernels(norm_->isa);
    gain_of_ = gain_of_vectors(norm_->options);
    KVASIR_CHECK(static_cast<int64_t>(gain_of_.size()) == rope_.heads);
  }

  std::string_view kind() const override { return norm_ ? "norm_rope_append" : "rope_append"; }
  std::string describe() const override {
    return fmt::format("{}{}; last {} to group {}, layer {}",
                       norm_ ? fmt::format("epsilon {:g}, gain {}; ", norm_->options.epsilon,
                                           norm_->options.gain_offset != 0.0f ? "plus one" : "plain")
                             : "",
                       rope_.describe(), append_.kv_heads, append_.group, append_.layer);
  }
  size_t workspace_bytes(const program::Counts& /*maxima*/, int threads) const override {
    return scratch_bytes() * static_cast<size_t>(threads);
  }
  program::OpCost cost(int64_t rows) const override {
    const double elements = static_cast<double>(rows * rope_.heads * rope_.head_dim),
                 values = static_cast<double>(rows) * append_.kv_heads * append_.head_dim_v;
    return {8 * elements + 6 * values, (norm_ ? 7 : 3) * elements};  // as if stored in 16 bits
  }
  program::OpCost cost_in_step(int64_t rows, const program::StepState& step) const override {
    // All heads and the values are read; of what is computed the queries are written, the rest is appended.
    const double elements = static_cast<double>(rows * rope_.heads * rope_.head_dim),
                 queries = static_cast<double>(rows * (rope_.heads - append_.kv_heads) * rope_.head_dim),
                 values = static_cast<double>(rows) * append_.kv_heads * append_.head_dim_v;
    return {4 * (elements + queries + values) + appended_bytes(step, append_), (norm_ ? 7 : 3) * elements};
  }

  void run(const OpContext& context) const override {
    const ValueId x = inputs()[0], table = inputs()[1], v = inputs()[2];
    const int64_t queries = rope_.heads - append_.kv_heads;
    auto* normed =
        reinterpret_cast<float*>(context.workspace + scratch_bytes() * static_cast<size_t>(context.member));
    float* key = normed + rope_.heads * rope_.head_dim;
    // Heads [begin, end) of a token as they are to be turned: all their norms first, which do not wait for
    // each other.
    const auto heads_of = [&](int64_t token, int64_t begin, int64_t end) -> const float* {
      const float* from = context.row<const float>(x, token);
      if (!norm_) return from;
      for (int64_t head = begin; head < end; ++head)
        norm_kernels_->vector(from + head * rope_.head_dim, gain_of_[static_cast<size_t>(head)],
                              norm_->options.gain_offset, normed + head * rope_.head_dim, rope_.head_dim,
                              norm_->options.epsilon);
      return normed;
    };
    const auto turn = [&](int64_t token, const float* from, float* to) {
      const float* cosines = context.row<const float>(table, token);
      rotate_(from, cosines, cosines + rope_.pairs, to, rope_.pairs, rope_.head_dim);
    };
    const auto turn_queries = [&](int64_t token, int64_t begin, int64_t end) {
      const float* from = heads_of(token, begin, end);
      float* to = context.row<float>(outputs()[0], token);
      for (int64_t head = begin; head < end; ++head)
        turn(token, from + head * rope_.head_dim, to + head * rope_.head_dim);
    };
    const auto append_keys = [&](int32_t token, int begin, int end) {
      const AppendedToken to(context, append_, token);
      const float* from = heads_of(token, queries + begin, queries + end) + queries * rope_.head_dim;
      const float* values = context.row<const float>(v, token);
      for (int head = begin; head < end; ++head) {
        turn(token, from + head * rope_.head_dim, key);
        to.append(head, key, values + static_cast<int64_t>(head) * append_.head_dim_v);
      }
    };
    // Many tokens: all heads of a token at once.
    if (context.counts.tokens >= kManyTokens * context.members) {
      share_appended_heads(context, 1, [&](int32_t token, int, int) {
        if (queries > 0) turn_queries(token, 0, queries);
        append_keys(token, 0, append_.kv_heads);
      });
      return;
    }
    share_appended_heads(context, append_.kv_heads, append_keys);
    // From the other end: where there are fewer keys than members, the rest begin with the queries.
    const WorkRange work =
        split_work(context.counts.tokens * queries, context.members, context.members - 1 - context.member);
    for (int64_t i = work.begin; i < work.end;) {
      const int64_t token = i / queries, begin = i % queries, end = std::min(queries, begin + work.end - i);
      turn_queries(token, begin, end);
      i += end - begin;
    }
  }

 private:
  size_t scratch_bytes() const {
    return align_up(static_cast<size_t>((rope_.heads + 1) * rope_.head_dim) * sizeof(float), kCacheLine);
  }

  std::optional<RecordedRmsNorm> norm_;
  RecordedRope rope_;
  AppendKvOptions append_;
  decltype(RopeKernels::half_split) rotate_;
  const RmsNormKernels* norm_kernels_ = nullptr;
  std::vector<const float*> gain_of_;
};

// The op that writes `id`, or the buffer that it views; -1: an input.
int writer_of(const program::ProgramBuilder& builder, ValueId id) {
  const ValueId buffer = builder.at(id).base.valid() ? builder.at(id).base : id;
  for (size_t i = 0; i < builder.ops().size(); ++i)
    for (const ValueId out : builder.ops()[i]->outputs())
      if (out == buffer || builder.at(out).base == buffer) return static_cast<int>(i);
  return -1;
}

// The append_kv whose keys are the last of what `rope` at index `at` writes, if it may run there and nothing
// else reads those keys; else -1.
int joined_append(const program::ProgramBuilder& builder, size_t at, const RecordedRope& rope) {
  const ValueId y = builder.ops()[at]->outputs()[0];
  if (builder.at(y).base.valid() || builder.is_output(y)) return -1;
  int found = -1;
  size_t keys_from = 0;
  const auto reads = [&](ValueId id) { return id == y || builder.at(id).base == y; };
  for (size_t i = 0; i < builder.ops().size(); ++i) {
    const std::optional<AppendKvOptions> append = recorded_append_kv(*builder.ops()[i]);
    if (!append || !reads(builder.ops()[i]->inputs()[0])) continue;
    const Value& keys = builder.at(builder.ops()[i]->inputs()[0]);
    keys_from = static_cast<size_t>((rope.heads - append->kv_heads) * rope.head_dim) * sizeof(float);
    if (found >= 0 || append->head_dim_k != rope.head_dim || keys.offset != keys_from) return -1;
    if (reads(builder.ops()[i]->inputs()[1])) return -1;
    if (writer_of(builder, builder.ops()[i]->inputs()[1]) > static_cast<int>(at)) return -1;
    found = static_cast<int>(i);
  }
  if (found < 0) return -1;
  for (size_t i = 0; i < builder.ops().size(); ++i)
    for (const ValueId in : builder.ops()[i]->inputs())
      if (reads(in) && static_cast<int>(i) != found) {
        const Value& view = builder.at(in);
        if (view.offset + static_cast<size_t>(view.width) * sizeof(float) > keys_from) return -1;
      }
  return found;
}

}  // namespace

int fuse_rope_append(program::ProgramBuilder& builder) {
  std::vector<std::unique_ptr<program::Op>>& ops = builder.mutable_ops();
  int fused = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::optional<RecordedRope> rope = recorded_rope(*ops[i]);
    if (!rope) continue;
    const int append = joined_append(builder, i, *rope);
    if (append < 0) continue;
    ValueId x = ops[i]->inputs()[0];
    const int writer = writer_of(builder, x);
    std::optional<RecordedRmsNorm> norm;
    if (writer >= 0) norm = recorded_rms_norm(*ops[static_cast<size_t>(writer)]);
    if (norm && (norm->options.vectors != rope->heads || norm->width != rope->head_dim ||
                 ops[static_cast<size_t>(writer)]->outputs()[0] != x || builder.only_reader(x) != i ||
                 builder.is_output(x)))
      norm.reset();
    if (norm) x = ops[static_cast<size_t>(writer)]->inputs()[0];
    const AppendKvOptions options = *recorded_append_kv(*ops[static_cast<size_t>(append)]);
    // Without queries nothing is left to write.
    std::vector<ValueId> y;
    if (rope->heads > options.kv_heads) y = ops[i]->outputs();
    ops[i] =
        std::make_unique<RopeAppend>(x, ops[i]->inputs()[1], ops[static_cast<size_t>(append)]->inputs()[1],
                                     std::move(y), norm, *rope, options);
    ops.erase(ops.begin() + append);
    if (norm) {
      ops.erase(ops.begin() + writer);
      --i;
    }
    ++fused;
  }
  return fused;
}

}  // namespace kvasir::ops
