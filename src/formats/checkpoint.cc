#include "formats/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/json.h"

namespace kvasir::formats {
namespace {

namespace fs = std::filesystem;

bool begins_with_gguf(const fs::path& path) {
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::memcmp(magic, "GGUF", 4) == 0;
}

// Part 2 and later of a split model, by name.
bool is_later_part(const std::string& name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (name.size() < kPattern.size()) return false;
  const std::string_view tail = std::string_view(name).substr(name.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i)
    if (kPattern[i] == '0' ? (tail[i] < '0' || tail[i] > '9') : tail[i] != kPattern[i]) return false;
  return tail.substr(1, 5) != "00001";
}

constexpr char kAdapterConfig[] = "adapter_config.json";

// The one GGUF model in a folder without config.json.
fs::path gguf_in_folder(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf") && !is_later_part(name) && name.find("mmproj") == std::string::npos)
      found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return folder / found[0];
  if (found.empty() && fs::exists(folder / kAdapterConfig))
    throw_error(ErrorCode::unsupported,
                "{}: is an adapter ({}), not a model; adapters are not supported: name a model that it is "
                "merged into",
                printable(folder.string()), kAdapterConfig);
  if (found.empty())
    throw_error(ErrorCode::not_found,
                "{}: no model: expected config.json with model*.safetensors, or a .gguf file",
                printable(folder.string()));
  std::string list;
  for (const std::string& name : found) list += (list.empty() ? "" : "\n") + printable(name);
  throw Error(ErrorCode::invalid_input,
              fmt::format("{}: {} GGUF models in this folder: name one of them", printable(folder.string()),
                          found.size()),
              std::move(list));
}

// GGUF repositories often carry the config.json of the model that they were made from.
bool holds_only_gguf_weights(const fs::path& folder) {
  bool gguf = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") return false;
    gguf = gguf || name.ends_with(".gguf");
  }
  return gguf;
}

std::optional<fs::path> if_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? std::optional(path) : std::nullopt;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool is_float(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::f16 || dtype == SafetensorsDtype::bf16 || dtype == SafetensorsDtype::f32;
}

bool scale_dtype_fits(StorageFormat mode, SafetensorsDtype dtype) {
  switch (mode) {
    case StorageFormat::mlx_affine:
      return is_float(dtype);
    case StorageFormat::mlx_nvfp4:
      return dtype == SafetensorsDtype::u8 || dtype == SafetensorsDtype::f8_e4m3;
    default:
      return dtype == SafetensorsDtype::u8 || dtype == SafetensorsDtype::f8_e8m0;
  }
}

Dtype scale_dtype_of(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::f16:
      return Dtype::f16;
    case SafetensorsDtype::bf16:
      return Dtype::bf16;
    case SafetensorsDtype::f32:
      return Dtype::f32;
    default:
      return Dtype::u8;
  }
}

constexpr std::string_view kWeight = ".weight";

std::string_view module_of(std::string_view tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

// Names that give a quantization away where config.json says nothing of one.
void refuse_without_section(const SafetensorsTensor& tensor, const fs::path& path) {
  const auto has = [&](std::string_view part) { return tensor.name.find(part) != std::string_view::npos; };
  const std::string_view method = tensor.name.ends_with(".absmax") || has(".quant_state.") ? "bitsandbytes"
                                  : tensor.name.ends_with(".qweight")                      ? "awq or gptq"
                                  : tensor.name.ends_with(".weight_packed") ? "compressed-tensors"
                                                                            : "";
  if (!method.empty())
    refuse_quantization((path / "config.json").string(), method,
                        fmt::format("tensor {} without a quantization_config", printable(tensor.name)));
}

}  // namespace

std::string_view name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::gguf:
      return "gguf";
    case CheckpointKind::safetensors:
      return "safetensors";
    case CheckpointKind::mlx:
      return "mlx";
  }
  return "unknown";
}

int64_t TensorEntry::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

