// Reading of GGUF headers: every count, length and offset is checked against the bytes that are there before
// it is used.
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "formats/checked.h"
#include "formats/gguf.h"

namespace kvasir::formats {

static_assert(std::endian::native == std::endian::little,
              "the formats are read in place: little-endian hosts only");

namespace {

constexpr uint64_t kMinimalPair = 13;    // empty key, type, one byte of value
constexpr uint64_t kMinimalTensor = 24;  // empty name, dimension count, type, offset

// Bytes of one element; 0 for strings (8 at least) and arrays.
constexpr uint64_t fixed_size(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return 0;
}

}  // namespace

// Parses one part into a GgufFile.
class GgufParser {
 public:
  GgufParser(GgufFile* out, const MappedFile& file, uint32_t part, const ReadLimits& limits)
      : out_(*out), file_(printable(file.path())), bytes_(file.bytes()), part_(part), limits_(limits) {}

  // Metadata goes to `metadata` (part 1: the file's own), tensors are appended to the file's. Returns where
  // data begins.
  uint64_t parse(std::vector<GgufValue>* metadata);

  static GgufFile open(const std::filesystem::path& path, const ReadLimits& limits);

 private:
  template <typename... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...)));
  }

  uint64_t remaining() const { return bytes_.size() - position_; }
  const std::byte* take(uint64_t count, std::string_view what) {
    if (count > remaining())
      corrupt("truncated at byte {}: {}: expected {} bytes, got {}", position_, what, count, remaining());
    const std::byte* at = bytes_.data() + position_;
    position_ += count;
    return at;
  }
  template <typename T>
  T scalar(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  std::string_view string(std::string_view what) {
    const auto length = scalar<uint64_t>(what);
    if (length > remaining()) corrupt("string length {} exceeds file: {}", length, what);
    if (length > limits_.gguf_string_bytes)
      corrupt("string too long: {}: limit {} bytes, got {}", what, limits_.gguf_string_bytes, length);
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }
  uint64_t record_count(std::string_view what, uint64_t minimal_record, uint64_t limit);
  void header();
  GgufValue pair();
  void bools(const std::byte* data, uint64_t count, std::string_view key) const;
  void alignment(const std::vector<GgufValue>& metadata);
  void tensor_info();
  void place_tensors(size_t first);

  GgufFile& out_;
  std::string file_;
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
  uint32_t part_;
  const ReadLimits& limits_;
  uint64_t tensor_count_ = 0;
  uint64_t pair_count_ = 0;
  uint64_t alignment_ = 32;
  std::vector<uint64_t> relative_offsets_;  // as declared, until the data's beginning is known
};

uint64_t GgufParser::record_count(std::string_view what, uint64_t minimal_record, uint64_t limit) {
  const auto count = scalar<int64_t>(what);
  if (count < 0) corrupt("implausible count: {}: expected 0 or more, got {}", what, count);
  const auto value = static_cast<uint64_t>(count);
  if (value > limit) corrupt("implausible count: {}: limit {}, got {}", what, limit, value);
  uint64_t needed = 0;
  if (!checked_mul(value, minimal_record, &needed) || needed > bytes_.size() - position_)
    corrupt("truncated, or an implausible count: {}: {} cannot fit in the remaining {} bytes", what, value,
            remaining());
  return value;
}

void GgufParser::header() {
  if (bytes_.size() < 8 || std::memcmp(bytes_.data(), "GGUF", 4) != 0)
    corrupt("not a GGUF file: expected it to begin with \"GGUF\" and a version");
  position_ = 4;
  const auto version = scalar<uint32_t>("version");
  if ((version & 0xFFFFu) == 0)
    corrupt("byte order mismatch: this is a big-endian GGUF file, expected little endian (convert it)");
  if (version == 1)
    throw_error(ErrorCode::unsupported,
                "{}: GGUF version 1 is not supported: expected 2 or 3 (convert it again)", file_);
  if (version > 3)
    throw_error(ErrorCode::unsupported, "{}: GGUF version {} is newer than supported: expected 2 or 3", file_,
                version);
  if (part_ == 0) out_.version_ = version;
  tensor_count_ = record_count("tensor count", kMinimalTensor, limits_.tensors);
  pair_count_ = record_count("metadata count", kMinimalPair, limits_.gguf_pairs);
}

void GgufParser::bools(const std::byte* data, uint64_t count, std::string_view key) const {
  for (uint64_t i = 0; i < count; ++i)
    if (std::to_integer<unsigned>(data[i]) > 1)
      corrupt("invalid bool: {}: expected 0 or 1, got {}", printable(key),
              std::to_integer<unsigned>(data[i]));
}

