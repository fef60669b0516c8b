#include "base/partial_files.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

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

}  // namespace

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
