#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file_error.h"
#include "base/mapping_faults.h"

namespace kvasir {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

FileDescriptor open_regular(const std::filesystem::path& path, size_t* size) {
  // Without O_NONBLOCK the opening of a named pipe waits for somebody to write into it.
  const int raw = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (raw < 0) {
    const int error = errno;
    throw_error(file_error(error), "{}: cannot be opened: {}", printable(path.string()),
                std::strerror(error));
  }
  FileDescriptor fd(raw);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0)
    throw_error(ErrorCode::not_found, "{}: cannot be examined: {}", printable(path.string()),
                std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    throw_error(ErrorCode::invalid_input, "{}: {}", printable(path.string()),
                S_ISDIR(status.st_mode)    ? "is a folder, expected a file"
                : S_ISFIFO(status.st_mode) ? "is a named pipe, expected a regular file"
                                           : "is not a regular file");
  *size = static_cast<size_t>(status.st_size);
  return FileDescriptor(::dup(fd.get()));
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  size_t size = 0;
  const FileDescriptor fd = open_regular(path, &size);
  MappedFile file;
  file.path_ = path.string();
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED)
      throw_error(ErrorCode::resource_exhausted, "{}: cannot be mapped ({} bytes): {}",
                  printable(path.string()), size, std::strerror(errno));
    file.data_ = static_cast<const std::byte*>(address);
    file.size_ = size;
    file.fault_slot_ = register_mapping(file.data_, size, file.path_);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    fault_slot_ = std::exchange(other.fault_slot_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

MappedFile::~MappedFile() {
  unmap();
}

void MappedFile::unmap() {
  if (data_ == nullptr) return;
  forget_mapping(fault_slot_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {
void advise(const std::byte* data, size_t size, size_t offset, size_t length, int advice) {
  if (data == nullptr || offset >= size) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = length > size - offset ? size : offset + length;
  ::madvise(const_cast<std::byte*>(data) + begin, end - begin, advice);
}
}  // namespace

void MappedFile::will_need(size_t offset, size_t length) const {
  advise(data_, size_, offset, length, MADV_WILLNEED);
}
void MappedFile::done(size_t offset, size_t length) const {
  advise(data_, size_, offset, length, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  size_t size = 0;
  const FileDescriptor fd = open_regular(path, &size);
  if (size > limit)
    throw_error(ErrorCode::invalid_input, "{}: {} bytes, more than the limit of {}", printable(path.string()),
                size, limit);
  std::string content(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t got = ::read(fd.get(), content.data() + have, size - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw_error(ErrorCode::not_found, "{}: cannot be read: {}", printable(path.string()),
                  std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  content.resize(have);
  return content;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

}  // namespace kvasir
