#include "base/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace kvasir {
namespace {

// Global, because a signal handler can reach nothing else. `begin` is written last and cleared first: an
// entry that the handler sees is whole.
struct Mapping {
  std::atomic<bool> taken = false;
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::atomic<char*> path = nullptr;
};
std::array<Mapping, 16384> g_mappings;

void put(const char* text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  (void)ignored;
}

// Only async-signal-safe calls.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : g_mappings) {
    const uintptr_t begin = mapping.begin.load();
    const char* path = mapping.path.load();
    if (begin == 0 || path == nullptr || address < begin || address >= mapping.end.load()) continue;
    put("kvasir: ");
    put(path);
    put(": truncated while mapped: the file was changed while it was in use; start again with the whole "
        "file\n");
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // not ours: the instruction faults again, and the default action is taken
}

}  // namespace

void install_mapping_fault_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

int register_mapping(const std::byte* data, size_t size, const std::string& path) {
  static std::atomic<size_t> next = 0;  // where a free slot is likely
  for (size_t tried = 0; tried < g_mappings.size(); ++tried) {
    const size_t i = next.fetch_add(1) % g_mappings.size();
    Mapping& mapping = g_mappings[i];
    if (mapping.taken.exchange(true)) continue;
    mapping.path = ::strdup(path.c_str());
    mapping.end = reinterpret_cast<uintptr_t>(data) + size;
    mapping.begin = reinterpret_cast<uintptr_t>(data);
    return static_cast<int>(i);
  }
  return -1;
}

void forget_mapping(int slot) {
  if (slot < 0) return;
  Mapping& mapping = g_mappings[static_cast<size_t>(slot)];
  mapping.begin = 0;
  mapping.end = 0;
  std::free(mapping.path.exchange(nullptr));
  mapping.taken = false;
}

}  // namespace kvasir
