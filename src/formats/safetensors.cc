#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "formats/checked.h"
#include "formats/json_scanner.h"

namespace kvasir::formats {
namespace {

using D = SafetensorsDtype;
using F = StorageFormat;

constexpr std::array kDtypes = std::to_array<SafetensorsDtypeInfo>({
    {D::f4, "F4", 4, std::nullopt},
    {D::f6_e2m3, "F6_E2M3", 6, std::nullopt},
    {D::f6_e3m2, "F6_E3M2", 6, std::nullopt},
    {D::boolean, "BOOL", 8, F::boolean},
    {D::u8, "U8", 8, F::u8},
    {D::i8, "I8", 8, F::i8},
    {D::f8_e5m2, "F8_E5M2", 8, F::f8_e5m2},
    {D::f8_e4m3, "F8_E4M3", 8, F::f8_e4m3},
    {D::f8_e8m0, "F8_E8M0", 8, std::nullopt},
    {D::f8_e4m3fnuz, "F8_E4M3FNUZ", 8, std::nullopt},
    {D::f8_e5m2fnuz, "F8_E5M2FNUZ", 8, std::nullopt},
    {D::i16, "I16", 16, F::i16},
    {D::u16, "U16", 16, F::u16},
    {D::f16, "F16", 16, F::f16},
    {D::bf16, "BF16", 16, F::bf16},
    {D::i32, "I32", 32, F::i32},
    {D::u32, "U32", 32, F::u32},
    {D::f32, "F32", 32, F::f32},
    {D::i64, "I64", 64, F::i64},
    {D::u64, "U64", 64, F::u64},
    {D::f64, "F64", 64, F::f64},
    {D::c64, "C64", 64, std::nullopt},
});

constexpr bool in_enumeration_order() {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (static_cast<size_t>(kDtypes[i].dtype) != i) return false;
  return kDtypes.size() == static_cast<size_t>(D::c64) + 1;
}
static_assert(in_enumeration_order());

constexpr uint64_t kLargestInteger = uint64_t{1} << 53;  // exclusive: what every JSON reader holds exactly
constexpr size_t kMostDimensions =
    32;  // far beyond any tensor; bounds what a hostile header can make us store

}  // namespace

const SafetensorsDtypeInfo& info(SafetensorsDtype dtype) {
  KVASIR_CHECK(static_cast<size_t>(dtype) < kDtypes.size());
  return kDtypes[static_cast<size_t>(dtype)];
}

std::optional<SafetensorsDtype> safetensors_dtype_from_name(std::string_view name) {
  for (const SafetensorsDtypeInfo& row : kDtypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::optional<SafetensorsDtype> safetensors_dtype_of(StorageFormat format) {
  for (const SafetensorsDtypeInfo& row : kDtypes)
    if (row.format == format) return row.dtype;
  return std::nullopt;
}

// Parses the header of one file.
class SafetensorsParser {
 public:
  SafetensorsParser(SafetensorsFile* out, const SafetensorsOptions& options)
      : out_(*out), options_(options), file_(printable(out->path())) {}

  void parse();

 private:
  template <typename... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...)));
  }
  void metadata(JsonScanner& scanner);
  void entry(JsonScanner& scanner, std::string_view name);
  uint64_t integer(JsonScanner& scanner, std::string_view name) const;
  void check_layout();

  struct Entry {
    size_t first_dimension;
    size_t dimensions;
  };

  SafetensorsFile& out_;
  const SafetensorsOptions& options_;
  std::string file_;
  std::vector<Entry> entries_;
};

uint64_t SafetensorsParser::integer(JsonScanner& scanner, std::string_view name) const {
  if (scanner.peek() != JsonScanner::Kind::number)
    corrupt("invalid tensor info: {}: expected an integer", printable(name));
  const JsonScanner::Number number = scanner.number();
  if (number.form != JsonScanner::Number::Form::i64 || number.i64 < 0 ||
      static_cast<uint64_t>(number.i64) >= kLargestInteger)
    corrupt("invalid tensor info: {}: expected integers from 0 to 2^53 - 1", printable(name));
  return static_cast<uint64_t>(number.i64);
}

