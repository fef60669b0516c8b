#include "base/partial_files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace kvasir {
namespace {

// Global, because a signal handler can reach nothing else. The path is written before `whole` is set, and
// memory is never given back: an entry that the handler sees can be read whatever the owner does meanwhile.
struct Partial {
  std::atomic<bool> taken = false;
  std::atomic<bool> whole = false;
  char path[4096];
};
std::array<Partial, 256> g_partials;

extern "C" void on_ending_signal(int signal) {
  remove_partial_files();
  constexpr char kMessage[] = "kvasir: interrupted\n";
  if (::write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) {
    // Nobody is there to read it.
  }
  ::_exit(128 + signal);
}

// "<prefix>123" and "<prefix>123-abc": 123; everything else: 0.
pid_t process_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  name.remove_prefix(prefix.size());
  pid_t process = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
  const bool ends = end == name.data() + name.size() || *end == '-';
  return error == std::errc() && ends && process > 0 ? process : 0;
}

// Removes what is of this user and held by nobody. It is held meanwhile: whoever has just made it waits in
// hold_partial() and learns that it is gone.
void remove_if_left(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return;
  const bool folder = S_ISDIR(status.st_mode);
  if (!folder && !S_ISREG(status.st_mode)) return;
  // Network file systems lock for writing only what is open for it.
  const int flags = (folder ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int descriptor = ::open(path.c_str(), flags);
  if (descriptor < 0) return;
  std::error_code ignored;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(path, ignored);
  ::close(descriptor);
}

// Eight hexadecimal digits that no other process draws at the same time.
std::string random_digits() {
  uint32_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = std::random_device()();
  return fmt::format("{:08x}", number);
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view what) {
  throw_error(ErrorCode::not_found, "{}: cannot be written: {}", printable(path.string()), what);
}

}  // namespace

WriteTarget write_target(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  switch (there.type()) {
    case fs::file_type::directory:
      refuse(path, std::strerror(EISDIR));
    case fs::file_type::block:
      refuse(path, "it is a block device, expected a file, a pipe or a character device");
    case fs::file_type::socket:
      refuse(path, "it is a socket, expected a file, a pipe or a character device");
    case fs::file_type::character:
    case fs::file_type::fifo:
      return {path, true};
    default:
      break;
  }
  fs::path at = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(at, error)); ++links) {
    if (links == 40) refuse(path, std::strerror(ELOOP));
    // What a descriptor of a process names is open already, and may have no name any more.
    if (at.is_absolute() && at.native().starts_with("/proc/")) return {path, true};
    const fs::path to = fs::read_symlink(at, error);
    if (error) refuse(path, error.message());
    at = at.parent_path() / to;
  }
  return {at, false};
}

std::filesystem::path write_target_file(const std::filesystem::path& path) {
  WriteTarget target = write_target(path);
  if (target.stream) refuse(path, "it is a device or a pipe, expected a file");
  return std::move(target.path);
}

bool hold_partial(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0)
    if (errno != EINTR) return true;
  struct stat status {};
  return ::fstat(descriptor, &status) != 0 || status.st_nlink > 0;
}

int make_partial(const std::filesystem::path& target, std::filesystem::path& made, PartialFile& watched) {
  while (true) {
    made = target.string() + fmt::format(".partial-{}-{}", ::getpid(), random_digits());
    watched.watch(made);
    const int descriptor = ::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor >= 0 && hold_partial(descriptor)) return descriptor;
    const int error = errno;
    watched.keep();
    if (descriptor >= 0)
      ::close(descriptor);
    else if (error != EEXIST) {
      errno = error;
      return -1;
    }
  }
}

int make_partial_folder(const std::string& prefix, std::filesystem::path& made) {
  while (true) {
    std::string pattern = fmt::format("{}{}-XXXXXX", prefix, ::getpid());
    const bool there = ::mkdtemp(pattern.data()) != nullptr;
    made = pattern;
    if (!there) return -1;
    const int descriptor = ::open(made.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0 && hold_partial(descriptor)) return descriptor;
    if (descriptor < 0 && errno != ENOENT) return -1;
    if (descriptor >= 0) ::close(descriptor);
  }
}

void remove_dead_partials(const std::filesystem::path& folder, std::string_view prefix) {
  namespace fs = std::filesystem;
  std::vector<fs::path> gone;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const pid_t process = process_in(at->path().filename().string(), prefix);
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) gone.push_back(at->path());
  }
  for (const fs::path& path : gone) remove_if_left(path);
}

void remove_dead_partials_of(const std::filesystem::path& target) {
  const std::filesystem::path folder = target.parent_path();
  remove_dead_partials(folder.empty() ? "." : folder, target.filename().string() + ".partial-");
}

void PartialFile::watch(const std::filesystem::path& path) {
  keep();
  if (path.native().size() >= sizeof(Partial::path)) return;
  for (size_t i = 0; i < g_partials.size(); ++i) {
    Partial& partial = g_partials[i];
    if (partial.taken.exchange(true)) continue;
    std::memcpy(partial.path, path.c_str(), path.native().size() + 1);
    partial.whole = true;
    slot_ = static_cast<int>(i);
    return;
  }
}

void PartialFile::keep() {
  if (slot_ < 0) return;
  Partial& partial = g_partials[static_cast<size_t>(slot_)];
  partial.whole = false;
  partial.taken = false;
  slot_ = -1;
}

void remove_partial_files() {
  for (size_t i = g_partials.size(); i-- > 0;) {
    const Partial& partial = g_partials[i];
    if (partial.whole && ::unlink(partial.path) != 0) ::rmdir(partial.path);
  }
}

void handle_signals(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
}

void install_ending_signals() {
  handle_signals({SIGINT, SIGTERM, SIGHUP}, on_ending_signal);
}

}  // namespace kvasir
