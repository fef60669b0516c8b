#include "cli/input.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/utf8.h"

namespace kvasir::cli {
namespace {

std::string read_stream(std::FILE* file, const std::string& name, size_t limit) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const size_t count = std::fread(buffer, 1, sizeof buffer, file);
    text.append(buffer, count);
    if (text.size() > limit)
      throw_error(ErrorCode::invalid_input, "{}: more than {} bytes", printable(name), limit);
    if (count < sizeof buffer) break;
  }
  if (std::ferror(file) != 0)
    throw_error(ErrorCode::not_found, "{}: cannot be read: {}", printable(name), std::strerror(errno));
  return text;
}

// Where the first byte lies that is no UTF-8, as text; empty: there is none.
std::string utf8_fault(std::string_view text, std::string_view what) {
  constexpr std::string_view kWritten = "\xEF\xBF\xBD";  // U+FFFD that the text itself holds
  for (size_t at = 0; at < text.size();) {
    const tokenizer::CodePoint code = tokenizer::decode_lossy(text, at);
    if (code.value == tokenizer::kReplacement && !text.substr(at).starts_with(kWritten))
      return fmt::format("{} is not UTF-8: byte {} is 0x{:02X}", what, at,
                         static_cast<unsigned char>(text[at]));
    at += code.length;
  }
  return {};
}

}  // namespace

std::string read_input(const std::string& path, size_t limit) {
  if (path == "-") return read_stream(stdin, "standard input", limit);
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (!std::filesystem::is_fifo(status) && !std::filesystem::is_character_file(status) &&
      !std::filesystem::is_socket(status))
    return read_file(path, limit);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (file == nullptr)
    throw_error(ErrorCode::not_found, "{}: cannot be opened: {}", printable(path), std::strerror(errno));
  return read_stream(file.get(), path, limit);
}

void check_utf8(std::string_view text, std::string_view what) {
  if (const std::string fault = utf8_fault(text, what); !fault.empty())
    throw_error(ErrorCode::invalid_input, "{}; convert it first", fault);
}

void note_utf8(std::string_view text, std::string_view what) {
  if (const std::string fault = utf8_fault(text, what); !fault.empty())
    std::fprintf(stderr, "kvasir: note: %s\n", fault.c_str());
}

}  // namespace kvasir::cli
