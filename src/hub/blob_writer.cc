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

namespace kvasir::hub {

BlobWriter::BlobWriter(std::filesystem::path partial, std::string digest, uint64_t size,
                       const std::function<bool(uint64_t)>& progress)
    : partial_(std::move(partial)), expected_(std::move(digest)), size_(size), digest_(expected_, size) {
  file_.fd = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_.fd < 0) fail("cannot be opened");
  struct stat status {};
  if (::fstat(file_.fd, &status) != 0) fail("cannot be examined");
  const auto present = static_cast<uint64_t>(status.st_size);
  if (present > size_) {
    restart();
    return;
  }
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (written_ < present) {
    const ssize_t got =
        ::pread(file_.fd, buffer.data(), std::min<uint64_t>(buffer.size(), present - written_),
                static_cast<off_t>(written_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("cannot be read");
    digest_.update(std::span(buffer).first(static_cast<size_t>(got)));
    written_ += static_cast<uint64_t>(got);
    if (progress && !progress(written_)) throw Error(ErrorCode::cancelled, "interrupted");
  }
}

BlobWriter::File::~File() {
  if (fd >= 0) ::close(fd);
}

void BlobWriter::append(std::span<const std::byte> bytes) {
  KVASIR_CHECK(bytes.size() <= size_ - written_);
  digest_.update(bytes);
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file_.fd, bytes.data(), bytes.size(), static_cast<off_t>(written_));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      if (put == 0) errno = ENOSPC;
      fail("cannot be written");
    }
    written_ += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void BlobWriter::restart() {
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
