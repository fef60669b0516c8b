// Checkpoints of other quantization tools: which stored tensors make up a module.
#include "base/error.h"
#include "formats/checkpoint.h"

namespace kvasir::formats {

std::optional<TensorEntry> Checkpoint::foreign_entry(const SafetensorsTensor& tensor, bool& plain) const {
  const ForeignQuantization& section = *quantization_.foreign();
  const size_t dot = tensor.name.rfind('.');
  plain = dot == std::string_view::npos;
  if (plain) return std::nullopt;
  const std::string path(tensor.name.substr(0, dot));
  const std::string_view suffix = tensor.name.substr(dot);
  const auto has = [&](std::string_view other) { return companion(path, other) != nullptr; };
  // fp8, int8 and ModelOpt's keep the codes under the plain name, beside their scales.
  const bool scaled_weight =
      suffix == ".weight" && (has(".weight_scale") || has(".weight_scale_inv")) && !has(".weight_packed");
  if (!is_foreign_codes(suffix) && !scaled_weight) {
    if (suffix == ".weight" && (has(".qweight") || has(".weight_packed")))
      throw_error(ErrorCode::corrupt_file, "{}: {}.weight: expected none beside its packed form",
                  printable(safetensors_->file(tensor.file).path()), printable(path));
    if (suffix == ".weight" && info(tensor.dtype).format && tensor.dtype != SafetensorsDtype::f16 &&
        tensor.dtype != SafetensorsDtype::bf16 && tensor.dtype != SafetensorsDtype::f32)
      throw_error(ErrorCode::corrupt_file, "{}: {}.weight is {} and {}.weight_scale is missing",
                  printable(safetensors_->file(tensor.file).path()), printable(path), info(tensor.dtype).name,
                  printable(path));
    const bool has_codes = has(".qweight") || has(".weight_packed") || has(".weight");
    // Scales of a quantized cache lie beside the attention, which has no codes of its own.
    const bool of_cache = suffix == ".k_scale" || suffix == ".v_scale" || suffix == ".q_scale";
    plain = !is_foreign_companion(suffix) || !(has_codes || of_cache);
    return std::nullopt;
  }
  const std::string& file = safetensors_->file(tensor.file).path();
  if (section.ignored(path))
    throw_error(ErrorCode::corrupt_file, "{}: {} is listed as not quantized, but {} is stored",
                printable(file), printable(path), printable(tensor.name));
  const ForeignScheme* scheme = section.scheme(path);
  if (scheme == nullptr)
    throw_error(ErrorCode::corrupt_file, "{}: quantized tensor without quantization spec: {}",
                printable(file), printable(path));
  auto foreign = std::make_shared<ForeignTensor>(read_foreign(*safetensors_, path, *scheme));
  TensorEntry entry;
  entry.name = path + ".weight";
  entry.format = foreign->format();
  entry.shape = {foreign->rows, foreign->cols};
  entry.stored_bytes = foreign->stored_bytes();
  entry.file = file;
  entry.foreign = std::move(foreign);
  return entry;
}

}  // namespace kvasir::formats