void SafetensorsParser::metadata(JsonScanner& scanner) {
  if (scanner.peek() != JsonScanner::Kind::object) scanner.fail("__metadata__ is no object");
  scanner.begin_object();
  std::string_view key;
  while (scanner.next_key(&key)) {
    std::string owned(key);
    if (scanner.peek() != JsonScanner::Kind::string)
      scanner.fail(fmt::format("value of \"{}\" in __metadata__ is no string", printable(owned)));
    out_.metadata_.emplace_back(std::move(owned), std::string(scanner.string()));
  }
  std::vector<std::string_view> keys;
  keys.reserve(out_.metadata_.size());
  for (const auto& [name, value] : out_.metadata_) keys.push_back(name);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end())
    scanner.fail(fmt::format("duplicate key \"{}\" in __metadata__", printable(*twice)));
}

void SafetensorsParser::entry(JsonScanner& scanner, std::string_view name) {
  SafetensorsTensor tensor;
  tensor.name = name;
  Entry entry = {out_.dimensions_.size(), 0};
  uint64_t begin = 0;
  uint64_t end = 0;
  bool have_dtype = false;
  bool have_shape = false;
  bool have_offsets = false;
  const auto once = [&](bool* have, std::string_view field) {
    if (*have) scanner.fail(fmt::format("tensor \"{}\" has two fields \"{}\"", printable(name), field));
    *have = true;
  };
  if (scanner.peek() != JsonScanner::Kind::object)
    scanner.fail(fmt::format("entry \"{}\" is no object", printable(name)));
  scanner.begin_object();
  std::string_view field;
  while (scanner.next_key(&field)) {
    if (field == "dtype") {
      once(&have_dtype, "dtype");
      if (scanner.peek() != JsonScanner::Kind::string)
        corrupt("invalid tensor info: {}: dtype is no string", printable(name));
      const std::string_view dtype = scanner.string();
      const auto known = safetensors_dtype_from_name(dtype);
      if (!known) corrupt("invalid tensor info: {}: unknown dtype \"{}\"", printable(name), printable(dtype));
      tensor.dtype = *known;
    } else if (field == "shape") {
      once(&have_shape, "shape");
      if (scanner.peek() != JsonScanner::Kind::array)
        corrupt("invalid tensor info: {}: shape is no array", printable(name));
      scanner.begin_array();
      while (scanner.next_element()) {
        if (++entry.dimensions > kMostDimensions)
          corrupt("invalid tensor info: {}: more than {} dimensions", printable(name), kMostDimensions);
        out_.dimensions_.push_back(static_cast<int64_t>(integer(scanner, name)));
      }
    } else if (field == "data_offsets") {
      once(&have_offsets, "data_offsets");
      if (scanner.peek() != JsonScanner::Kind::array)
        corrupt("invalid tensor info: {}: data_offsets is no array", printable(name));
      scanner.begin_array();
      uint64_t offsets[2] = {};
      size_t count = 0;
      for (; scanner.next_element(); ++count) {
        if (count == 2) corrupt("invalid tensor info: {}: data_offsets holds more than two", printable(name));
        offsets[count] = integer(scanner, name);
      }
      if (count != 2)
        corrupt("invalid tensor info: {}: data_offsets: expected two, got {}", printable(name), count);
      begin = offsets[0];
      end = offsets[1];
    } else {
      scanner.fail(
          fmt::format("tensor \"{}\" has an unknown field \"{}\"", printable(name), printable(field)));
    }
  }
  if (!have_dtype || !have_shape || !have_offsets)
    scanner.fail(fmt::format("tensor \"{}\" lacks the field \"{}\"", printable(name),
                             !have_dtype   ? "dtype"
                             : !have_shape ? "shape"
                                           : "data_offsets"));
  if (begin > end)
    corrupt("invalid tensor info: {}: data_offsets end before they begin ({}, {})", printable(name), begin,
            end);
  uint64_t bits = info(tensor.dtype).bits;
  for (size_t i = 0; i < entry.dimensions; ++i)
    if (!checked_mul(bits, static_cast<uint64_t>(out_.dimensions_[entry.first_dimension + i]), &bits))
      corrupt("tensor size overflow: {}", printable(name));
  if (bits % 8 != 0)
    corrupt("misaligned sub-byte tensor: {}: {} bits are no whole bytes", printable(name), bits);
  if (end - begin != bits / 8)
    corrupt("tensor {}: shape needs {} bytes, offsets give {}", printable(name), bits / 8, end - begin);
  tensor.offset = begin;
  tensor.bytes = end - begin;
  if (out_.tensors_.size() >= options_.limits.tensors)
    corrupt("too many tensors: limit {}", options_.limits.tensors);
  out_.tensors_.push_back(tensor);
  entries_.push_back(entry);
}

