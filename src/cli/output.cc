#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/environment.h"
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

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string json_line(const nlohmann::ordered_json& json) {
  return json_text(json) + "\n";
}

void print_json(const nlohmann::ordered_json& json, int indent) {
  const std::string line = json_text(json, indent) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

std::string size_text(uint64_t bytes) {
  return bytes < 1'000'000'000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)
                               : fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
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
  if (!environment("NO_COLOR").empty()) return false;
  const std::string terminal = environment("TERM");
  return ::isatty(descriptor) != 0 && !terminal.empty() && terminal != "dumb";
}

}  // namespace kvasir::cli
