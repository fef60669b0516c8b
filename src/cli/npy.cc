#include "cli/npy.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kvasir::cli {

NpyWriter::NpyWriter(std::filesystem::path path, int64_t rows, int64_t columns)
    : path_(std::move(path)), target_(write_target(path_)), expected_(rows * columns) {
  if (target_.stream) {
    file_ = std::fopen(path_.c_str(), "wbe");
  } else {
    remove_dead_partials_of(target_.path);
    const int descriptor = make_partial(target_.path, partial_, registered_);
    if (descriptor >= 0) file_ = ::fdopen(descriptor, "wb");
  }
  if (file_ == nullptr) fail("cannot be created");
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version and length take 10 bytes; the whole header is a multiple of 64 and ends with a newline.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  const unsigned char prefix[10] = {0x93,
                                    'N',
                                    'U',
                                    'M',
                                    'P',
                                    'Y',
                                    1,
                                    0,
                                    static_cast<unsigned char>(length & 255),
                                    static_cast<unsigned char>(length >> 8)};
  if (std::fwrite(prefix, 1, sizeof prefix, file_) != sizeof prefix ||
      std::fwrite(header.data(), 1, header.size(), file_) != header.size())
    fail("cannot be written");
}

NpyWriter::~NpyWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void NpyWriter::fail(const char* what) {
  const int error = errno;
  if (file_ != nullptr) {
    std::fclose(file_);
    file_ = nullptr;
    if (!partial_.empty()) ::unlink(partial_.c_str());
  }
  throw_error(ErrorCode::not_found, "{}: {}: {}", printable(path_.string()), what, std::strerror(error));
}

void NpyWriter::write(std::span<const float> values) {
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_) != values.size())
    fail("cannot be written");
  written_ += static_cast<int64_t>(values.size());
}

void NpyWriter::finish() {
  KVASIR_CHECK(written_ == expected_);
  if (std::fflush(file_) != 0 || (!partial_.empty() && ::fsync(::fileno(file_)) != 0))
    fail("cannot be written");
  if (std::fclose(file_) != 0) {
    file_ = nullptr;
    fail("cannot be written");
  }
  file_ = nullptr;
  if (!partial_.empty() && ::rename(partial_.c_str(), target_.path.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    errno = error;
    fail("cannot be renamed into place");
  }
  registered_.keep();
}

}  // namespace kvasir::cli
