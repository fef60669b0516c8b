#include "formats/foreign_quantization.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace kvasir::formats {
namespace {

using nlohmann::json;

constexpr std::string_view kSupported =
    "MLX affine (2, 3, 4, 5, 6, 8 bits), mxfp4, mxfp8, nvfp4; awq (4 bits, gemm), gptq (2, 4, 8 bits), "
    "compressed-tensors (pack-quantized, int-quantized, float-quantized, naive-quantized, "
    "nvfp4-pack-quantized, "
    "mxfp4-pack-quantized), fp8, modelopt (NVFP4); or unquantized f32, f16, bf16";

const json* member(const json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string show(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace

void refuse_quantization(const std::string& file, std::string_view method, std::string_view detail) {
  throw_error(ErrorCode::unsupported, "{}: quantization \"{}\"{} is not supported: expected {}",
              printable(file), printable(method),
              detail.empty() ? "" : fmt::format(" ({})", printable(detail)), kSupported);
}

// Members of one section, with the file and the method that messages name.
class ForeignReader {
 public:
  ForeignReader(const json& object, const std::string& file, const std::string& method)
      : object_(object), file_(file), method_(method) {}

  [[noreturn]] void refuse(std::string_view detail) const { refuse_quantization(file_, method_, detail); }

  int64_t integer(const char* key, std::optional<int64_t> fallback) const {
    const json* value = member(object_, key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_integer() || *value < -1 || *value > 65536)
      malformed(key, "a small integer", value);
    return value->get<int64_t>();
  }
  bool flag(const char* key, bool fallback) const {
    const json* value = member(object_, key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) malformed(key, "true or false", value);
    return value->get<bool>();
  }
  std::string text(const char* key, std::string fallback) const {
    const json* value = member(object_, key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) malformed(key, "a string", value);
    return value->get<std::string>();
  }
  // Columns per scale: a multiple of 32, or 0 for one scale a row (stored as -1).
  int group_size(const char* key, std::optional<int64_t> fallback) const {
    const int64_t size = integer(key, fallback);
    if (size == -1) return 0;
    if (size <= 0 || size % 32 != 0) refuse(fmt::format("group size {}", size));
    return static_cast<int>(size);
  }
  // Rows and columns under one scale.
  std::pair<int, int> block(const char* key) const {
    const json* value = find(key);
    const auto is_size = [](const json& n) { return n.is_number_integer() && n > 0 && n <= 65536; };
    if (value == nullptr || !value->is_array() || value->size() != 2 || !is_size((*value)[0]) ||
        !is_size((*value)[1]))
      malformed(key, "two sizes", value);
    const int cols = (*value)[1].get<int>();
    if (cols % 32 != 0) refuse(fmt::format("blocks of {} columns", cols));
    return {(*value)[0].get<int>(), cols};
  }
  [[noreturn]] void malformed(const char* key, std::string_view expected, const json* got) const {
    throw_error(ErrorCode::corrupt_file, "{}: quantization {}: {}: expected {}, got {}", printable(file_),
                printable(method_), key, expected, got == nullptr ? "none" : printable(show(*got)));
  }
  const json* find(const char* key) const { return member(object_, key); }

 private:
  const json& object_;
  const std::string& file_;
  const std::string& method_;
};

namespace {

ForeignScheme awq(const ForeignReader& section) {
  ForeignScheme scheme{.layout = ForeignLayout::awq};
  // The method's own library had names of its own for both.
  const auto either = [&](const char* key, const char* older) {
    return section.find(key) == nullptr && section.find(older) != nullptr ? older : key;
  };
  const int64_t bits = section.integer(either("bits", "w_bit"), std::nullopt);
  if (bits != 4) section.refuse(fmt::format("{} bits", bits));
  std::string version = section.text("version", "gemm");
  std::transform(version.begin(), version.end(), version.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (version != "gemm") section.refuse("version " + version);
  const std::string backend = section.text("backend", "autoawq");
  if (backend != "autoawq") section.refuse("backend " + backend);
  scheme.group_size = section.group_size(either("group_size", "q_group_size"), std::nullopt);
  scheme.symmetric = !section.flag("zero_point", true);
  return scheme;
}

ForeignScheme gptq(const ForeignReader& section) {
  ForeignScheme scheme{.layout = ForeignLayout::gptq};
  scheme.bits = static_cast<int>(section.integer("bits", std::nullopt));
  if (scheme.bits != 2 && scheme.bits != 4 && scheme.bits != 8)
    section.refuse(fmt::format("{} bits", scheme.bits));
  scheme.group_size = section.group_size("group_size", std::nullopt);
  // With static_groups the codes were chosen in that order, but a column's group is where it stands.
  if (section.flag("desc_act", false) && !section.flag("static_groups", false) && scheme.group_size > 0)
    section.refuse("desc_act: columns in the order of their activations");
  const char* key = section.find("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  const std::string format = section.text(key, "gptq");
  if (format != "gptq" && format != "gptq_v2") section.refuse("checkpoint_format " + format);
  if (section.flag("is_marlin_format", false)) section.refuse("marlin");
  if (const json* overrides = section.find("dynamic"); overrides != nullptr && !overrides->empty())
    section.refuse("dynamic: sizes that differ between modules");
  scheme.zero_plus_one = format == "gptq";
  scheme.symmetric = section.flag("sym", true);
  return scheme;
}

ForeignScheme fp8(const ForeignReader& section) {
  ForeignScheme scheme{.layout = ForeignLayout::fp8, .bits = 8, .symmetric = true};
  const std::string format = section.text("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn") section.refuse("fmt " + format);
  if (section.find("weight_block_size") != nullptr)
    std::tie(scheme.block_rows, scheme.block_cols) = section.block("weight_block_size");
  return scheme;
}

ForeignScheme modelopt(const ForeignReader& section) {
  const std::string algorithm = section.text("quant_algo", "");
  if (algorithm != "NVFP4") section.refuse("quant_algo " + algorithm);
  if (const int64_t group = section.integer("group_size", 16); group != 16)
    section.refuse(fmt::format("group size {}", group));
  return {.layout = ForeignLayout::nvfp4_times, .bits = 4, .group_size = 16, .symmetric = true};
}

// One of compressed-tensors' config_groups: its `weights`.
ForeignScheme compressed(const ForeignReader& weights, const std::string& format) {
  ForeignScheme scheme;
  scheme.bits = static_cast<int>(weights.integer("num_bits", 8));
  scheme.symmetric = weights.flag("symmetric", true);
  const std::string type = weights.text("type", "int");
  const bool floats = type == "float";
  if (!floats && type != "int") weights.refuse("type " + type);
  const std::string strategy =
      weights.text("strategy", weights.find("group_size") != nullptr ? "group" : "tensor");
  const std::string shown = fmt::format("{}, {} {} bits, strategy {}", format, type, scheme.bits, strategy);
  if (const json* order = weights.find("actorder"); order != nullptr) {
    const bool columns_stay = order->is_string() && (*order == "static" || *order == "weight");
    if (!columns_stay && *order != false)
      weights.refuse("actorder: columns in the order of their activations");
  }
  const bool naive = format == "naive-quantized";
  if (format == "pack-quantized") {
    scheme.layout = ForeignLayout::packed;
    if (floats || (scheme.bits != 4 && scheme.bits != 8)) weights.refuse(shown);
  } else if ((format == "int-quantized" || naive) && !floats) {
    scheme.layout = ForeignLayout::integer;
    if (scheme.bits != 8) weights.refuse(shown);
  } else if ((format == "float-quantized" || naive) && floats) {
    scheme.layout = ForeignLayout::fp8;
    if (scheme.bits != 8 || !scheme.symmetric) weights.refuse(shown);
  } else if (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized") {
    const bool nv = format.front() == 'n';
    scheme.layout = nv ? ForeignLayout::nvfp4_divided : ForeignLayout::mxfp4;
    scheme.group_size = nv ? 16 : 32;
    if (weights.integer("group_size", scheme.group_size) != scheme.group_size || scheme.bits != 4)
      weights.refuse(shown);
    return scheme;
  } else {
    weights.refuse(format.empty() ? "no format" : "format " + format);
  }
  if (strategy == "block" && scheme.layout == ForeignLayout::fp8) {
    std::tie(scheme.block_rows, scheme.block_cols) = weights.block("block_structure");
  } else if (strategy == "group" && scheme.layout != ForeignLayout::fp8) {
    scheme.group_size = weights.group_size("group_size", std::nullopt);
  } else if (strategy != "channel" && strategy != "tensor") {
    weights.refuse(shown);
  }
  return scheme;
}

}  // namespace

bool ForeignQuantization::Names::match(std::string_view path) const {
  return std::find(exact.begin(), exact.end(), path) != exact.end() ||
         std::any_of(patterns.begin(), patterns.end(),
                     [&](const Pattern& p) { return p.matches_start(path); });
}

ForeignQuantization::Names ForeignQuantization::names(const json& list, const std::string& file,
                                                      bool targets) {
  constexpr size_t kMostNames = 100'000;
  if (!list.is_array() || list.size() > kMostNames)
    throw_error(ErrorCode::corrupt_file,
                "{}: quantization: expected a list of at most {} module names, got {}", printable(file),
                kMostNames, list.is_array() ? "more" : printable(show(list)));
  Names names;
  for (const json& entry : list) {
    if (!entry.is_string())
      throw_error(ErrorCode::corrupt_file, "{}: quantization: expected the name of a module, got {}",
                  printable(file), printable(show(entry)));
    const std::string text = entry.get<std::string>();
    const bool is_class = !text.empty() && text[0] >= 'A' && text[0] <= 'Z' && text.find('.') == text.npos;
    if (text.starts_with("re:"))
      names.patterns.emplace_back(std::string_view(text).substr(3), file);
    else if (text == "Linear")
      names.linear = true;
    else if (is_class && targets)
      throw_error(ErrorCode::unsupported,
                  "{}: quantization of modules of class {} is not supported: expected Linear, names or re:",
                  printable(file), printable(text));
    else
      names.exact.push_back(text);
  }
  return names;
}

void ForeignQuantization::add_group(const json& group, const std::string& format, const std::string& file) {
  const ForeignReader reader(group, file, method_);
  const json* weights = reader.find("weights");
  if (weights == nullptr || !weights->is_object()) reader.malformed("weights", "an object", weights);
  Group out;
  out.scheme = compressed(ForeignReader(*weights, file, method_), reader.text("format", format));
  const json* targets = reader.find("targets");
  if (targets == nullptr) reader.malformed("targets", "a list", nullptr);
  out.targets = names(*targets, file, true);
  groups_.push_back(std::move(out));
}

ForeignQuantization ForeignQuantization::from_section(const json& section, const std::string& file) {
  ForeignQuantization out;
  const json* method = member(section, "quant_method");
  out.method_ = method != nullptr && method->is_string() ? method->get<std::string>() : std::string();
  const ForeignReader reader(section, file, out.method_);
  for (const char* key : {"ignore", "modules_to_not_convert", "exclude_modules"})
    if (const json* list = reader.find(key)) {
      Names more = names(*list, file, false);
      out.ignore_.exact.insert(out.ignore_.exact.end(), more.exact.begin(), more.exact.end());
      out.ignore_.patterns.insert(out.ignore_.patterns.end(), more.patterns.begin(), more.patterns.end());
    }
  const auto everywhere = [&](const ForeignScheme& scheme) {
    Group group{.scheme = scheme, .targets = {}};
    group.targets.linear = true;
    out.groups_.push_back(std::move(group));
  };
  if (out.method_ == "awq") {
    everywhere(awq(reader));
  } else if (out.method_ == "gptq") {
    everywhere(gptq(reader));
  } else if (out.method_ == "fp8") {
    everywhere(fp8(reader));
  } else if (out.method_ == "modelopt") {
    everywhere(modelopt(reader));
  } else if (out.method_ == "compressed-tensors") {
    const std::string format = reader.text("format", "");
    if (const json* sparsity = reader.find("sparsity_config"); sparsity != nullptr && sparsity->is_object())
      if (const json* kind = member(*sparsity, "format"); kind != nullptr && *kind != "dense")
        reader.refuse("sparsity " + show(*kind));
    if (const json* transform = reader.find("transform_config"); transform != nullptr && !transform->empty())
      if (const json* groups = member(*transform, "config_groups"); groups == nullptr || !groups->empty())
        reader.refuse("transform_config: rotated weights");
    const json* groups = reader.find("config_groups");
    if (groups == nullptr || !groups->is_object() || groups->empty())
      reader.malformed("config_groups", "an object with a group", groups);
    for (const auto& [key, group] : groups->items()) {
      if (!group.is_object()) reader.malformed("config_groups", "an object a group", &group);
      out.add_group(group, format, file);
    }
  } else {
    std::string detail;
    if (const json* format = reader.find("format"); format != nullptr && format->is_string())
      detail = format->get<std::string>();
    refuse_quantization(file, out.method_, detail);
  }
  return out;
}

const ForeignScheme* ForeignQuantization::scheme(std::string_view path) const {
  for (const Group& group : groups_)
    if (group.targets.match(path)) return &group.scheme;
  for (const Group& group : groups_)
    if (group.targets.linear) return &group.scheme;
  return nullptr;
}

bool ForeignQuantization::ignored(std::string_view path) const {
  return ignore_.match(path);
}

}  // namespace kvasir::formats
