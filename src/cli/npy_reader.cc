#include "cli/npy_reader.h"

#include <charconv>
#include <string>

#include "base/error.h"

namespace kvasir::cli {
namespace {

// The text after `'key':` and its spaces; empty when the key is missing.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "':";
  size_t at = header.find(quoted);
  if (at == std::string_view::npos) return {};
  at = header.find_first_not_of(' ', at + quoted.size());
  return at == std::string_view::npos ? std::string_view() : header.substr(at);
}

// "(12, 34)": two axes. False for anything else.
bool parse_shape(std::string_view text, int64_t& rows, int64_t& columns) {
  if (!text.starts_with('(')) return false;
  text.remove_prefix(1);
  for (int64_t* axis : {&rows, &columns}) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *axis);
    if (error != std::errc() || *axis < 0) return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const std::string_view separator = axis == &rows ? ", " : ")";
    if (!text.starts_with(separator)) return false;
    text.remove_prefix(separator.size());
  }
  return true;
}

}  // namespace

NpyReader::NpyReader(const std::filesystem::path& path) : file_(MappedFile::open(path)) {
  const std::string name = printable(path.string());
  const std::string_view bytes(reinterpret_cast<const char*>(file_.bytes().data()), file_.size());
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  if (bytes.size() < 12 || !bytes.starts_with("\x93NUMPY"))
    throw_error(ErrorCode::corrupt_file, "{}: is no .npy file", name);
  const size_t version = byte(6);
  if (version < 1 || version > 3)
    throw_error(ErrorCode::unsupported, "{}: .npy version {}, expected 1 to 3", name, version);
  const size_t begin = version == 1 ? 10 : 12;
  const size_t length =
      version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (length > bytes.size() - begin)
    throw_error(ErrorCode::corrupt_file, "{}: its header is cut short", name);
  const std::string_view header = bytes.substr(begin, length);
  if (!value_of(header, "descr").starts_with("'<f4'") ||
      !value_of(header, "fortran_order").starts_with("False"))
    throw_error(ErrorCode::unsupported, "{}: expected little-endian float32 in C order, got {}", name,
                printable(header));
  if (!parse_shape(value_of(header, "shape"), rows_, columns_))
    throw_error(ErrorCode::unsupported, "{}: expected two axes [positions, vocab], got {}", name,
                printable(header));
  data_ = begin + length;
  const size_t values = (bytes.size() - data_) / sizeof(float);
  if (data_ % sizeof(float) != 0 || columns_ == 0 ||
      static_cast<size_t>(rows_) > values / static_cast<size_t>(columns_))
    throw_error(ErrorCode::corrupt_file, "{}: {} x {} values do not fit in its {} bytes", name, rows_,
                columns_, bytes.size());
}

std::span<const float> NpyReader::row(int64_t index) const {
  KVASIR_CHECK(index >= 0 && index < rows_);
  const auto* values = reinterpret_cast<const float*>(file_.bytes().data() + data_);
  return {values + index * columns_, static_cast<size_t>(columns_)};
}

}  // namespace kvasir::cli
