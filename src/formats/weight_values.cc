// Values of whole tensors and parts of matrices.
#include "base/error.h"
#include "formats/checkpoint.h"
#include "formats/dequantize.h"

namespace kvasir::formats {

WeightSource row_range(const WeightSource& source, int64_t first, int64_t count) {
  KVASIR_CHECK_MSG(first >= 0 && count >= 0 && first <= source.rows - count, "{}: rows {} to {} of {}",
                   source.name, first, first + count, source.rows);
  WeightSource part = source;
  part.rows = count;
  const auto skip = static_cast<size_t>(first);
  if (part.data != nullptr) part.data += skip * source.row_bytes;
  part.first_row += first;
  if (info(source.format).block_elements != 0) return part;
  const size_t plane_row = static_cast<size_t>(source.cols / source.group_size) * size_of(source.scale_dtype);
  if (part.scales != nullptr) part.scales += skip * plane_row;
  if (part.biases != nullptr) part.biases += skip * plane_row;
  return part;
}

std::vector<float> Checkpoint::values(const TensorEntry& entry) const {
  const WeightSource source = weight(entry);
  const auto cols = static_cast<size_t>(source.cols);
  std::vector<float> out(static_cast<size_t>(source.rows) * cols);
  for (int64_t r = 0; r < source.rows; ++r)
    dequantize_row(source, r, std::span(out).subspan(static_cast<size_t>(r) * cols, cols));
  const std::vector<float> scales = tensor_scales(entry);
  for (size_t i = 0; i < out.size() && !scales.empty(); ++i)
    out[i] *= scales[i / (out.size() / scales.size())];
  return out;
}

}  // namespace kvasir::formats
