#include "models/modules/attention.h"

#include <numeric>

#include "base/error.h"
#include "models/modules/linear.h"
#include "ops/append_kv/append_kv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/gather_tokens/gather_tokens.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/rms_norm/rms_norm.h"

namespace kvasir::models {
namespace {

using program::ProgramBuilder;
using program::ValueId;

std::vector<int32_t> range(int64_t begin, int64_t end) {
  std::vector<int32_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
  return out;
}

// q and k on their way to the cache: one value while they lie side by side, else two.
struct QueryKey {
  std::optional<ValueId> both;  // [tokens, heads + kv_heads, head_dim]
  ValueId q, k;
};

void split(ProgramBuilder& builder, const ModelConfig& m, QueryKey& qk) {
  if (!qk.both) return;
  qk.q = builder.columns(*qk.both, "q", 0, {m.heads, m.head_dim});
  qk.k = builder.columns(*qk.both, "k", m.heads * m.head_dim, {m.kv_heads, m.head_dim});
}

// Per-head norms of q and k in one op.
void head_norm(GraphContext& context, const std::string& p, QueryKey& qk) {
  const ModelConfig& m = context.config;
  ProgramBuilder& builder = *context.builder;
  const IsaLevel isa = context.options.isa;
  const std::string q_path = p + m.names.q_norm, k_path = p + m.names.k_norm;
  KVASIR_CHECK(qk.both.has_value());
  const bool layer_norm_family = m.norm == NormKind::layer_norm || m.norm == NormKind::layer_norm_plus_one;
  if (m.qk_norm == QkNorm::head_layer_norm || m.qk_norm == QkNorm::head_layer_norm_list ||
      (m.qk_norm == QkNorm::head && layer_norm_family)) {
    ops::LayerNormOptions options;
    options.vectors = m.heads + m.kv_heads;
    options.epsilon = m.epsilon;
    auto weights = [&](const std::string& path, int64_t heads) -> ops::LayerNormWeights {
      if (m.qk_norm == QkNorm::head)
        return {heads, context.weights.vector(path + ".weight", m.head_dim),
                m.norm_bias ? context.weights.vector(path + ".bias", m.head_dim) : nullptr, false};
      if (m.qk_norm == QkNorm::head_layer_norm)
        return {heads, context.weights.vectors({{path + ".weight", heads * m.head_dim, {}, heads}}), nullptr,
                true};
      std::vector<VectorPart> parts;
      for (int64_t h = 0; h < heads; ++h)
        parts.push_back({fmt::format("{}.norms.{}.weight", path, h), m.head_dim, {}});
      return {heads, context.weights.vectors(parts), nullptr, true};
    };
    options.weights = {weights(q_path, m.heads), weights(k_path, m.kv_heads)};
    qk.both = ops::layer_norm(builder, *qk.both, options, isa);
    return;
  }
  ops::RmsNormOptions options;
  options.vectors = m.heads + m.kv_heads;
  options.epsilon = m.epsilon;
  options.gain_offset = m.gain_offset;
  const bool weighted = m.norm != NormKind::rms_no_weight;
  options.gains = {{m.heads, weighted ? context.weights.vector(q_path + ".weight", m.head_dim) : nullptr},
                   {m.kv_heads, weighted ? context.weights.vector(k_path + ".weight", m.head_dim) : nullptr}};
  qk.both = ops::rms_norm(builder, *qk.both, options, isa);
}

}  // namespace

QkvRows qkv_rows(const ModelConfig& m) {
  const int64_t N = m.heads, G = m.kv_heads, D = m.head_dim, r = N / G;
  QkvRows rows;
  switch (m.fused_qkv) {
    case FusedQkv::none:
      break;
    case FusedQkv::concat:
      rows = {range(0, N * D), range(N * D, (N + G) * D), range((N + G) * D, (N + 2 * G) * D)};
      break;
    case FusedQkv::grouped:  // per KV head: its r query heads, k, v
      for (int64_t g = 0; g < G; ++g) {
        const int64_t first = g * (r + 2) * D;
        for (int64_t i = 0; i < r * D; ++i) rows.q.push_back(static_cast<int32_t>(first + i));
        for (int64_t i = 0; i < D; ++i) rows.k.push_back(static_cast<int32_t>(first + r * D + i));
        for (int64_t i = 0; i < D; ++i) rows.v.push_back(static_cast<int32_t>(first + (r + 1) * D + i));
      }
      break;
  }
  if (m.permuted_qk) {
    KVASIR_CHECK(m.fused_qkv == FusedQkv::none && D % 2 == 0);
    // Packed row (h, s, j) is the file's row (h, j, s).
    auto unpermute = [&](int64_t heads) {
      std::vector<int32_t> map;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t s = 0; s < 2; ++s)
          for (int64_t j = 0; j < D / 2; ++j) map.push_back(static_cast<int32_t>(h * D + 2 * j + s));
      return map;
    };
    rows.q = unpermute(N);
    rows.k = unpermute(G);
  }
  if (m.kv_heads_tiled) {
    // Query head j G + g reads KV head g: packed as head g r + j, so that heads of a group lie together.
    KVASIR_CHECK(rows.q.empty());
    for (int64_t g = 0; g < G; ++g)
      for (int64_t j = 0; j < r; ++j)
        for (int64_t i = 0; i < D; ++i) rows.q.push_back(static_cast<int32_t>((j * G + g) * D + i));
  }
  return rows;
}

