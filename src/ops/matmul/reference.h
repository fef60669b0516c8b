// The plain definition of a matrix product with prepared activations, in f64 from de-quantized rows: what
// tests compare the kernels with.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "formats/dequantize.h"
#include "ops/matmul/activation_mode.h"

namespace kvasir::ops {

// An input row as its mode rounds it, as real numbers.
inline std::vector<double> rounded_row(ActivationMode mode, const float* x, int64_t cols) {
  std::vector<double> row(static_cast<size_t>(cols));
  for (int64_t b = 0; b < cols; b += 32) {
    float amax = 0;
    for (int64_t c = b; c < cols && c < b + 32; ++c) amax = std::max(amax, std::fabs(x[c]));
    for (int64_t c = b; c < cols && c < b + 32; ++c) {
      double value = x[c];
      if (mode == ActivationMode::bf16) value = bf16_to_f32(f32_to_bf16(x[c]));
      if (mode == ActivationMode::int8)
        value = amax == 0 ? 0.0 : std::nearbyint(x[c] * (127.0f / amax)) * static_cast<double>(amax / 127.0f);
      if (mode == ActivationMode::int16 && amax == 0) value = 0;
      if (mode == ActivationMode::int16 && amax != 0) {
        const double in_codes = x[c] * (127.0f / amax), code = std::nearbyint(in_codes);
        const double rest = std::nearbyint(254 * (in_codes - code));
        value = (code + rest / 254) * static_cast<double>(amax / 127.0f);
      }
      row[static_cast<size_t>(c)] = value;
    }
  }
  return row;
}

struct ReferenceValue {
  double value = 0;      // sum of w * x
  double magnitude = 0;  // sum of |w| * |x|, by which rounding errors are bounded
};

// [rows][source.rows]
inline std::vector<ReferenceValue> reference_matmul(ActivationMode mode, const float* input, int64_t rows,
                                                    const formats::WeightSource& source) {
  std::vector<std::vector<double>> x;
  for (int64_t r = 0; r < rows; ++r) x.push_back(rounded_row(mode, input + r * source.cols, source.cols));
  std::vector<ReferenceValue> out(static_cast<size_t>(rows * source.rows));
  std::vector<float> w(static_cast<size_t>(source.cols));
  for (int64_t o = 0; o < source.rows; ++o) {
    formats::dequantize_row(source, o, w);
    for (int64_t r = 0; r < rows; ++r) {
      ReferenceValue& sum = out[static_cast<size_t>(r * source.rows + o)];
      for (size_t c = 0; c < w.size(); ++c) {
        const double product = static_cast<double>(w[c]) * x[static_cast<size_t>(r)][c];
        sum.value += product;
        sum.magnitude += std::fabs(product);
      }
    }
  }
  return out;
}

}  // namespace kvasir::ops
