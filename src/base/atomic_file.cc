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
    : path_(path.string()), target_(write_target(path)) {  // found out now, not when all is written
  buffer_.reserve(kBuffer);
  if (target_.stream) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  } else {
    remove_dead_partials_of(target_.path);
    fd_ = make_partial(target_.path, partial_, registered_);
  }
  if (fd_ < 0) fail(target_.stream ? "cannot be opened" : "cannot be created");
}

AtomicFile::~AtomicFile() {
  if (state_ == State::committed) return;
  if (fd_ >= 0) ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
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

void AtomicFile::rewrite(uint64_t offset, std::span<const std::byte> bytes) {
  KVASIR_CHECK(fd_ >= 0 && !target_.stream && offset + bytes.size() <= written_);
  flush();
  while (!bytes.empty()) {
    const ssize_t got = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot be written");
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
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
  if (!target_.stream && ::fsync(fd_) != 0) fail("cannot be synced");
  ::close(fd_);
  fd_ = -1;
  buffer_ = {};
  state_ = State::sealed;
}

void AtomicFile::commit() {
  if (state_ == State::open) seal();
  KVASIR_CHECK(state_ == State::sealed);
  if (!target_.stream && ::rename(partial_.c_str(), target_.path.c_str()) != 0)
    fail("cannot be renamed into place");
  state_ = State::committed;
  registered_.keep();
}

}  // namespace kvasir