GgufValue GgufParser::pair() {
  GgufValue value;
  value.key = string("metadata key");
  if (value.key.empty() || value.key.size() > limits_.gguf_key_bytes)
    corrupt("invalid metadata key at byte {}: expected 1 to {} bytes, got {}", position_ - value.key.size(),
            limits_.gguf_key_bytes, value.key.size());
  if (!simdjson::validate_utf8(value.key.data(), value.key.size()))
    corrupt("invalid metadata key at byte {}: expected UTF-8", position_ - value.key.size());
  const std::string key = printable(value.key);
  auto type_number = scalar<uint32_t>(key);
  if (type_number > static_cast<uint32_t>(GgufType::f64))
    corrupt("unknown metadata type: {}: expected 0 to 12, got {}", key, type_number);
  value.type = static_cast<GgufType>(type_number);
  if (value.type == GgufType::array) {
    value.is_array = true;
    type_number = scalar<uint32_t>(key);
    if (type_number > static_cast<uint32_t>(GgufType::f64) ||
        type_number == static_cast<uint32_t>(GgufType::array))
      corrupt("invalid array element type: {}: expected 0 to 12 but no nested array (9), got {}", key,
              type_number);
    value.type = static_cast<GgufType>(type_number);
    value.count = scalar<uint64_t>(key);
    if (value.count > limits_.gguf_array_elements)
      corrupt("array too long: {}: limit {} elements, got {}", key, limits_.gguf_array_elements, value.count);
  }
  const uint64_t size = fixed_size(value.type);
  // With at most 2^30 elements of at least 8 bytes the product cannot overflow; a raised limit is still
  // checked.
  uint64_t bytes = 0;
  if (!checked_mul(value.count, size == 0 ? 8 : size, &bytes) || bytes > remaining())
    corrupt("value exceeds file: {}: {} elements of {} cannot fit in the remaining {} bytes", key,
            value.count, name(value.type), remaining());
  value.data = bytes_.data() + position_;
  if (size != 0) {
    take(bytes, key);
    if (value.type == GgufType::boolean) bools(value.data, value.count, value.key);
    value.bytes = bytes;
    return value;
  }
  for (uint64_t i = 0; i < value.count; ++i) string(key);
  value.bytes = static_cast<uint64_t>(bytes_.data() + position_ - value.data);
  return value;
}

void GgufParser::alignment(const std::vector<GgufValue>& metadata) {
  for (const GgufValue& value : metadata) {
    if (value.key != "general.alignment") continue;
    if (value.is_array || value.type != GgufType::u32)
      corrupt("wrong type: general.alignment: expected u32, got {}{}", name(value.type),
              value.is_array ? " array" : "");
    uint32_t stored = 0;
    std::memcpy(&stored, value.data, sizeof stored);
    if (stored < 8 || !std::has_single_bit(stored))
      corrupt("invalid general.alignment: expected a power of two of at least 8, got {}", stored);
    alignment_ = stored;
  }
}

void GgufParser::tensor_info() {
  GgufTensor tensor;
  tensor.part = part_;
  tensor.name = string("tensor name");
  if (tensor.name.empty() || tensor.name.size() > 63)
    corrupt("invalid tensor name at byte {}: expected 1 to 63 bytes, got {}", position_ - tensor.name.size(),
            tensor.name.size());
  if (!simdjson::validate_utf8(tensor.name.data(), tensor.name.size()))
    corrupt("invalid tensor name at byte {}: expected UTF-8", position_ - tensor.name.size());
  const std::string name = printable(tensor.name);
  tensor.dimensions = scalar<uint32_t>(name);
  if (tensor.dimensions > 4)
    corrupt("tensor {}: expected at most 4 dimensions, got {}", name, tensor.dimensions);
  uint64_t elements = 1;
  for (uint32_t d = 0; d < tensor.dimensions; ++d) {
    tensor.ne[d] = scalar<int64_t>(name);
    if (tensor.ne[d] < 0)
      corrupt("tensor {}: dimension {}: expected 0 to {}, got {}", name, d, INT64_MAX,
              static_cast<uint64_t>(tensor.ne[d]));
    // An empty dimension counts as 1 here, so that the product of the others cannot overflow later.
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(tensor.ne[d], 1));
    if (!checked_mul(elements, factor, &elements) || elements > INT64_MAX)
      corrupt("tensor {}: the product of its dimensions overflows", name);
  }
  const auto type = scalar<uint32_t>(name);
  const std::optional<StorageFormat> format = storage_format_of_ggml_type(type);
  if (!format && (type == 9 || type == 15))
    throw_error(ErrorCode::unsupported,
                "{}: tensor {} has type {} ({}): an activation format that files do not hold", file_, name,
                type, type == 9 ? "q8_1" : "q8_K");
  if (!format)
    throw_error(ErrorCode::unsupported,
                "{}: tensor {} has unsupported type {}: expected one of ggml's (0 to 42)", file_, name, type);
  tensor.format = *format;
  const StorageFormatInfo& storage = info(*format);
  const auto block = static_cast<uint64_t>(storage.block_elements);
  if (static_cast<uint64_t>(tensor.ne[0]) % block != 0)
    corrupt("tensor {}: rows of {} elements: expected a multiple of {} for {}", name, tensor.ne[0], block,
            storage.name);
  bool fits = checked_mul(static_cast<uint64_t>(tensor.ne[0]) / block,
                          static_cast<uint64_t>(storage.block_bytes), &tensor.bytes);
  for (int d = 1; d < 4; ++d)
    fits = fits && checked_mul(tensor.bytes, static_cast<uint64_t>(tensor.ne[d]), &tensor.bytes);
  if (!fits) corrupt("tensor {}: its size in bytes overflows", name);
  relative_offsets_.push_back(scalar<uint64_t>(name));
  out_.tensors_.push_back(tensor);
}

