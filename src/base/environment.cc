#include "base/environment.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace kvasir {

namespace fs = std::filesystem;

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::string() : std::string(value);
}

fs::path home_folder() {
  if (std::string home = environment("HOME"); !home.empty()) return home;
  // Services and cron jobs may run without HOME.
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  const int error = ::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found);
  if (error != 0 || found == nullptr || found->pw_dir == nullptr || *found->pw_dir == '\0') return ".";
  return found->pw_dir;
}

fs::path expand_home(const std::string& path) {
  if (path == "~") return home_folder();
  if (path.starts_with("~/")) return home_folder() / path.substr(2);
  return path;
}

fs::path user_folder(const char* variable, const char* below_home) {
  const fs::path named = expand_home(environment(variable));
  return named.empty() ? home_folder() / below_home : named;
}

}  // namespace kvasir