AuxiliaryFiles find_auxiliary_files(const fs::path& folder) {
  AuxiliaryFiles files;
  files.tokenizer_json = if_file(folder / "tokenizer.json");
  files.tokenizer_config = if_file(folder / "tokenizer_config.json");
  files.special_tokens_map = if_file(folder / "special_tokens_map.json");
  files.added_tokens = if_file(folder / "added_tokens.json");
  files.generation_config = if_file(folder / "generation_config.json");
  files.kv_config = if_file(folder / "kv_config.json");
  files.preprocessor_config = if_file(folder / "preprocessor_config.json");
  files.processor_config = if_file(folder / "processor_config.json");
  files.chat_template_jinja = if_file(folder / "chat_template.jinja");
  files.chat_template_json = if_file(folder / "chat_template.json");
  files.has_vision_sidecar = if_file(folder / "optiq_vision.safetensors").has_value();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", ignored))
    if (entry.path().extension() == ".jinja" && entry.is_regular_file(ignored))
      files.additional_templates.emplace(entry.path().stem().string(), entry.path());
  if (!files.tokenizer_json)
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().filename() == "tokenizer.model" || entry.path().extension() == ".tiktoken")
        files.foreign_tokenizer = entry.path().filename().string();
  return files;
}

std::string AuxiliaryFiles::text_problem() const {
  if (tokenizer_json) return {};
  return fmt::format("has no tokenizer.json{}",
                     foreign_tokenizer.empty()
                         ? ""
                         : fmt::format(": {} is of another kind, convert it with transformers",
                                       printable(foreign_tokenizer)));
}

std::string Checkpoint::text_problem() const {
  if (!gguf_) return files_.text_problem();
  return gguf_->find("tokenizer.ggml.tokens") == nullptr ? "has no vocabulary (tokenizer.ggml.tokens)" : "";
}

Checkpoint Checkpoint::open(const fs::path& path, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.options_ = options;
  checkpoint.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    throw_error(ErrorCode::not_found, "{}: no such file or folder: expected a GGUF file or a model folder",
                printable(path.string()));
  fs::path gguf_path;
  if (fs::is_directory(status)) {
    if (fs::exists(path / "config.json") && !holds_only_gguf_weights(path)) {
      checkpoint.open_folder();
      return checkpoint;
    }
    if (fs::is_symlink(path / "config.json") && !fs::exists(path / "config.json"))
      throw_error(ErrorCode::not_found, "{}: snapshot incomplete: missing config.json (incomplete download?)",
                  printable(path.string()));
    gguf_path = gguf_in_folder(path);
  } else if (path.extension() == ".gguf" || (fs::is_regular_file(status) && begins_with_gguf(path))) {
    gguf_path = path;
  } else {
    throw_error(ErrorCode::corrupt_file,
                "{}: is no GGUF file: expected one, or a folder with config.json and safetensors",
                printable(path.string()));
  }
  checkpoint.path_ = gguf_path;
  checkpoint.kind_ = CheckpointKind::gguf;
  checkpoint.gguf_ = std::make_unique<GgufFile>(GgufFile::open(gguf_path, options.limits));
  checkpoint.header_opens_ = checkpoint.gguf_->parts();
  return checkpoint;
}

void Checkpoint::open_folder() {
  const fs::path config_path = path_ / "config.json";
  config_text_ = read_file(config_path, options_.limits.config_bytes);
  config_ = parse_json(config_text_, config_path.string(), options_.limits.json_depth);
  if (!config_.is_object())
    throw_error(ErrorCode::corrupt_file, "{}: expected a JSON object, got {}",
                printable(config_path.string()), config_.type_name());
  quantization_ = QuantizationConfig::from_config(config_, config_path.string());
  if (quantization_.present()) kind_ = CheckpointKind::mlx;
  files_ = find_auxiliary_files(path_);
  if (fs::exists(path_ / kAdapterConfig))
    warnings_.push_back(fmt::format("{}: ignored: the model beside it runs without the adapter",
                                    printable((path_ / kAdapterConfig).string())));
  if (!files_.generation_config) return;
  try {
    generation_config_ =
        read_json_file(*files_.generation_config, options_.limits.config_bytes, options_.limits.json_depth);
    if (!generation_config_.is_object()) {
      generation_config_ = nullptr;
      warnings_.push_back(
          fmt::format("{}: is no JSON object: ignored", printable(files_.generation_config->string())));
    } else if (const auto ids = generation_config_.find("eos_token_id");
               ids != generation_config_.end() && !token_ids(*ids)) {
      warnings_.push_back(fmt::format("{}: eos_token_id is {}, expected {}: ignored",
                                      printable(files_.generation_config->string()), shown(*ids), kTokenIds));
      generation_config_.erase(ids);
    }
  } catch (const Error& problem) {
    warnings_.push_back(fmt::format("{}: ignored", problem.what()));
  }
}