// ggml's rule: tensors lie in the order of their infos, each at the next aligned offset, without holes.
void GgufParser::place_tensors(size_t first) {
  uint64_t data_begin = 0;
  if (!checked_align_up(position_, alignment_, &data_begin)) corrupt("the data's offset overflows");
  uint64_t expected = 0;
  for (size_t i = first; i < out_.tensors_.size(); ++i) {
    GgufTensor& tensor = out_.tensors_[i];
    const uint64_t got = relative_offsets_[i - first];
    if (got != expected)
      corrupt("invalid offset of tensor {}: expected {}, got {}", printable(tensor.name), expected, got);
    uint64_t end = 0;
    if (!checked_add(data_begin, expected, &tensor.offset) || !checked_add(tensor.offset, tensor.bytes, &end))
      corrupt("tensor {}: its end overflows", printable(tensor.name));
    if (end > bytes_.size())
      corrupt("tensor {} ends beyond the file: expected at least {} bytes, got {} (incomplete download?)",
              printable(tensor.name), end, bytes_.size());
    if (!checked_add(expected, tensor.bytes, &expected) || !checked_align_up(expected, alignment_, &expected))
      corrupt("tensor {}: the next offset overflows", printable(tensor.name));
  }
  position_ = std::min<uint64_t>(data_begin, bytes_.size());
}

uint64_t GgufParser::parse(std::vector<GgufValue>* metadata) {
  header();
  metadata->reserve(pair_count_);
  for (uint64_t i = 0; i < pair_count_; ++i) metadata->push_back(pair());
  alignment(*metadata);
  // Metadata may have used up bytes that the tensor count relied on.
  if (tensor_count_ * kMinimalTensor > remaining())
    corrupt("truncated, or an implausible count: tensor count: {} cannot fit in the remaining {} bytes",
            tensor_count_, remaining());
  const size_t first = out_.tensors_.size();
  if (tensor_count_ > limits_.tensors - std::min<uint64_t>(first, limits_.tensors))
    corrupt("too many tensors: limit {} for a model, got {}", limits_.tensors, first + tensor_count_);
  out_.tensors_.reserve(first + tensor_count_);
  relative_offsets_.reserve(tensor_count_);
  for (uint64_t i = 0; i < tensor_count_; ++i) tensor_info();
  place_tensors(first);
  return position_;
}

namespace {

// Indices of `items` sorted by `name_of`; *duplicate is set to an index whose name occurs twice.
template <typename Items, typename NameOf>
std::vector<uint32_t> sorted_by_name(const Items& items, NameOf name_of, std::optional<uint32_t>* duplicate) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(items[a]) < name_of(items[b]); });
  for (size_t i = 1; i < order.size(); ++i)
    if (name_of(items[order[i - 1]]) == name_of(items[order[i]])) *duplicate = order[i];
  return order;
}

std::string_view key_of(const GgufValue& value) {
  return value.key;
}
std::string_view name_of(const GgufTensor& tensor) {
  return tensor.name;
}

std::vector<uint32_t> index_keys(const std::vector<GgufValue>& metadata, const std::string& path) {
  std::optional<uint32_t> duplicate;
  std::vector<uint32_t> order = sorted_by_name(metadata, key_of, &duplicate);
  if (duplicate)
    throw_error(ErrorCode::corrupt_file, "{}: duplicate metadata key: {}: expected unique keys",
                printable(path), printable(metadata[*duplicate].key));
  return order;
}

