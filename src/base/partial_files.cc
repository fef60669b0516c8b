#include "base/partial_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

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

// Of this user, and held by nobody.
bool is_left(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  const bool folder = S_ISDIR(status.st_mode);
  if (!folder && !S_ISREG(status.st_mode)) return false;
  // Network file systems lock for writing only what is open for it.
  const int flags = (folder ? O_RDONLY | O_DIRECTORY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int descriptor = ::open(path.c_str(), flags);
  if (descriptor < 0) return false;
  const bool left = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  ::close(descriptor);
  return left;
}

}  // namespace

void hold_partial(int descriptor) {
  (void)::flock(descriptor, LOCK_EX | LOCK_NB);
}

void remove_dead_partials(const std::filesystem::path& folder, std::string_view prefix) {
  namespace fs = std::filesystem;
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const pid_t process = process_in(at->path().filename().string(), prefix);
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH && is_left(at->path()))
      left.push_back(at->path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
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