void Checkpoint::read_headers() {
  if (has_headers_) return;
  if (gguf_)
    catalogue_gguf();
  else
    catalogue_safetensors();
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  has_headers_ = true;
}

void Checkpoint::catalogue_gguf() {
  for (const GgufTensor& tensor : gguf_->tensors()) {
    // The scales of an NVFP4 weight belong to it.
    const size_t dot = tensor.name.rfind('.');
    if (dot != std::string_view::npos &&
        (tensor.name.substr(dot) == ".scale" || tensor.name.substr(dot) == ".input_scale")) {
      const GgufTensor* weight =
          gguf_->find_tensor(std::string(tensor.name.substr(0, dot)) + std::string(kWeight));
      if (weight != nullptr && weight->format == StorageFormat::nvfp4) continue;
    }
    TensorEntry entry;
    entry.name = std::string(tensor.name);
    entry.format = tensor.format;
    for (uint32_t d = tensor.dimensions; d > 0; --d) entry.shape.push_back(tensor.ne[d - 1]);
    entry.stored_bytes = tensor.bytes;
    entry.file = gguf_->part(tensor.part).path();
    tensors_.push_back(std::move(entry));
  }
}

const SafetensorsTensor* Checkpoint::companion(std::string_view path, std::string_view suffix) const {
  return safetensors_->find(std::string(path) + std::string(suffix));
}

TensorEntry Checkpoint::mlx_entry(const SafetensorsTensor& weight, const std::string& path) const {
  const SafetensorsTensor& scales = *companion(path, ".scales");
  const SafetensorsTensor* biases = companion(path, ".biases");
  const SafetensorsTensor* global = companion(path, ".global_scale");
  const std::string& file = safetensors_->file(weight.file).path();
  const QuantizationConfig::Spec spec = quantization_.spec(path);
  const auto corrupt = [&](const std::string& message) {
    throw_error(ErrorCode::corrupt_file, "{}: {}", printable(file), message);
  };
  if (!spec.quantization)
    corrupt(fmt::format("quantized tensor without quantization spec: {}", printable(path)));
  if (weight.dtype != SafetensorsDtype::u32)
    corrupt(fmt::format("{}.weight: expected packed U32 beside its scales, got {}", printable(path),
                        info(weight.dtype).name));
  const size_t rank = weight.shape.size();
  if (rank < 2 || scales.shape.size() != rank ||
      !std::equal(weight.shape.begin(), weight.shape.end() - 1, scales.shape.begin()) ||
      scales.shape.back() == 0)
    corrupt(fmt::format("{}: packed shape {} does not match scales {}", printable(path),
                        shape_text(weight.shape), shape_text(scales.shape)));
  TensorEntry entry;
  entry.name = std::string(weight.name);
  entry.file = file;
  entry.quantization = spec.quantization;
  entry.quantization_stated = spec.stated;
  const MlxQuantization& q = *entry.quantization;
  entry.format = q.mode;
  const auto bits = static_cast<uint64_t>(q.bits);
  const auto packed_bits = static_cast<uint64_t>(weight.shape.back()) * 32;  // below 2^58
  const auto width = static_cast<uint64_t>(scales.shape.back()) * static_cast<uint64_t>(q.group_size);
  const bool shapes_agree = packed_bits == width * bits;
  const bool dtypes_agree = scale_dtype_fits(q.mode, scales.dtype);
  if (!shapes_agree || !dtypes_agree) {
    if (spec.stated && !dtypes_agree)
      corrupt(fmt::format("{}.scales: dtype {} does not fit mode {}", printable(path),
                          info(scales.dtype).name, describe(q)));
    if (spec.stated)
      corrupt(fmt::format("{}: packed shape {} does not match scales {} for bits {}, group {}",
                          printable(path), shape_text(weight.shape), shape_text(scales.shape), q.bits,
                          q.group_size));
    entry.needs_width = true;
  }
  // Whether the mode has biases follows from the dtype of the scales, even where the sizes are still unknown.
  const bool affine = is_float(scales.dtype);
  if (affine != (biases != nullptr))
    corrupt(fmt::format(
        "{}.biases: {}", printable(path),
        affine ? "missing: affine quantization needs them" : "present: expected none beside U8 scales"));
  if (biases != nullptr &&
      (biases->dtype != scales.dtype ||
       !std::equal(biases->shape.begin(), biases->shape.end(), scales.shape.begin(), scales.shape.end())))
    corrupt(fmt::format("{}.biases: expected {} {} as the scales, got {} {}", printable(path),
                        info(scales.dtype).name, shape_text(scales.shape), info(biases->dtype).name,
                        shape_text(biases->shape)));
  entry.shape.assign(weight.shape.begin(), weight.shape.end());
  entry.shape.back() = static_cast<int64_t>(width);
  if (global != nullptr) {
    uint64_t slabs = 1;
    for (size_t d = 0; d + 2 < rank; ++d) slabs *= static_cast<uint64_t>(weight.shape[d]);
    const uint64_t count = global->bytes / 4;
    if (global->dtype != SafetensorsDtype::f32 || (count != 1 && count != slabs))
      corrupt(fmt::format("{}.global_scale: expected one F32 or {}, got {} {}", printable(path), slabs,
                          info(global->dtype).name, shape_text(global->shape)));
  }
  entry.stored_bytes = weight.bytes + scales.bytes + (biases != nullptr ? biases->bytes : 0) +
                       (global != nullptr ? global->bytes : 0);
  return entry;
}

