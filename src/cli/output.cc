#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace kvasir::cli {

void guard_standard_streams() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is this one. Reading from it ends at once; writing to it fails.
    const int opened = ::open("/dev/null", O_RDONLY);
    if (opened == -1) return;
  }
}

std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void print_json(const nlohmann::ordered_json& json) {
  const std::string line = json_line(json);
  std::fwrite(line.data(), 1, line.size(), stdout);
}

bool output_failed() {
  return std::ferror(stdout) != 0;
}

void finish_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && !output_failed()) return;
  throw_error(ErrorCode::not_found, "standard output: cannot be written{}{}", error != 0 ? ": " : "",
              error != 0 ? std::strerror(error) : "");
}

bool styled(int descriptor) {
  const char* off = std::getenv("NO_COLOR");
  if (off != nullptr && *off != '\0') return false;
  const char* terminal = std::getenv("TERM");
  return ::isatty(descriptor) != 0 && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace kvasir::cli