// A non-negative integer among `metadata` (any integer type).
std::optional<uint64_t> split_value(const std::vector<GgufValue>& metadata, std::string_view key,
                                    const std::string& path) {
  for (const GgufValue& value : metadata) {
    if (value.key != key) continue;
    uint64_t raw = 0;
    const uint64_t size = fixed_size(value.type);
    const bool integer = !value.is_array && size != 0 && value.type != GgufType::boolean &&
                         value.type != GgufType::f32 && value.type != GgufType::f64;
    if (integer) std::memcpy(&raw, value.data, size);
    const bool is_signed = value.type == GgufType::i8 || value.type == GgufType::i16 ||
                           value.type == GgufType::i32 || value.type == GgufType::i64;
    if (!integer || (is_signed && (raw >> (8 * size - 1)) != 0))
      throw_error(ErrorCode::corrupt_file, "{}: wrong value: {}: expected a count", printable(path), key);
    return raw;
  }
  return std::nullopt;
}

std::string part_suffix(uint64_t number, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

}  // namespace

GgufFile GgufParser::open(const std::filesystem::path& path, const ReadLimits& limits) {
  GgufFile file;
  file.parts_.push_back({MappedFile::open(path), 0});
  {
    const MappedFile& mapped = file.parts_[0].file;
    const uint64_t data_begin = GgufParser(&file, mapped, 0, limits).parse(&file.metadata_);
    file.parts_[0].data_begin = data_begin;
  }
  const std::string first_path = file.path();
  file.keys_by_name_ = index_keys(file.metadata_, first_path);

  const uint64_t count = split_value(file.metadata_, "split.count", first_path).value_or(1);
  if (count > 1) {
    if (count > limits.shards)
      throw_error(ErrorCode::corrupt_file, "{}: split.count: limit {} parts, got {}", printable(first_path),
                  limits.shards, count);
    const std::optional<uint64_t> number = split_value(file.metadata_, "split.no", first_path);
    if (!number)
      throw_error(ErrorCode::corrupt_file,
                  "{}: metadata key split.no is missing: expected it beside split.count",
                  printable(first_path));
    const std::string name = path.filename().string();
    const std::string suffix = part_suffix(*number + 1, count);
    if (name.size() <= suffix.size() || !name.ends_with(suffix))
      throw_error(ErrorCode::invalid_input,
                  "{}: a split model's part is named \"<name>{}\": expected that ending",
                  printable(first_path), suffix);
    const std::string prefix = name.substr(0, name.size() - suffix.size());
    if (*number != 0)
      throw_error(ErrorCode::invalid_input, "{}: is part {} of {}: open part 1, {}", printable(first_path),
                  *number + 1, count, printable(prefix + part_suffix(1, count)));
    for (uint64_t p = 1; p < count; ++p) {
      const std::filesystem::path part_path = path.parent_path() / (prefix + part_suffix(p + 1, count));
      if (!std::filesystem::exists(part_path))
        throw_error(ErrorCode::not_found,
                    "{}: missing part {} of {}: expected it beside part 1 (incomplete download?)",
                    printable(part_path.string()), p + 1, count);
      file.parts_.push_back({MappedFile::open(part_path), 0});
      std::vector<GgufValue> metadata;
      const MappedFile& mapped = file.parts_.back().file;
      const uint64_t data_begin =
          GgufParser(&file, mapped, static_cast<uint32_t>(p), limits).parse(&metadata);
      file.parts_.back().data_begin = data_begin;
      index_keys(metadata, mapped.path());
      const auto part_number = split_value(metadata, "split.no", mapped.path());
      const auto part_count = split_value(metadata, "split.count", mapped.path());
      if (part_number != p || part_count != count)
        throw_error(ErrorCode::corrupt_file, "{}: split.no and split.count: expected {} of {}, got {} of {}",
                    printable(mapped.path()), p, count, part_number ? fmt::to_string(*part_number) : "none",
                    part_count ? fmt::to_string(*part_count) : "none");
    }
    const auto total = split_value(file.metadata_, "split.tensors.count", first_path);
    if (total != file.tensors_.size())
      throw_error(ErrorCode::corrupt_file,
                  "{}: split.tensors.count: expected {} (the tensors of all parts), got {}",
                  printable(first_path), file.tensors_.size(), total ? fmt::to_string(*total) : "none");
  }
  std::optional<uint32_t> duplicate;
  file.tensors_by_name_ = sorted_by_name(file.tensors_, name_of, &duplicate);
  if (duplicate) {
    const GgufTensor& tensor = file.tensors_[*duplicate];
    throw_error(ErrorCode::corrupt_file, "{}: duplicate tensor name: {}: expected unique names",
                printable(file.parts_[tensor.part].file.path()), printable(tensor.name));
  }
  return file;
}

GgufFile GgufFile::open(const std::filesystem::path& path, const ReadLimits& limits) {
  return GgufParser::open(path, limits);
}

}  // namespace kvasir::formats
