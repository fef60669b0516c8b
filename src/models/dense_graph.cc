#include "models/dense_graph.h"

#include "base/error.h"
#include "models/modules/attention.h"
#include "models/modules/linear.h"
#include "models/modules/mlp.h"
#include "models/modules/moe.h"
#include "models/modules/norm.h"
#include "ops/candidates/candidates.h"
#include "ops/elementwise/elementwise.h"
#include "ops/gather_tokens/gather_tokens.h"
#include "ops/linear_prepare/linear_prepare.h"
#include "ops/matmul/matmul_op.h"
#include "ops/norm_prepare/norm_prepare.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/rope_append/rope_append.h"

namespace kvasir::models {
namespace {

using program::Axis;
using program::ProgramBuilder;
using program::ValueId;

float round_to(Dtype dtype, double value) {
  const auto f = static_cast<float>(value);
  if (dtype == Dtype::bf16) return bf16_to_f32(f32_to_bf16(f));
  if (dtype == Dtype::f16) return f16_to_f32(f32_to_f16(f));
  return f;
}

// GGUF stores the factors of Llama 3's and LongRoPE's divisors as tensors.
RopeConfig with_stored_factors(const ModelConfig& m, WeightStore& weights, RopeConfig rope) {
  if (!m.gguf || weights.listing()) return rope;
  if (weights.has("rope_freqs.weight")) {
    rope.kind = RopeKind::factors;
    rope.divisor_factors = weights.positive_values("rope_freqs.weight", rope.dims / 2);
  }
  if (weights.has("rope_factors_long.weight")) {
    rope.long_factor = weights.positive_values("rope_factors_long.weight", rope.dims / 2);
    rope.short_factor = weights.positive_values("rope_factors_short.weight", rope.dims / 2);
  }
  return rope;
}

ValueId feed_forward(GraphContext& context, int64_t layer, ValueId x, std::optional<ValueId> residual) {
  if (context.config.layer[static_cast<size_t>(layer)].experts) return moe(context, layer, x, residual);
  return mlp(context, layer, x, residual);
}

// Goes on in the program `head`, with the rows of `value` [tokens, ...] whose logits are wanted: the program
// so far gives `value` as its output `name`.
ValueId wanted_rows(ProgramBuilder& trunk, ProgramBuilder& head, const std::string& name, ValueId value) {
  trunk.output(name, value);
  return ops::gather_tokens(head, head.input(name, Dtype::f32, Axis::tokens, trunk.at(value).inner));
}

// With `head`, the last layer: what follows its attention is recorded there.
ValueId layer_forward(GraphContext& context, int64_t layer, ValueId x, const std::vector<ValueId>& ropes,
                      ProgramBuilder* head) {
  const ModelConfig& m = context.config;
  const IsaLevel isa = context.options.isa;
  const std::string p = context.layer_path(layer);
  auto normed = [&](ValueId value, size_t which) {
    return norm(context, value, p + m.names.norms[which], m.hidden);
  };
  auto add = [&](ValueId a, ValueId b, float factor = 1) {
    return ops::add(*context.builder, a, b, isa, factor);
  };
  ValueId y = m.block == Block::post ? x : normed(x, 0);
  ValueId heads = attention(context, layer, y, ropes);
  if (head != nullptr) {
    ProgramBuilder& trunk = *context.builder;
    heads = wanted_rows(trunk, *head, "attended", heads);
    if (m.block == Block::parallel) y = wanted_rows(trunk, *head, "normed", y);
    x = wanted_rows(trunk, *head, "residual", x);
    context.builder = head;
    context.prepared.clear();
  }
  switch (m.block) {
    case Block::pre: {
      if (m.residual_multiplier) {
        const auto rho = static_cast<float>(*m.residual_multiplier);
        const ValueId h = add(x, attention_out(context, layer, heads, std::nullopt), rho);
        return add(h, feed_forward(context, layer, normed(h, 1), std::nullopt), rho);
      }
      const ValueId h = attention_out(context, layer, heads, x);
      return feed_forward(context, layer, normed(h, 1), h);
    }
    case Block::post: {
      const ValueId h = add(x, normed(attention_out(context, layer, heads, std::nullopt), 0));
      return add(h, normed(feed_forward(context, layer, h, std::nullopt), 1));
    }
    case Block::sandwich: {
      const ValueId h = add(x, normed(attention_out(context, layer, heads, std::nullopt), 1));
      return add(h, normed(feed_forward(context, layer, normed(h, 2), std::nullopt), 3));
    }
    case Block::parallel:
      return add(feed_forward(context, layer, y, attention_out(context, layer, heads, std::nullopt)), x);
  }
  return x;
}

}  // namespace

std::set<ops::ActivationMode> build_dense_graph(const ModelConfig& m, WeightStore& weights,
                                                const GraphOptions& options, ProgramBuilder& trunk,
                                                ProgramBuilder& head) {
  GraphContext context{m, weights, options, &trunk, {}};
  const IsaLevel isa = options.isa;

  // The embedding is packed once; a tied head multiplies with the same matrix.
  const bool tied = m.tie == TieRule::always ||
                    (m.tie == TieRule::from_checkpoint && !weights.has(m.names.head + ".weight"));
  const std::vector<StoredMatrix> embed = weights.matrices({{m.names.embed, m.vocab, m.hidden, {}}});
  float multiplier = 1.0f;
  if (m.embed_multiplier)
    multiplier = round_to(m.embed_multiplier_rounded ? weights.storage_dtype(m.names.embed) : Dtype::f32,
                          *m.embed_multiplier);
  ValueId h = ops::gather_rows(trunk, *embed[0].matrix, multiplier, isa);
  if (m.embed_norm) {
    ops::RmsNormOptions norm_options;
    norm_options.epsilon = m.epsilon;
    h = ops::rms_norm(trunk, h, norm_options, isa);
  }
  std::vector<ValueId> ropes;
  for (const RopeConfig& rope : m.ropes)
    ropes.push_back(
        ops::rope_table(trunk, rope_table(with_stored_factors(m, weights, rope), options.context), isa));
  for (int64_t layer = 0; layer < m.layers; ++layer)
    h = layer_forward(context, layer, h, ropes, layer + 1 == m.layers ? &head : nullptr);
  head.output("hidden", h);

  ValueId x = norm(context, h, m.names.final_norm, m.hidden);
  if (m.head_input_divisor) x = ops::divide(head, x, static_cast<float>(*m.head_input_divisor), isa);
  std::vector<VectorPart> bias;
  if (m.head_bias) bias = {{m.names.head + ".bias", m.vocab, {}}};
  const Linear projection =
      tied ? Linear(context, embed[0], m.names.embed, Inputs::finer)
           : Linear(context, {{m.names.head, m.vocab, m.hidden, {}}}, bias, Inputs::finer);
  ValueId logits = projection.apply(context, "logits", x);
  if (m.final_softcap) logits = ops::softcap(head, logits, static_cast<float>(*m.final_softcap), isa);
  if (m.logits_multiplier) logits = ops::scale(head, logits, static_cast<float>(*m.logits_multiplier), isa);
  if (m.logits_divisor) logits = ops::divide(head, logits, static_cast<float>(*m.logits_divisor), isa);
  head.output("logits", logits);
  head.output("candidates", ops::candidates(head, logits, isa));

  if (options.fuse) {
    for (ProgramBuilder* program : {&trunk, &head}) {
      ops::fuse_norm_prepare(*program);
      ops::fuse_linear_prepare(*program);
      ops::fuse_rope_append(*program);
    }
    ops::fuse_linear_candidates(head);
  }
  return std::move(context.modes);
}

}  // namespace kvasir::models
