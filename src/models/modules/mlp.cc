#include "models/modules/mlp.h"

#include <cmath>
#include <numeric>

#include "models/modules/linear.h"

namespace kvasir::models {
namespace {

using program::ValueId;

double softplus(double x) {
  return x > 30 ? x : std::log1p(std::exp(x));
}

std::vector<int32_t> half(int64_t begin, int64_t rows) {
  std::vector<int32_t> out(static_cast<size_t>(rows));
  std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
  return out;
}

ops::XieluParameters xielu(GraphContext& context, int64_t layer, const std::string& path) {
  // The publisher's class has the first two as parameters of one element, the others as plain numbers.
  auto scalar = [&](const char* name, bool one_element) {
    return context.weights.scalar(path + name, one_element);
  };
  XieluScalars s;
  if (context.config.xielu.empty())
    s = {.alpha_p = scalar(".alpha_p", true),
         .alpha_n = scalar(".alpha_n", true),
         .beta = scalar(".beta", false),
         .eps = scalar(".eps", false)};
  else
    s = context.config.xielu[static_cast<size_t>(layer)];
  return {static_cast<float>(softplus(s.alpha_p)), static_cast<float>(s.beta + softplus(s.alpha_n)), s.beta,
          s.eps};
}

}  // namespace

ValueId mlp(GraphContext& context, int64_t layer, ValueId x, std::optional<ValueId> residual) {
  const ModelConfig& m = context.config;
  const IsaLevel isa = context.options.isa;
  const std::string p = context.layer_path(layer);
  const int64_t I = m.intermediate;
  const Inputs inputs = feed_forward_inputs(context, layer);

  ValueId activated;
  if (m.gated) {
    std::vector<MatrixPart> parts;
    std::vector<VectorPart> bias;
    if (m.fused_mlp == FusedMlp::none) {
      parts = {{p + m.names.gate, I, m.hidden, {}}, {p + m.names.up, I, m.hidden, {}}};
      if (m.mlp_bias) bias = {{p + m.names.gate + ".bias", I, {}}, {p + m.names.up + ".bias", I, {}}};
    } else {
      const int64_t gate = m.fused_mlp == FusedMlp::gate_up ? 0 : I, up = I - gate;
      const std::string path = p + m.names.gate_up;
      parts = {{path, 2 * I, m.hidden, half(gate, I)}, {path, 2 * I, m.hidden, half(up, I)}};
      if (m.mlp_bias) bias = {{path + ".bias", 2 * I, half(gate, I)}, {path + ".bias", 2 * I, half(up, I)}};
    }
    if (Linear::can_fuse_gate_up(context, parts, m.activation)) {
      activated = Linear::gate_up(context, parts, bias, m.activation, inputs).apply(context, "activated", x);
    } else {
      const ValueId both = Linear(context, parts, bias, inputs).apply(context, "gate_up", x);
      activated =
          ops::activation(*context.builder, m.activation, context.builder->columns(both, "gate", 0, {I}),
                          context.builder->columns(both, "up", I, {I}), isa);
    }
  } else {
    std::vector<VectorPart> bias;
    if (m.mlp_bias) bias = {{p + m.names.up + ".bias", I, {}}};
    const ValueId up =
        Linear(context, {{p + m.names.up, I, m.hidden, {}}}, bias, inputs).apply(context, "up", x);
    ops::XieluParameters parameters;
    if (m.activation == ops::ActivationFunction::xielu)
      parameters = xielu(context, layer, p + m.names.activation);
    activated = ops::activation(*context.builder, m.activation, up, std::nullopt, isa, parameters);
  }
  std::vector<VectorPart> bias;
  if (m.mlp_bias) bias = {{p + m.names.down + ".bias", m.hidden, {}}};
  return Linear(context, {{p + m.names.down, m.hidden, I, {}}}, bias, inputs)
      .apply(context, "mlp_out", activated, residual);
}

}  // namespace kvasir::models
