#include "ops/matmul/activation_mode.h"

namespace kvasir::ops {

std::string_view name(ActivationMode mode) {
  switch (mode) {
    case ActivationMode::f32:
      return "f32";
    case ActivationMode::bf16:
      return "bf16";
    case ActivationMode::int8:
      return "int8";
    case ActivationMode::int16:
      return "int16";
  }
  return "?";
}

bool supports(ActivationMode mode, formats::StorageFormat format) {
  const bool integers = mode == ActivationMode::int8 || mode == ActivationMode::int16;
  return !integers || formats::info(format).has_integer_form;
}

ActivationMode automatic_mode(formats::StorageFormat format) {
  if (formats::info(format).has_integer_form) return ActivationMode::int8;
  if (format == formats::StorageFormat::f32 || format == formats::StorageFormat::f64)
    return ActivationMode::f32;
  return ActivationMode::bf16;
}

}  // namespace kvasir::ops