void SafetensorsParser::check_layout() {
  const uint64_t data_bytes = out_.file_.size() - out_.data_begin_;
  uint64_t covered = 0;
  for (const SafetensorsTensor& tensor : out_.tensors_) {
    if (options_.lenient && tensor.bytes == 0 && tensor.offset <= data_bytes) continue;
    const uint64_t end = tensor.offset + tensor.bytes;  // both below 2^53
    if (options_.lenient ? tensor.offset < covered : tensor.offset != covered)
      corrupt("invalid offset for tensor {}: expected {}{}, got {}", printable(tensor.name), covered,
              options_.lenient ? " or more" : "", tensor.offset);
    if (end > data_bytes)
      corrupt("tensor {} ends beyond the file: expected at least {} bytes, got {} (incomplete download?)",
              printable(tensor.name), out_.data_begin_ + end, out_.file_.size());
    covered = end;
  }
  if (!options_.lenient && covered != data_bytes)
    corrupt("file not fully covered: {} trailing bytes", data_bytes - covered);
}

void SafetensorsParser::parse() {
  const std::span<const std::byte> bytes = out_.file_.bytes();
  if (bytes.size() < 8) corrupt("header too small: expected at least 8 bytes, got {}", bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > options_.limits.safetensors_header_bytes)
    corrupt("header too large: {} bytes, limit {}", length, options_.limits.safetensors_header_bytes);
  if (length > bytes.size() - 8)
    corrupt("invalid header length: {} bytes in a file of {} (incomplete download?)", length, bytes.size());
  out_.data_begin_ = 8 + length;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  JsonScanner scanner(
      text, out_.path(),
      {.depth = 4, .non_finite = false, .byte_order_mark = false, .error_prefix = "invalid header"});
  if (!text.starts_with('{')) scanner.fail("the first byte is no '{'", 0);
  scanner.begin_object();
  bool have_metadata = false;
  std::string_view key;
  bool view = false;  // into the mapping
  while (scanner.next_key(&key, &view)) {
    if (key == "__metadata__") {
      if (have_metadata) scanner.fail("duplicate key \"__metadata__\"");
      have_metadata = true;
      metadata(scanner);
      continue;
    }
    entry(scanner, view ? key : std::string_view(out_.own_names_.emplace_back(key)));
  }
  scanner.finish();

  for (size_t i = 0; i < entries_.size(); ++i)
    out_.tensors_[i].shape =
        std::span(out_.dimensions_).subspan(entries_[i].first_dimension, entries_[i].dimensions);
  std::sort(out_.tensors_.begin(), out_.tensors_.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes) ||
                     (a.offset == b.offset && a.bytes == b.bytes && a.name < b.name);
            });
  std::vector<uint32_t>& order = out_.by_name_;
  order.resize(out_.tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return out_.tensors_[a].name < out_.tensors_[b].name; });
  for (size_t i = 1; i < order.size(); ++i)
    if (out_.tensors_[order[i]].name == out_.tensors_[order[i - 1]].name)
      corrupt("invalid header: duplicate key \"{}\"", printable(out_.tensors_[order[i]].name));
  check_layout();
  for (SafetensorsTensor& tensor : out_.tensors_) tensor.offset += out_.data_begin_;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, const SafetensorsOptions& options) {
  SafetensorsFile file;
  file.file_ = MappedFile::open(path);
  SafetensorsParser(&file, options).parse();
  return file;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsTensor& tensor) const {
  return file_.bytes().subspan(tensor.offset, tensor.bytes);
}

}  // namespace kvasir::formats
