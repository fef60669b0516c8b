#include "base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file_error.h"

namespace kvasir {
namespace {
constexpr size_t kBuffer = size_t{1} << 20;
}

AtomicFile::AtomicFile(const std::filesystem::path& path)
    : path_(path.string()), partial_(fmt::format("{}.partial-{}", path_, ::getpid())), registered_(partial_) {
  buffer_.reserve(kBuffer);
  // Found out now, not when all is written.
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) {
    errno = EISDIR;
    fail("cannot be written");
  }
  remove_dead_partials_of(path);
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot be created");
  hold_partial(fd_);
}

AtomicFile::~AtomicFile() {
  if (state_ == State::committed) return;
  if (fd_ >= 0) ::close(fd_);
  ::unlink(partial_.c_str());
}

void AtomicFile::fail(const char* what) const {
  const int error = errno;
  throw_error(file_error(error), "{}: {}: {}", printable(path_), what, std::strerror(error));
}

void AtomicFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t got = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot be written");
    done += static_cast<size_t>(got);
  }
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  KVASIR_CHECK(fd_ >= 0);
  written_ += bytes.size();
  while (!bytes.empty()) {
    const size_t room = std::min(bytes.size(), kBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(room));
    bytes = bytes.subspan(room);
    if (buffer_.size() == kBuffer) flush();
  }
}

void AtomicFile::write_zeros(uint64_t count) {
  static constexpr std::byte kZeros[256] = {};
  for (; count > 0; count -= std::min<uint64_t>(count, sizeof kZeros))
    write(std::span(kZeros, static_cast<size_t>(std::min<uint64_t>(count, sizeof kZeros))));
}

void AtomicFile::seal() {
  KVASIR_CHECK(state_ == State::open);
  flush();
  if (::fsync(fd_) != 0) fail("cannot be synced");
  ::close(fd_);
  fd_ = -1;
  buffer_ = {};
  state_ = State::sealed;
}

void AtomicFile::commit() {
  if (state_ == State::open) seal();
  KVASIR_CHECK(state_ == State::sealed);
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("cannot be renamed into place");
  state_ = State::committed;
  registered_.keep();
}

}  // namespace kvasir
