#include "formats/gguf.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace kvasir::formats {
namespace {

struct GgmlType {
  uint32_t number;
  StorageFormat format;
};

// Every type that ggml writes to files today. 9 (Q8_1) and 15 (Q8_K) are activation formats; 4, 5, 31-33 and
// 36-38 were removed.
constexpr GgmlType kGgmlTypes[] = {
    {0, StorageFormat::f32},      {1, StorageFormat::f16},     {2, StorageFormat::q4_0},
    {3, StorageFormat::q4_1},     {6, StorageFormat::q5_0},    {7, StorageFormat::q5_1},
    {8, StorageFormat::q8_0},     {10, StorageFormat::q2_k},   {11, StorageFormat::q3_k},
    {12, StorageFormat::q4_k},    {13, StorageFormat::q5_k},   {14, StorageFormat::q6_k},
    {16, StorageFormat::iq2_xxs}, {17, StorageFormat::iq2_xs}, {18, StorageFormat::iq3_xxs},
    {19, StorageFormat::iq1_s},   {20, StorageFormat::iq4_nl}, {21, StorageFormat::iq3_s},
    {22, StorageFormat::iq2_s},   {23, StorageFormat::iq4_xs}, {24, StorageFormat::i8},
    {25, StorageFormat::i16},     {26, StorageFormat::i32},    {27, StorageFormat::i64},
    {28, StorageFormat::f64},     {29, StorageFormat::iq1_m},  {30, StorageFormat::bf16},
    {34, StorageFormat::tq1_0},   {35, StorageFormat::tq2_0},  {39, StorageFormat::mxfp4},
    {40, StorageFormat::nvfp4},   {41, StorageFormat::q1_0},   {42, StorageFormat::q2_0},
};

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Integer element `i` widened; nothing when the type is no integer. u64 above i64's range is marked by
// *too_large.
std::optional<int64_t> integer_at(const GgufValue& value, uint64_t i, bool* too_large) {
  switch (value.type) {
    case GgufType::u8:
      return load<uint8_t>(value.data + i);
    case GgufType::i8:
      return load<int8_t>(value.data + i);
    case GgufType::u16:
      return load<uint16_t>(value.data + 2 * i);
    case GgufType::i16:
      return load<int16_t>(value.data + 2 * i);
    case GgufType::u32:
      return load<uint32_t>(value.data + 4 * i);
    case GgufType::i32:
      return load<int32_t>(value.data + 4 * i);
    case GgufType::i64:
      return load<int64_t>(value.data + 8 * i);
    case GgufType::u64: {
      const auto raw = load<uint64_t>(value.data + 8 * i);
      *too_large = raw > INT64_MAX;
      return static_cast<int64_t>(raw);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> real_at(const GgufValue& value, uint64_t i) {
  if (value.type == GgufType::f32) return load<float>(value.data + 4 * i);
  if (value.type == GgufType::f64) return load<double>(value.data + 8 * i);
  return std::nullopt;
}

// The string at `at`, which the parser has checked; *at moves behind it.
std::string_view next_string(const std::byte** at) {
  const auto length = load<uint64_t>(*at);
  const std::string_view text(reinterpret_cast<const char*>(*at + 8), length);
  *at += 8 + length;
  return text;
}

}  // namespace

std::string_view name(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  return static_cast<size_t>(type) < std::size(kNames) ? kNames[static_cast<size_t>(type)] : "unknown";
}

std::optional<uint32_t> ggml_type_of(StorageFormat format) {
  for (const GgmlType& row : kGgmlTypes)
    if (row.format == format) return row.number;
  return std::nullopt;
}

std::optional<StorageFormat> storage_format_of_ggml_type(uint32_t type) {
  for (const GgmlType& row : kGgmlTypes)
    if (row.number == type) return row.format;
  return std::nullopt;
}

std::span<const std::byte> GgufFile::header(size_t index) const {
  KVASIR_CHECK(index < parts_.size());
  return parts_[index].file.bytes().first(parts_[index].data_begin);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto at = std::lower_bound(keys_by_name_.begin(), keys_by_name_.end(), key,
                                   [&](uint32_t i, std::string_view k) { return metadata_[i].key < k; });
  return at != keys_by_name_.end() && metadata_[*at].key == key ? &metadata_[*at] : nullptr;
}

void GgufFile::wrong_type(const GgufValue& value, std::string_view expected) const {
  throw_error(ErrorCode::corrupt_file, "{}: wrong type of metadata key: {}: expected {}, got {}{}",
              printable(path()), printable(value.key), expected, formats::name(value.type),
              value.is_array ? " array" : "");
}

void GgufFile::missing(std::string_view key) const {
  throw_error(ErrorCode::not_found, "{}: metadata key is missing: {}: the model needs it", printable(path()),
              printable(key));
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::string) wrong_type(*value, "string");
  const std::byte* at = value->data;
  return next_string(&at);
}

std::optional<int64_t> GgufFile::find_integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  bool too_large = false;
  const std::optional<int64_t> number = value->is_array ? std::nullopt : integer_at(*value, 0, &too_large);
  if (!number) wrong_type(*value, "an integer");
  if (too_large) wrong_type(*value, "an integer below 2^63");
  return number;
}

std::optional<uint64_t> GgufFile::find_count(std::string_view key) const {
  const std::optional<int64_t> number = find_integer(key);
  if (!number) return std::nullopt;
  if (*number < 0)
    throw_error(ErrorCode::corrupt_file, "{}: wrong value of metadata key: {}: expected 0 or more, got {}",
                printable(path()), printable(key), *number);
  return static_cast<uint64_t>(*number);
}

std::optional<double> GgufFile::find_real(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->is_array ? std::nullopt : real_at(*value, 0);
  if (!number) wrong_type(*value, "a real number");
  return number;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::boolean) wrong_type(*value, "bool");
  return load<uint8_t>(value->data) != 0;
}

