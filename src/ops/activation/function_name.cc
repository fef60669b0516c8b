// Apart from the op, so that reading a configuration needs no kernels.
#include "ops/activation/activation.h"

namespace kvasir::ops {

std::string_view name(ActivationFunction function) {
  switch (function) {
    case ActivationFunction::silu:
      return "silu";
    case ActivationFunction::gelu_tanh:
      return "gelu_tanh";
    case ActivationFunction::gelu_erf:
      return "gelu_erf";
    case ActivationFunction::relu2:
      return "relu2";
    case ActivationFunction::xielu:
      return "xielu";
  }
  return "?";
}

}  // namespace kvasir::ops