void Checkpoint::catalogue_safetensors() {
  safetensors_ = std::make_unique<SafetensorsModel>(SafetensorsModel::open_folder(
      path_, {.lenient = options_.lenient_safetensors, .limits = options_.limits}));
  header_opens_ += safetensors_->files();
  warnings_.insert(warnings_.end(), safetensors_->warnings().begin(), safetensors_->warnings().end());
  for (size_t f = 0; f < safetensors_->files(); ++f)
    for (const auto& [key, value] : safetensors_->file(f).metadata())
      if (key == "format" && value == "mlx") kind_ = CheckpointKind::mlx;

  std::vector<std::string> used_keys;
  for (const SafetensorsTensor& tensor : safetensors_->tensors()) {
    if (quantization_.foreign() != nullptr) {
      bool plain = false;
      std::optional<TensorEntry> entry = foreign_entry(tensor, plain);
      if (entry) tensors_.push_back(std::move(*entry));
      if (!plain) continue;
    } else {
      refuse_without_section(tensor, path_);
    }
    const size_t dot = tensor.name.rfind('.');
    const std::string_view suffix =
        dot == std::string_view::npos ? std::string_view() : tensor.name.substr(dot);
    if (suffix == ".scales" || suffix == ".biases" || suffix == ".global_scale") {
      const SafetensorsTensor* weight = companion(tensor.name.substr(0, dot), kWeight);
      if (weight != nullptr && companion(tensor.name.substr(0, dot), ".scales") != nullptr)
        continue;  // part of a triplet
    }
    if (suffix == kWeight) {
      const std::string path(module_of(tensor.name));
      if (const QuantizationConfig::Spec spec = quantization_.spec(path); spec.key != nullptr)
        used_keys.push_back(*spec.key);
      if (companion(path, ".scales") != nullptr) {
        tensors_.push_back(mlx_entry(tensor, path));
        continue;
      }
      if (tensor.dtype == SafetensorsDtype::u32)
        throw_error(ErrorCode::corrupt_file, "{}: {}.weight is packed but {}.scales is missing",
                    printable(safetensors_->file(tensor.file).path()), printable(path), printable(path));
    }
    TensorEntry entry;
    entry.name = std::string(tensor.name);
    entry.shape.assign(tensor.shape.begin(), tensor.shape.end());
    entry.stored_bytes = tensor.bytes;
    entry.file = safetensors_->file(tensor.file).path();
    const SafetensorsDtypeInfo& dtype = info(tensor.dtype);
    if (!dtype.format)
      throw_error(ErrorCode::unsupported, "{}: tensor {}: dtype {} is not supported", printable(entry.file),
                  printable(entry.name), dtype.name);
    entry.format = *dtype.format;
    tensors_.push_back(std::move(entry));
  }

  std::sort(used_keys.begin(), used_keys.end());
  std::string unused;
  int count = 0;
  for (const auto& [key, value] : quantization_.overrides())
    if (!std::binary_search(used_keys.begin(), used_keys.end(), key) && ++count <= 12)
      unused += (unused.empty() ? "" : ", ") + printable(key);
  if (count > 0)
    warnings_.push_back(fmt::format("{}: {} quantization overrides match no module: {}{}",
                                    printable(path_.string()), count, unused, count > 12 ? ", ..." : ""));
}

