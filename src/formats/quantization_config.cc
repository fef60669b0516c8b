#include "formats/quantization_config.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace kvasir::formats {
namespace {

std::optional<StorageFormat> mode_from_name(std::string_view mode) {
  if (mode == "affine") return StorageFormat::mlx_affine;
  if (mode == "mxfp4") return StorageFormat::mlx_mxfp4;
  if (mode == "mxfp8") return StorageFormat::mlx_mxfp8;
  if (mode == "nvfp4") return StorageFormat::mlx_nvfp4;
  return std::nullopt;
}

std::string_view mode_name(StorageFormat mode) {
  return name(mode).substr(4);
}  // without "mlx-"

bool contains(std::initializer_list<int> values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// `path` is empty for the defaults.
void validate(const MlxQuantization& q, const std::string& file, std::string_view path) {
  const std::string where = path.empty()
                                ? printable(file) + ": quantization"
                                : fmt::format("{}: quantization of {}", printable(file), printable(path));
  const auto bad = [&](const std::string& message) {
    throw_error(ErrorCode::unsupported, "{}: {}", where, message);
  };
  if (q.mode == StorageFormat::mlx_affine) {
    if (!contains({32, 64, 128}, q.group_size))
      bad(fmt::format(
          "The requested group size {} is not supported. The supported group sizes are 32, 64, and 128.",
          q.group_size));
    if (!contains({2, 3, 4, 5, 6, 8}, q.bits))
      bad(fmt::format(
          "The requested number of bits {} is not supported. The supported bits are 2, 3, 4, 5, 6 and 8.",
          q.bits));
    return;
  }
  const int group = q.mode == StorageFormat::mlx_nvfp4 ? 16 : 32;
  const int bits = q.mode == StorageFormat::mlx_mxfp8 ? 8 : 4;
  if (q.group_size != group)
    bad(fmt::format("{} quantization requires group size {} but got {}", mode_name(q.mode), group,
                    q.group_size));
  if (q.bits != bits)
    bad(fmt::format("{} quantization requires bits to be {} but got {}", mode_name(q.mode), bits, q.bits));
}

// The three members of a section or an override. Those that are missing are what mlx-lm, which writes and
// reads them, takes: affine for a mode, the mode's own for sizes. An override inherits nothing of the
// section:
// {"group_size": 64, "bits": 8} of a mixture's router is affine, whatever mode the file is in.
MlxQuantization read_members(const nlohmann::json& object, const std::string& file, std::string_view path) {
  const std::string where =
      path.empty() ? "quantization" : fmt::format("quantization of {}", printable(path));
  const auto integer = [&](const char* key, int fallback) {
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return fallback;
    if (!at->is_number_integer() || *at < 0 || *at > 4096)
      throw_error(ErrorCode::corrupt_file, "{}: {}: {}: expected a small integer, got {}", printable(file),
                  where, key, printable(at->dump(-1, ' ', true)));
    return at->get<int>();
  };
  MlxQuantization out = mode_defaults(StorageFormat::mlx_affine);
  const auto mode = object.find("mode");
  if (mode != object.end() && !mode->is_null()) {
    const std::string text = mode->is_string() ? mode->get<std::string>() : mode->dump(-1, ' ', true);
    const auto known = mode_from_name(text);
    if (text == "trellis") refuse_quantization(file, "trellis", path.empty() ? "mode" : path);
    if (!known)
      throw_error(ErrorCode::unsupported,
                  "{}: {}: Invalid quantization mode '{}': expected affine, mxfp4, mxfp8 or nvfp4",
                  printable(file), where, printable(text));
    out = mode_defaults(*known);
  }
  out.bits = integer("bits", out.bits);
  out.group_size = integer("group_size", out.group_size);
  validate(out, file, path);
  return out;
}

// Whether another tool than MLX wrote the section.
bool is_foreign(const nlohmann::json& section) {
  const auto method = section.find("quant_method");
  return method != section.end() && method->is_string() && !method->get_ref<const std::string&>().empty();
}

const nlohmann::json* section_of(const nlohmann::json& record, const char* key) {
  const auto at = record.find(key);
  return at == record.end() || at->is_null() ? nullptr : &*at;
}

}  // namespace

MlxQuantization mode_defaults(StorageFormat mode) {
  switch (mode) {
    case StorageFormat::mlx_mxfp4:
      return {mode, 4, 32};
    case StorageFormat::mlx_mxfp8:
      return {mode, 8, 32};
    case StorageFormat::mlx_nvfp4:
      return {mode, 4, 16};
    default:
      return {StorageFormat::mlx_affine, 4, 64};
  }
}

std::string describe(const MlxQuantization& q) {
  return fmt::format("{} b{} g{}", mode_name(q.mode), q.bits, q.group_size);
}

QuantizationConfig QuantizationConfig::from_config(const nlohmann::json& config, const std::string& file) {
  QuantizationConfig out;
  const nlohmann::json* section = nullptr;
  const auto text = config.find("text_config");
  const nlohmann::json* records[2] = {&config, text != config.end() && text->is_object() ? &*text : nullptr};
  for (const nlohmann::json* record : records) {
    if (record == nullptr || section != nullptr) continue;
    const nlohmann::json* first = section_of(*record, "quantization");
    const nlohmann::json* second = section_of(*record, "quantization_config");
    if (first != nullptr && second != nullptr && *first != *second)
      throw_error(ErrorCode::corrupt_file,
                  "{}: quantization and quantization_config disagree: expected one of them or two equal ones",
                  printable(file));
    section = first != nullptr ? first : second;
  }
  if (section == nullptr) {
    // The older name of compressed-tensors' section, which does not name its method.
    const nlohmann::json* compression = section_of(config, "compression_config");
    if (compression == nullptr || !compression->is_object()) return out;
    nlohmann::json named = *compression;
    if (!is_foreign(named)) named["quant_method"] = "compressed-tensors";
    out.foreign_ = ForeignQuantization::from_section(named, file);
    return out;
  }
  if (!section->is_object())
    throw_error(ErrorCode::corrupt_file, "{}: quantization: expected an object", printable(file));
  // MLX's own mode under the other name: what its tools write of a checkpoint that came with the method.
  if (section->value("quant_method", nlohmann::json()) == "mxfp4") {
    nlohmann::json named = *section;
    if (!named.contains("mode")) named["mode"] = "mxfp4";
    out.defaults_ = read_members(named, file, {});
    return out;
  }
  if (is_foreign(*section)) {
    out.foreign_ = ForeignQuantization::from_section(*section, file);
    return out;
  }
  const auto activations = section->find("quantize_activations");
  if (activations != section->end() && activations->is_boolean() && activations->get<bool>())
    refuse_quantization(file, "quantize_activations", "activations encoded in the weights' mode");

  out.defaults_ = read_members(*section, file, {});
  for (const auto& [key, value] : section->items()) {
    if (key == "quantize_activations") continue;
    if (value.is_boolean())
      out.overrides_[key] = value.get<bool>() ? out.defaults_ : std::nullopt;
    else if (value.is_object())
      out.overrides_[key] = read_members(value, file, key);
  }
  return out;
}

QuantizationConfig::Spec QuantizationConfig::spec(std::string_view path) const {
  constexpr std::string_view kPrefix = "language_model.";
  auto at = overrides_.find(path);
  if (at == overrides_.end())
    at = path.starts_with(kPrefix) ? overrides_.find(path.substr(kPrefix.size()))
                                   : overrides_.find(std::string(kPrefix) + std::string(path));
  if (at == overrides_.end()) return {defaults_, false, nullptr};
  return {at->second, true, &at->first};
}

}  // namespace kvasir::formats
