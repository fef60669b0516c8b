// The scan behind --check-tensors: numbers that no weight may hold (spec: formats.md 4.7).
#pragma once

#include "formats/storage_format.h"

namespace kvasir::formats {

// Reads all of a tensor. Throws Error{corrupt_file}: "tensor T: non-finite value at row R, column C: ..." for
// plain formats, and "tensor T, block N: invalid scale" for block formats and MLX groups whose scale or
// minimum is NaN or infinite, or a byte that encodes NaN. Formats without real numbers pass.
void check_finite(const WeightSource& source);

}  // namespace kvasir::formats