std::span<const TensorEntry> Checkpoint::tensors() const {
  KVASIR_CHECK(has_headers_);
  return tensors_;
}

const TensorEntry* Checkpoint::find(std::string_view wanted) const {
  KVASIR_CHECK(has_headers_);
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), wanted,
                       [](const TensorEntry& entry, std::string_view n) { return entry.name < n; });
  return at != tensors_.end() && at->name == wanted ? &*at : nullptr;
}

const TensorEntry& Checkpoint::tensor(std::string_view wanted) const {
  if (const TensorEntry* found = find(wanted)) return *found;
  throw_error(ErrorCode::not_found, "{}: tensor is missing: {}: the model needs it",
              printable(path_.string()), printable(wanted));
}

TensorEntry Checkpoint::with_width(const TensorEntry& entry, int64_t in) {
  if (entry.cols() == in && !entry.needs_width) return entry;
  const auto mismatch = [&] {
    throw_error(ErrorCode::corrupt_file, "{}: tensor {}: wrong input width{}: expected {}, got {}",
                printable(entry.file), printable(entry.name),
                entry.quantization ? fmt::format(" with {}", describe(*entry.quantization)) : "", in,
                entry.cols());
  };
  if (!entry.quantization || entry.quantization_stated || in <= 0) mismatch();
  // formats.md 2.4: g = in / scales.last, b = weight.last * 32 / in.
  const std::string path(module_of(entry.name));
  const SafetensorsTensor& weight = safetensors_->tensor(entry.name);
  const SafetensorsTensor& scales = *companion(path, ".scales");
  const int64_t packed_bits = weight.shape.back() * 32;
  if (in % scales.shape.back() != 0 || packed_bits % in != 0) mismatch();
  const int64_t group = in / scales.shape.back();
  const int64_t bits = packed_bits / in;
  MlxQuantization inferred;
  inferred.bits = static_cast<int>(std::min<int64_t>(bits, 64));
  inferred.group_size = static_cast<int>(std::min<int64_t>(group, 1 << 20));
  const bool affine = is_float(scales.dtype);
  if (affine)
    inferred.mode = StorageFormat::mlx_affine;
  else if (bits == 4 && group == 16)
    inferred.mode = StorageFormat::mlx_nvfp4;
  else if (bits == 4 && group == 32)
    inferred.mode = StorageFormat::mlx_mxfp4;
  else if (bits == 8 && group == 32)
    inferred.mode = StorageFormat::mlx_mxfp8;
  else
    mismatch();
  const bool known_bits = bits >= 2 && bits <= 8 && bits != 7;
  if (affine && (!known_bits || (group != 32 && group != 64 && group != 128))) mismatch();
  if (!scale_dtype_fits(inferred.mode, scales.dtype)) mismatch();
  const std::string_view kWarning = "the quantization defaults do not fit";
  if (std::none_of(warnings_.begin(), warnings_.end(),
                   [&](const std::string& w) { return w.find(kWarning) != w.npos; }))
    warnings_.push_back(fmt::format("{}: {} {}: read as {} (and so on for others)", printable(path_.string()),
                                    kWarning, printable(path), describe(inferred)));
  TensorEntry out = entry;
  out.quantization = inferred;
  out.format = inferred.mode;
  out.shape.back() = in;
  out.needs_width = false;
  return out;
}

WeightSource Checkpoint::layout(const TensorEntry& entry) const {
  if (entry.needs_width)
    throw_error(ErrorCode::corrupt_file,
                "{}: tensor {}: its shapes contradict the quantization defaults ({})", printable(entry.file),
                printable(entry.name), describe(*entry.quantization));
  WeightSource source;
  source.name = entry.name;
  source.format = entry.format;
  source.rows = entry.rows();
  source.cols = entry.cols();
  if (entry.foreign) return foreign_layout(*entry.foreign, entry.name);
  if (!entry.quantization) {
    const StorageFormatInfo& storage = info(entry.format);
    source.row_bytes =
        static_cast<size_t>(source.cols / storage.block_elements) * static_cast<size_t>(storage.block_bytes);
    source.own_scale = entry.format == StorageFormat::nvfp4 && gguf_ &&
                       gguf_->find_tensor(std::string(module_of(entry.name)) + ".scale") != nullptr;
    return source;
  }
  source.bits = entry.quantization->bits;
  source.group_size = entry.quantization->group_size;
  source.row_bytes = static_cast<size_t>(source.cols) * static_cast<size_t>(source.bits) / 8;
  source.scale_dtype = scale_dtype_of(companion(module_of(entry.name), ".scales")->dtype);
  source.own_scale = companion(module_of(entry.name), ".global_scale") != nullptr;
  return source;
}

