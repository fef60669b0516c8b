#include "models/modules/linear.h"

#include <algorithm>

#include "base/error.h"
#include "ops/matmul/matmul_op.h"

namespace kvasir::models {

using program::ValueId;

std::string GraphContext::layer_path(int64_t layer) const {
  std::string path = config.names.layer;
  const size_t at = path.find("{i}");
  KVASIR_CHECK(at != std::string::npos);
  return path.replace(at, 3, std::to_string(layer));
}

ops::ActivationMode mode_of(GraphContext& context, formats::StorageFormat format, const std::string& path,
                            Inputs inputs) {
  ops::ActivationMode mode = ops::ActivationMode::f32;
  switch (context.options.activations) {
    case Activations::automatic:
      mode = ops::automatic_mode(format);
      break;
    case Activations::f32:
      mode = ops::ActivationMode::f32;
      break;
    case Activations::bf16:
      mode = ops::ActivationMode::bf16;
      break;
    case Activations::int8:
      mode = ops::ActivationMode::int8;
      break;
    case Activations::int16:
      mode = ops::ActivationMode::int16;
      break;
  }
  if (!ops::supports(mode, format))
    throw_error(ErrorCode::unsupported,
                "{}: {} weights have no integer form, so activations cannot be {}; use --activations f32, "
                "bf16 or auto",
                printable(path), formats::name(format), ops::name(mode));
  context.modes.insert(mode);
  if (mode == ops::ActivationMode::int8 && inputs != Inputs::usual) return ops::ActivationMode::int16;
  return mode;
}

Inputs layer_inputs(const GraphContext& context, int64_t layer, Inputs elsewhere) {
  return layer + 1 == context.config.layers ? Inputs::finer : elsewhere;
}
Inputs feed_forward_inputs(const GraphContext& context, int64_t layer) {
  return layer < context.config.layers / 10 ? Inputs::finer : layer_inputs(context, layer, Inputs::usual);
}

Linear::Linear(GraphContext& context, const std::vector<MatrixPart>& parts,
               const std::vector<VectorPart>& bias, Inputs inputs) {
  const float* biases = bias.empty() ? nullptr : context.weights.vectors(bias);
  int64_t first = 0;
  for (const StoredMatrix& stored : context.weights.matrices(parts)) {
    ops::LinearPart part;
    part.weight = stored.matrix;
    part.mode = mode_of(context, stored.format, parts.front().path, inputs);
    part.bias = biases == nullptr ? nullptr : biases + first;
    if (inputs == Inputs::finer_but_first && context.options.activations != Activations::int16 &&
        part.mode == ops::ActivationMode::int16) {
      // A panel that the first part shares with the second is finer.
      const int64_t coarse = std::clamp<int64_t>(parts.front().packed_rows() - first, 0, stored.rows);
      part.coarse_rows = coarse == stored.rows ? coarse : coarse / ops::kPanelRows * ops::kPanelRows;
    }
    parts_.push_back(part);
    first += stored.rows;
  }
}

Linear::Linear(GraphContext& context, const StoredMatrix& matrix, const std::string& path, Inputs inputs) {
  ops::LinearPart part;
  part.weight = matrix.matrix;
  part.columns = matrix.rows;
  part.mode = mode_of(context, matrix.format, path, inputs);
  parts_.push_back(part);
}

Linear Linear::in_f32(GraphContext& context, const MatrixPart& part) {
  Linear linear;
  ops::LinearPart only;
  only.weight = context.weights.matrices({part}).front().matrix;
  linear.parts_.push_back(only);
  return linear;
}

ValueId prepared_form(GraphContext& context, ValueId x, ops::ActivationMode mode) {
  if (mode == ops::ActivationMode::f32) return x;
  const auto key = std::make_pair(x.index, static_cast<int>(mode));
  auto found = context.prepared.find(key);
  if (found == context.prepared.end())
    found = context.prepared
                .emplace(key, ops::prepare_activations(*context.builder, x, mode, context.options.isa))
                .first;
  return found->second;
}

bool Linear::can_fuse_gate_up(GraphContext& context, const std::vector<MatrixPart>& parts,
                              ops::ActivationFunction function) {
  return (function == ops::ActivationFunction::silu || function == ops::ActivationFunction::gelu_tanh) &&
         context.weights.can_share(parts, ops::PartOrder::interleaved);
}

Linear Linear::gate_up(GraphContext& context, const std::vector<MatrixPart>& parts,
                       const std::vector<VectorPart>& bias, ops::ActivationFunction function, Inputs inputs) {
  Linear linear;
  const float* biases = bias.empty() ? nullptr : context.weights.vectors(bias);
  const std::vector<StoredMatrix> stored = context.weights.matrices(parts, ops::PartOrder::interleaved);
  KVASIR_CHECK(stored.size() == 1 && stored[0].rows % 2 == 0);
  ops::LinearPart part;
  part.weight = stored[0].matrix;
  part.columns = stored[0].rows / 2;
  part.mode = mode_of(context, stored[0].format, parts.front().path, inputs);
  part.epilogue = function == ops::ActivationFunction::silu ? ops::Epilogue::swiglu : ops::Epilogue::geglu;
  part.bias = biases;
  linear.parts_.push_back(part);
  return linear;
}

ValueId Linear::apply(GraphContext& context, const std::string& name, ValueId x,
                      std::optional<ValueId> residual) const {
  ops::LinearInput input;
  input.x = x;
  for (const ops::LinearPart& part : parts_) {
    if (part.mode != ops::ActivationMode::f32)
      input.prepared[part.mode] = prepared_form(context, x, part.mode);
  }
  return ops::linear(*context.builder, name, input, parts_, residual, context.options.isa);
}

}  // namespace kvasir::models
