#include "models/modules/moe.h"

#include "base/error.h"
#include "models/modules/linear.h"
#include "ops/experts/experts.h"
#include "ops/matmul/matmul_op.h"

namespace kvasir::models {
namespace {

using program::ValueId;

struct ExpertParts {
  MatrixPart gate, up, down;
};

// Expert e's matrices in whichever of the known layouts the checkpoint has.
ExpertParts expert_parts(GraphContext& context, const std::string& p, int64_t e) {
  const ModelConfig& m = context.config;
  const int64_t E = m.experts.count, I = m.experts.intermediate, H = m.hidden;
  // Rows [first, first + rows) of a stack.
  auto slab = [](const std::string& name, int64_t all, int64_t first, int64_t rows, int64_t cols) {
    MatrixPart part;
    part.path = name;
    part.rows = all;
    part.cols = cols;
    part.first = first;
    part.count = rows;
    return part;
  };
  if (m.gguf) {
    const std::string base = p + m.names.experts;
    // Joined only if the converter was told to.
    if (context.weights.has(base + "_gate_up_exps.weight") &&
        !context.weights.has(base + "_gate_exps.weight"))
      return {slab(base + "_gate_up_exps", E * 2 * I, e * 2 * I, I, H),
              slab(base + "_gate_up_exps", E * 2 * I, e * 2 * I + I, I, H),
              slab(base + "_down_exps", E * H, e * H, H, I)};
    return {slab(base + "_gate_exps", E * I, e * I, I, H), slab(base + "_up_exps", E * I, e * I, I, H),
            slab(base + "_down_exps", E * H, e * H, H, I)};
  }
  const std::string fused = p + m.names.experts;
  if (context.weights.has(fused + ".gate_up_proj")) {
    MatrixPart gate = slab(fused + ".gate_up_proj", E * 2 * I, e * 2 * I, I, H);
    MatrixPart up = slab(fused + ".gate_up_proj", E * 2 * I, e * 2 * I + I, I, H);
    MatrixPart down = slab(fused + ".down_proj", E * H, e * H, H, I);
    gate.suffix = up.suffix = down.suffix = "";
    gate.slabs = up.slabs = down.slabs = E;
    return {gate, up, down};
  }
  const std::string stacked = p + m.names.stacked_experts;
  if (context.weights.has(stacked + ".gate_proj.weight"))
    return {slab(stacked + ".gate_proj", E * I, e * I, I, H), slab(stacked + ".up_proj", E * I, e * I, I, H),
            slab(stacked + ".down_proj", E * H, e * H, H, I)};
  const std::string single = fmt::format("{}{}.{}", p, m.names.experts, e);
  return {
      {single + ".gate_proj", I, H, {}}, {single + ".up_proj", I, H, {}}, {single + ".down_proj", H, I, {}}};
}

}  // namespace

ValueId moe(GraphContext& context, int64_t layer, ValueId x, std::optional<ValueId> residual) {
  const ModelConfig& m = context.config;
  const IsaLevel isa = context.options.isa;
  const std::string p = context.layer_path(layer);
  const Linear router = Linear::in_f32(context, {p + m.names.router, m.experts.count, m.hidden, {}});
  const ValueId logits = router.apply(context, "router", x);

  const Inputs inputs = feed_forward_inputs(context, layer);
  ops::ExpertsOptions options;
  options.used = m.experts.used;
  options.normalize = m.experts.normalize;
  options.epilogue =
      m.activation == ops::ActivationFunction::silu ? ops::Epilogue::swiglu : ops::Epilogue::geglu;
  KVASIR_CHECK(m.activation == ops::ActivationFunction::silu ||
               m.activation == ops::ActivationFunction::gelu_tanh);
  for (int64_t e = 0; e < m.experts.count; ++e) {
    const ExpertParts parts = expert_parts(context, p, e);
    if (!context.weights.can_share({parts.gate, parts.up}, ops::PartOrder::interleaved))
      throw_error(ErrorCode::unsupported,
                  "{}: gate and up of an expert are stored in different formats; expected one",
                  parts.gate.path);
    const StoredMatrix gate_up =
        context.weights.matrices({parts.gate, parts.up}, ops::PartOrder::interleaved).front();
    const StoredMatrix down = context.weights.matrices({parts.down}).front();
    const ops::ActivationMode up_mode = mode_of(context, gate_up.format, parts.gate.path, inputs);
    const ops::ActivationMode down_mode = mode_of(context, down.format, parts.down.path, inputs);
    if (e > 0 && (up_mode != options.gate_up_mode || down_mode != options.down_mode))
      throw_error(ErrorCode::unsupported,
                  "{}: experts of one layer are stored in formats that want different activations; choose "
                  "--activations",
                  parts.gate.path);
    options.gate_up_mode = up_mode;
    options.down_mode = down_mode;
    options.experts.push_back({gate_up.matrix, down.matrix});
  }
  return ops::experts(*context.builder, prepared_form(context, x, options.gate_up_mode), logits, options,
                      residual, isa);
}

}  // namespace kvasir::models