WeightSource Checkpoint::weight(const TensorEntry& entry) const {
  if (entry.foreign) return convert_foreign(*safetensors_, *entry.foreign, entry.name);
  WeightSource source = layout(entry);
  if (gguf_) {
    source.data = gguf_->data(gguf_->tensor(entry.name)).data();
  } else {
    source.data = safetensors_->data(safetensors_->tensor(entry.name)).data();
    if (entry.quantization) {
      const std::string_view path = module_of(entry.name);
      source.scales = safetensors_->data(*companion(path, ".scales")).data();
      const SafetensorsTensor* biases = companion(path, ".biases");
      if (biases != nullptr) source.biases = safetensors_->data(*biases).data();
    }
  }
  const std::vector<float> scales = tensor_scales(entry);
  if (scales.size() == 1) source.tensor_scale = scales[0];
  return source;
}

std::vector<float> Checkpoint::tensor_scales(const TensorEntry& entry) const {
  if (entry.foreign) {
    if (entry.foreign->global == nullptr) return {};
    return {convert_foreign(*safetensors_, *entry.foreign, entry.name).tensor_scale};
  }
  std::span<const std::byte> stored;
  float factor = 1.0f;
  if (entry.format == StorageFormat::nvfp4 && gguf_) {
    const GgufTensor* scale = gguf_->find_tensor(std::string(module_of(entry.name)) + ".scale");
    if (scale == nullptr) return {};
    uint64_t slabs = 1;
    for (size_t d = 0; d + 2 < entry.shape.size(); ++d) slabs *= static_cast<uint64_t>(entry.shape[d]);
    if (scale->format != StorageFormat::f32 || (scale->bytes != 4 && scale->bytes != 4 * slabs))
      throw_error(ErrorCode::corrupt_file, "{}: tensor {}: expected one f32 or {}, got {} bytes of {}",
                  printable(entry.file), printable(scale->name), slabs, scale->bytes,
                  formats::name(scale->format));
    stored = gguf_->data(*scale);
  } else if (entry.format == StorageFormat::mlx_nvfp4) {
    const SafetensorsTensor* global = companion(module_of(entry.name), ".global_scale");
    if (global == nullptr) return {};
    stored = safetensors_->data(*global);
    factor = 2688.0f;  // the stored value is the tensor's largest magnitude: 448 (E4M3) * 6 (E2M1)
                       // (formats.md 2.3)
  }
  if (stored.empty()) return {};
  std::vector<float> scales(stored.size() / 4);
  std::memcpy(scales.data(), stored.data(), 4 * scales.size());
  for (float& scale : scales) scale /= factor;
  return scales;
}

void Checkpoint::visit_stored_bytes(const TensorEntry& entry,
                                    const std::function<void(std::span<const std::byte>)>& visit) const {
  if (gguf_) {
    visit(gguf_->data(gguf_->tensor(entry.name)));
    const GgufTensor* scale = entry.format == StorageFormat::nvfp4
                                  ? gguf_->find_tensor(std::string(module_of(entry.name)) + ".scale")
                                  : nullptr;
    if (scale != nullptr) visit(gguf_->data(*scale));
    return;
  }
  if (entry.foreign) {
    const ForeignTensor& t = *entry.foreign;
    for (const SafetensorsTensor* part : {t.codes, t.scales, t.zeros, t.order, t.shape, t.global})
      if (part != nullptr) visit(safetensors_->data(*part));
    return;
  }
  visit(safetensors_->data(safetensors_->tensor(entry.name)));
  if (!entry.quantization) return;
  for (const std::string_view suffix : {".scales", ".biases", ".global_scale"})
    if (const SafetensorsTensor* part = companion(module_of(entry.name), suffix))
      visit(safetensors_->data(*part));
}

uint64_t Checkpoint::data_opens() const {
  if (gguf_) return gguf_->data_opens();
  return safetensors_ ? safetensors_->data_opens() : 0;
}

}  // namespace kvasir::formats
