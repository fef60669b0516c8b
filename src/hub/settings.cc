#include "hub/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "hub/headers.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPublicHub = "https://huggingface.co";
constexpr size_t kTokenLimit = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_true(const char* name) {
  std::string value = variable(name);
  std::transform(value.begin(), value.end(), value.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string stripped(std::string text) {
  const char* kSpace = " \t\r\n";
  text.erase(0, std::min(text.size(), text.find_first_not_of(kSpace)));
  if (const size_t last = text.find_last_not_of(kSpace); last != std::string::npos) text.erase(last + 1);
  return text;
}

// A token becomes a header: nothing in it may end the line.
void check_token(const std::string& token, const std::string& source) {
  for (const char c : token)
    if (c <= ' ' || c > '~')
      throw_error(ErrorCode::invalid_input,
                  "{}: the token holds a character that no token has: copy it again", printable(source));
}

}  // namespace

fs::path home_folder() {
  const std::string home = variable("HOME");
  return home.empty() ? fs::path(".") : fs::path(home);
}

fs::path expand_home(const std::string& path) {
  if (path == "~") return home_folder();
  if (path.starts_with("~/")) return home_folder() / path.substr(2);
  return path;
}

HubSettings settings_from_environment() {
  HubSettings out;
  out.endpoint = variable("HF_ENDPOINT");
  if (out.endpoint.empty()) out.endpoint = kPublicHub;
  while (out.endpoint.ends_with('/')) out.endpoint.pop_back();
  const std::string origin = origin_of(out.endpoint);
  if (!origin.starts_with("https://") && !origin.starts_with("http://"))
    throw_error(ErrorCode::invalid_input, "HF_ENDPOINT: '{}' is no http or https URL",
                printable(out.endpoint));

  fs::path home = expand_home(variable("HF_HOME"));
  if (home.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    home = (cache.empty() ? home_folder() / ".cache" : expand_home(cache)) / "huggingface";
  }
  out.cache = expand_home(variable("HF_HUB_CACHE"));
  if (out.cache.empty()) out.cache = expand_home(variable("HUGGINGFACE_HUB_CACHE"));
  if (out.cache.empty()) out.cache = home / "hub";

  fs::path token_file = expand_home(variable("HF_TOKEN_PATH"));
  if (token_file.empty()) token_file = home / "token";
  out.token_file = token_file.string();
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (!out.token.empty()) break;
    out.token = stripped(variable(name));
    out.token_source = name;
  }
  if (out.token.empty()) {
    std::ifstream file(token_file, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.size() <= kTokenLimit) out.token = stripped(std::move(text));
    out.token_source = out.token.empty() ? std::string() : out.token_file;
  }
  check_token(out.token, out.token_source);

  out.offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
  if (const std::string text = variable("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.timeout);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(out.timeout >= 1 && out.timeout <= 3600))
      throw_error(ErrorCode::invalid_input,
                  "HF_HUB_DOWNLOAD_TIMEOUT: '{}' is no number of seconds from 1 to 3600", printable(text));
  }
  return out;
}

}  // namespace kvasir::hub
