#include "cli/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kvasir::cli {
namespace {

constexpr int64_t kMostKept = int64_t{1} << 32;

[[noreturn]] void fail(const std::string& name, const char* what, int error) {
  throw_error(ErrorCode::not_found, "{}: {}: {}", printable(name), what, std::strerror(error));
}

// Of a name, or of the stream that stands for it; false when there is none.
bool examine(const std::string& path, int stream, struct stat* status) {
  return path.empty() || path == "-" ? ::fstat(stream, status) == 0 : ::stat(path.c_str(), status) == 0;
}

std::string read_all(int descriptor, const std::string& name, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::pread(descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(name, "cannot be read", count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace

void check_not_the_input(const std::string& output, const std::string& input) {
  struct stat to {};
  struct stat from {};
  if (!examine(output, STDOUT_FILENO, &to) || !examine(input, STDIN_FILENO, &from)) return;
  if (!S_ISREG(to.st_mode) || to.st_dev != from.st_dev || to.st_ino != from.st_ino) return;
  throw_error(ErrorCode::invalid_input, "{}: is the input and the output: name another file for the answers",
              printable(output.empty() || output == "-" ? "standard output" : output));
}

BatchOutput BatchOutput::open(const std::string& path, bool resume, bool overwrite) {
  BatchOutput output;
  if (path.empty() || path == "-") {
    if (resume) throw_error(ErrorCode::invalid_input, "--resume needs --output FILE");
    output.name_ = "standard output";
    output.descriptor_ = STDOUT_FILENO;
    return output;
  }
  output.name_ = path;
  output.descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (output.descriptor_ < 0 && (errno == ENXIO || errno == EACCES))
    output.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (output.descriptor_ < 0) fail(path, "cannot be created", errno);
  output.owned_ = true;
  struct stat status {};
  if (::fstat(output.descriptor_, &status) != 0) fail(path, "cannot be examined", errno);
  if (!S_ISREG(status.st_mode)) {
    if (resume) throw_error(ErrorCode::invalid_input, "{}: --resume needs a regular file", printable(path));
    return output;
  }
  if (::flock(output.descriptor_, LOCK_EX | LOCK_NB) != 0)
    throw_error(ErrorCode::invalid_input, "{}: another run is writing it", printable(path));
  if (status.st_size > 0 && !resume) {
    if (!overwrite)
      throw_error(ErrorCode::invalid_input,
                  "{}: holds something already: --resume goes on with it, --overwrite begins again",
                  printable(path));
    if (::ftruncate(output.descriptor_, 0) != 0) fail(path, "cannot be emptied", errno);
  } else if (status.st_size > 0) {
    if (status.st_size > kMostKept)
      throw_error(ErrorCode::invalid_input, "{}: {} bytes, at most {} can be resumed", printable(path),
                  static_cast<int64_t>(status.st_size), kMostKept);
    const std::string text = read_all(output.descriptor_, path, status.st_size);
    size_t begin = 0;
    for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      output.kept_.push_back(text.substr(begin, end - begin));
    output.size_ = static_cast<int64_t>(begin);
    output.next_ = output.kept_.size();
  }
  return output;
}

BatchOutput::BatchOutput(BatchOutput&& other) noexcept
    : name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      owned_(std::exchange(other.owned_, false)),
      size_(other.size_),
      kept_(std::move(other.kept_)),
      next_(other.next_),
      waiting_(std::move(other.waiting_)) {}

BatchOutput::~BatchOutput() {
  if (owned_) ::close(descriptor_);
}

void BatchOutput::write(const std::string& line) {
  struct stat status {};
  const bool regular = owned_ && ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  // A torn line of a run that was cut is cut off only now: until there is more to say, the file is left
  // alone.
  if (regular && status.st_size != size_ && ::ftruncate(descriptor_, size_) != 0)
    fail(name_, "cannot be cut to its whole lines", errno);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = regular ? ::pwrite(descriptor_, line.data() + done, line.size() - done,
                                             static_cast<off_t>(size_ + static_cast<int64_t>(done)))
                                  : ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      if (regular && ::ftruncate(descriptor_, size_) != 0) fail(name_, "is torn and cannot be mended", errno);
      fail(name_, "cannot be written", error);
    }
    done += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(line.size());
}

void BatchOutput::put(size_t number, std::string line) {
  waiting_.emplace(number, std::move(line));
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_;
       first = waiting_.erase(first)) {
    write(first->second);
    ++next_;
  }
}

}  // namespace kvasir::cli
