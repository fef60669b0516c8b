// A linear projection: the only place that knows quantized weights, fused row ranges and activation modes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/modules/graph_context.h"

namespace kvasir::models {

// How closely mode int8 rounds a projection's inputs: as usual, or to 16 bits where that buys the most
// accuracy for the least time (docs/matmul.md): k, v, attention's output, the head, the whole last layer,
// whose errors nothing behind it evens out, and the feed-forward of the first tenth of the layers, whose
// errors go through all others. Other modes know no difference.
enum class Inputs : uint8_t { usual, finer, finer_but_first };  // finer_but_first: but for the first part
// Of a projection of a layer: finer in the last one, `elsewhere` in the others.
Inputs layer_inputs(const GraphContext& context, int64_t layer, Inputs elsewhere);
Inputs feed_forward_inputs(const GraphContext& context, int64_t layer);

class Linear {
 public:
  // Parts that share a layout are one product; the output columns are the parts' in order. bias: names of the
  // parts' biases (with the parts' row maps), or empty.
  Linear(GraphContext& context, const std::vector<MatrixPart>& parts, const std::vector<VectorPart>& bias,
         Inputs inputs);

  // gate and up with their activation function: fused into the product where both share a layout and the
  // function can be.
  static bool can_fuse_gate_up(GraphContext& context, const std::vector<MatrixPart>& parts,
                               ops::ActivationFunction function);
  static Linear gate_up(GraphContext& context, const std::vector<MatrixPart>& parts,
                        const std::vector<VectorPart>& bias, ops::ActivationFunction function, Inputs inputs);
  // A small matrix whose inputs are never rounded: a router.
  static Linear in_f32(GraphContext& context, const MatrixPart& part);
  // A matrix that is packed already: the tied head.
  Linear(GraphContext& context, const StoredMatrix& matrix, const std::string& path, Inputs inputs);

  program::ValueId apply(GraphContext& context, const std::string& name, program::ValueId x,
                         std::optional<program::ValueId> residual = std::nullopt) const;

 private:
  Linear() = default;
  std::vector<ops::LinearPart> parts_;
};

// x as products in `mode` read it; recorded once for every mode.
program::ValueId prepared_form(GraphContext& context, program::ValueId x, ops::ActivationMode mode);

// The activation mode of a weight. Throws Error{unsupported} naming `path` for int8 and int16 with a weight
// that has no integer form.
ops::ActivationMode mode_of(GraphContext& context, formats::StorageFormat format, const std::string& path,
                            Inputs inputs);

}  // namespace kvasir::models
