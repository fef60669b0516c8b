#include "models/modules/norm.h"

#include "ops/layer_norm/layer_norm.h"
#include "ops/rms_norm/rms_norm.h"

namespace kvasir::models {

program::ValueId norm(GraphContext& context, program::ValueId x, const std::string& path, int64_t width) {
  const ModelConfig& m = context.config;
  const bool weighted = m.norm != NormKind::rms_no_weight && m.norm != NormKind::layer_norm_no_affine;
  const float* gain = weighted ? context.weights.vector(path + ".weight", width) : nullptr;
  if (m.norm == NormKind::rms || m.norm == NormKind::rms_plus_one || m.norm == NormKind::rms_no_weight) {
    ops::RmsNormOptions options;
    options.epsilon = m.epsilon;
    options.gain_offset = m.gain_offset;
    options.gains = {{1, gain}};
    return ops::rms_norm(*context.builder, x, options, context.options.isa);
  }
  ops::LayerNormOptions options;
  options.epsilon = m.epsilon;
  options.gain_offset = m.gain_offset;
  options.weights = {{1, gain, m.norm_bias ? context.weights.vector(path + ".bias", width) : nullptr, false}};
  return ops::layer_norm(*context.builder, x, options, context.options.isa);
}

}  // namespace kvasir::models