ValueId attention(GraphContext& context, int64_t layer, ValueId x, const std::vector<ValueId>& rope_tables) {
  const ModelConfig& m = context.config;
  const LayerConfig& shape = m.layer[static_cast<size_t>(layer)];
  ProgramBuilder& builder = *context.builder;
  const IsaLevel isa = context.options.isa;
  const std::string p = context.layer_path(layer);
  const int64_t N = m.heads, G = m.kv_heads, D = m.head_dim;

  // Projections, in one product where the stored formats allow.
  const QkvRows maps = qkv_rows(m);
  const bool fused = m.fused_qkv != FusedQkv::none;
  const std::string q_path = p + (fused ? m.names.qkv : m.names.q),
                    k_path = p + (fused ? m.names.qkv : m.names.k),
                    v_path = p + (fused ? m.names.qkv : m.names.v);
  const int64_t q_rows = fused ? (N + 2 * G) * D : N * D, kv_rows = fused ? q_rows : G * D;
  std::vector<VectorPart> bias;
  if (m.qkv_bias)
    bias = {{q_path + ".bias", q_rows, maps.q},
            {k_path + ".bias", kv_rows, maps.k},
            {v_path + ".bias", kv_rows, maps.v}};
  const Linear projection(context,
                          {{q_path, q_rows, m.hidden, maps.q},
                           {k_path, kv_rows, m.hidden, maps.k},
                           {v_path, kv_rows, m.hidden, maps.v}},
                          bias, layer_inputs(context, layer, Inputs::finer_but_first));
  ValueId whole = projection.apply(context, "qkv", x);
  if (m.clip_qkv)
    whole =
        ops::clamp(builder, whole, static_cast<float>(-*m.clip_qkv), static_cast<float>(*m.clip_qkv), isa);

  QueryKey qk;
  qk.both = builder.columns(whole, "qk", 0, {N + G, D});
  const ValueId v = builder.columns(whole, "v", (N + G) * D, {G, D});
  if (m.qk_norm == QkNorm::full) {
    split(builder, m, qk);
    qk.both.reset();
    auto full = [&](ValueId value, const std::string& path, int64_t width) {
      ops::RmsNormOptions options;
      options.epsilon = m.epsilon;
      options.gain_offset = m.gain_offset;
      options.gains = {{1, context.weights.vector(path + ".weight", width)}};
      return ops::rms_norm(builder, value, options, isa);
    };
    qk.q = full(qk.q, p + m.names.q_norm, N * D);
    qk.k = full(qk.k, p + m.names.k_norm, G * D);
  } else if (m.qk_norm != QkNorm::none && m.qk_norm != QkNorm::head_after_rope) {
    head_norm(context, p, qk);
  }
  if (shape.rope >= 0) {
    const ValueId table = rope_tables[static_cast<size_t>(shape.rope)];
    if (qk.both) {
      qk.both = ops::rope(builder, *qk.both, table, N + G, m.rope_layout, isa);
    } else {
      qk.q = ops::rope(builder, qk.q, table, N, m.rope_layout, isa);
      qk.k = ops::rope(builder, qk.k, table, G, m.rope_layout, isa);
    }
  }
  if (m.qk_norm == QkNorm::head_after_rope) head_norm(context, p, qk);
  split(builder, m, qk);
  if (m.query_scale_beta != 0)
    qk.q = ops::scale_by_position(builder, qk.q, m.query_scale_beta, m.query_scale_original, isa);

  const LayerKv& kv = context.options.kv[static_cast<size_t>(layer)];
  ops::AppendKvOptions append;
  append.group = kv.group;
  append.layer = kv.index;
  append.kv_heads = static_cast<int>(G);
  append.head_dim_k = append.head_dim_v = static_cast<int>(D);
  ops::append_kv(builder, qk.k, v, append);

  ops::AttentionOptions attend;
  attend.group = kv.group;
  attend.layer = kv.index;
  attend.mask_class = kv.mask_class;
  attend.heads = static_cast<int>(N);
  attend.kv_heads = static_cast<int>(G);
  attend.head_dim_k = attend.head_dim_v = static_cast<int>(D);
  attend.scale = static_cast<float>(m.attention_scale);
  attend.softcap = static_cast<float>(m.attention_softcap.value_or(0));
  attend.precision = context.options.precision;
  attend.max_context = context.options.context;
  ValueId out = ops::attention(builder, qk.q, attend, isa);
  if (m.kv_heads_tiled) {
    // Back to the order of o_proj's columns: head h is packed head (h mod G) r + h / G.
    std::vector<int32_t> from;
    for (int64_t h = 0; h < N; ++h) from.push_back(static_cast<int32_t>((h % G) * (N / G) + h / G));
    out = ops::reorder_heads(builder, out, from);
  }
  return out;
}

ValueId attention_out(GraphContext& context, int64_t layer, ValueId heads, std::optional<ValueId> residual) {
  const ModelConfig& m = context.config;
  const std::string p = context.layer_path(layer);
  std::vector<VectorPart> o_bias;
  if (m.o_bias) o_bias = {{p + m.names.o + ".bias", m.hidden, {}}};
  return Linear(context, {{p + m.names.o, m.hidden, m.heads * m.head_dim, {}}}, o_bias, Inputs::finer)
      .apply(context, "attention_out", heads, residual);
}

}  // namespace kvasir::models
