#include "hub/blob_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/file_error.h"
#include "hub/cache.h"

namespace kvasir::hub {

namespace {

constexpr size_t kStep = size_t{1} << 20;  // that is read at once

// All of `bytes` at `offset`; false with errno.
bool write_at(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) return false;
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

// As much as there is of `buffer`; what was read, less than nothing with errno.
ssize_t read_at(int fd, std::span<std::byte> buffer, uint64_t offset) {
  for (;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

BlobWriter::BlobWriter(std::filesystem::path partial, std::string digest, uint64_t size,
                       const std::function<bool(uint64_t)>& progress)
    : partial_(std::move(partial)), expected_(std::move(digest)), size_(size), digest_(expected_, size) {
  file_.fd = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_.fd < 0) fail("cannot be opened");
  struct stat status {};
  if (::fstat(file_.fd, &status) != 0) fail("cannot be examined");
  const auto present = static_cast<uint64_t>(status.st_size);
  take_up_pieces();
  if (present > size_) {
    restart();
    return;
  }
  std::vector<std::byte> buffer(kStep);
  while (written_ < present) {
    const ssize_t got = read_at(
        file_.fd, std::span(buffer).first(std::min<uint64_t>(buffer.size(), present - written_)), written_);
    if (got <= 0) fail("cannot be read");
    digest_.update(std::span(buffer).first(static_cast<size_t>(got)));
    written_ += static_cast<uint64_t>(got);
    if (progress && !progress(written_)) throw Error(ErrorCode::cancelled, "interrupted");
  }
  move_pieces();
}

BlobWriter::File::~File() {
  if (fd >= 0) ::close(fd);
}

void BlobWriter::take_up_pieces() {
  for (const auto& [begin, path] : pieces_beside(partial_)) {
    struct stat status {};
    const bool regular = ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
    const uint64_t bytes = regular ? static_cast<uint64_t>(status.st_size) : 0;
    if (bytes == 0 || begin > size_ || bytes > size_ - begin)
      ::unlink(path.c_str());
    else
      pieces_[begin] = {path, bytes};
  }
}

uint64_t BlobWriter::ahead() const {
  return bytes_beyond(written_, pieces_, [](const Piece& piece) { return piece.size; });
}

BlobWriter::Gap BlobWriter::gap(uint64_t at) const {
  for (const auto& [begin, piece] : pieces_) {
    if (begin > at) return {at, begin};
    at = std::max(at, begin + piece.size);
  }
  return {at, size_};
}

void BlobWriter::extend(std::span<const std::byte> bytes) {
  KVASIR_CHECK(bytes.size() <= size_ - written_);
  if (!write_at(file_.fd, bytes, written_)) fail("cannot be written");
  digest_.update(bytes);
  written_ += bytes.size();
}

void BlobWriter::append(std::span<const std::byte> bytes) {
  extend(bytes);
  move_pieces();
}

void BlobWriter::put(uint64_t run, uint64_t at, std::span<const std::byte> bytes) {
  if (at == written_) {
    append(bytes);
    return;
  }
  Piece& piece = pieces_[run];
  KVASIR_CHECK(run > written_ && at == run + piece.size && bytes.size() <= size_ - at);
  if (piece.path.empty()) piece.path = partial_.string() + fmt::format("-{}", run);
  const File file{::open(piece.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)};
  if (file.fd < 0) fail("cannot be opened");
  if (!write_at(file.fd, bytes, piece.size)) fail("cannot be written");
  piece.size += bytes.size();
}

// To the prefix, those that begin in it or where it ends.
void BlobWriter::move_pieces() {
  std::vector<std::byte> buffer;
  for (auto at = pieces_.begin(); at != pieces_.end() && at->first <= written_; at = pieces_.erase(at)) {
    const auto& [begin, piece] = *at;
    const File file{::open(piece.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
    if (file.fd < 0) fail("cannot be opened");
    buffer.resize(kStep);
    while (written_ < begin + piece.size) {
      const uint64_t left = begin + piece.size - written_;
      const ssize_t got =
          read_at(file.fd, std::span(buffer).first(std::min<uint64_t>(kStep, left)), written_ - begin);
      if (got <= 0) fail("cannot be read");
      extend(std::span(buffer).first(static_cast<size_t>(got)));
    }
    ::unlink(piece.path.c_str());
  }
}

void BlobWriter::drop_ahead() {
  for (const auto& [begin, piece] : pieces_) ::unlink(piece.path.c_str());
  pieces_.clear();
}

void BlobWriter::restart() {
  drop_ahead();
  if (::ftruncate(file_.fd, 0) != 0) fail("cannot be emptied");
  written_ = 0;
  digest_.restart();
}

bool BlobWriter::finish(const std::filesystem::path& final_path) {
  KVASIR_CHECK(written_ == size_);
  if (digest_.hex() != expected_) {
    ::unlink(partial_.c_str());
    return false;
  }
  if (::fsync(file_.fd) != 0) fail("cannot be synced");
  if (::rename(partial_.c_str(), final_path.c_str()) != 0) fail("cannot be renamed");
  return true;
}

void BlobWriter::fail(const char* what) const {
  const int error = errno;
  const bool full = file_error(error) == ErrorCode::resource_exhausted;
  throw_error(file_error(error), "{}: {}: {}{}", printable(partial_.string()), what, std::strerror(error),
              full ? " (free some space and run the same command again: it goes on where it stopped)" : "");
}

}  // namespace kvasir::hub
