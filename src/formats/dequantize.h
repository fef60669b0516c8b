// The definition of every storage format's values, one row at a time, in plain scalar code. Everything that
// is fast is tested against these; they are bit-exact with ggml / the gguf package and with MLX in float32
// (spec: formats.md 2.3 and 4).
#pragma once

#include <span>

#include "formats/storage_format.h"

namespace kvasir::formats {

// Writes cols values of row `row`. out.size() == source.cols. tensor_scale is not applied. Throws
// Error{unsupported} for formats that hold no real numbers (bool, integers).
void dequantize_row(const WeightSource& source, int64_t row, std::span<float> out);

}  // namespace kvasir::formats