std::string_view GgufFile::string(std::string_view key) const {
  if (const auto found = find_string(key)) return *found;
  missing(key);
}

uint64_t GgufFile::count(std::string_view key) const {
  if (const auto found = find_count(key)) return *found;
  missing(key);
}

double GgufFile::real(std::string_view key) const {
  if (const auto found = find_real(key)) return *found;
  missing(key);
}

std::optional<std::vector<std::string_view>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufType::string) wrong_type(*value, "string array");
  std::vector<std::string_view> out(value->count);
  const std::byte* at = value->data;
  for (std::string_view& text : out) text = next_string(&at);
  return out;
}

std::optional<std::vector<int64_t>> GgufFile::find_integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  bool too_large = false;
  std::vector<int64_t> out;
  if (value->is_array) out.reserve(value->count);
  for (uint64_t i = 0; i < (value->is_array ? value->count : 0); ++i) {
    const std::optional<int64_t> number = integer_at(*value, i, &too_large);
    if (!number || too_large) break;
    out.push_back(*number);
  }
  const bool integers = value->type != GgufType::boolean && value->type != GgufType::string &&
                        value->type != GgufType::f32 && value->type != GgufType::f64;
  if (!value->is_array || !integers || too_large) wrong_type(*value, "integer array");
  return out;
}

std::optional<std::vector<float>> GgufFile::find_reals(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array) wrong_type(*value, "array of real numbers");
  std::vector<float> out(value->count);
  if (value->type == GgufType::f32) {
    if (!out.empty()) std::memcpy(out.data(), value->data, 4 * out.size());
    return out;
  }
  bool too_large = false;
  for (uint64_t i = 0; i < value->count; ++i) {
    if (const auto number = real_at(*value, i))
      out[i] = static_cast<float>(*number);
    else if (const auto integer = integer_at(*value, i, &too_large); integer && !too_large)
      out[i] = static_cast<float>(*integer);
    else
      wrong_type(*value, "array of real numbers");
  }
  return out;
}

std::optional<std::vector<bool>> GgufFile::find_bools(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufType::boolean) wrong_type(*value, "bool array");
  std::vector<bool> out(value->count);
  for (uint64_t i = 0; i < value->count; ++i) out[i] = load<uint8_t>(value->data + i) != 0;
  return out;
}

std::optional<std::span<const uint8_t>> GgufFile::find_bytes(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || (value->type != GgufType::u8 && value->type != GgufType::i8))
    wrong_type(*value, "byte array");
  return std::span(reinterpret_cast<const uint8_t*>(value->data), value->count);
}

std::optional<std::vector<uint64_t>> GgufFile::find_counts_per_layer(std::string_view key,
                                                                     uint64_t layers) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array) return std::vector<uint64_t>(layers, *find_count(key));
  if (value->count != layers)
    throw_error(ErrorCode::corrupt_file,
                "{}: wrong length of metadata key: {}: expected {} (one a layer), got {}", printable(path()),
                printable(key), layers, value->count);
  const auto integers = find_integers(key);
  std::vector<uint64_t> out;
  out.reserve(layers);
  for (const int64_t number : *integers) {
    if (number < 0)
      throw_error(ErrorCode::corrupt_file, "{}: wrong value of metadata key: {}: expected 0 or more, got {}",
                  printable(path()), printable(key), number);
    out.push_back(static_cast<uint64_t>(number));
  }
  return out;
}

const GgufTensor* GgufFile::find_tensor(std::string_view wanted) const {
  const auto at = std::lower_bound(tensors_by_name_.begin(), tensors_by_name_.end(), wanted,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != tensors_by_name_.end() && tensors_[*at].name == wanted ? &tensors_[*at] : nullptr;
}

const GgufTensor& GgufFile::tensor(std::string_view wanted) const {
  if (const GgufTensor* found = find_tensor(wanted)) return *found;
  throw_error(ErrorCode::not_found, "{}: tensor is missing: {}: the model needs it", printable(path()),
              printable(wanted));
}

std::span<const std::byte> GgufFile::data(const GgufTensor& tensor) const {
  data_opens_->fetch_add(1);
  return parts_[tensor.part].file.bytes().subspan(tensor.offset, tensor.bytes);
}

WeightSource GgufFile::weight(const GgufTensor& tensor) const {
  WeightSource source;
  source.name = std::string(tensor.name);
  source.format = tensor.format;
  source.cols = tensor.ne[0];
  source.rows = tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
  const StorageFormatInfo& storage = info(tensor.format);
  source.row_bytes =
      static_cast<size_t>(tensor.ne[0] / storage.block_elements) * static_cast<size_t>(storage.block_bytes);
  source.data = data(tensor).data();
  return source;
}

}  // namespace kvasir::formats
