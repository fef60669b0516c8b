#include "hub/settings.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/ascii.h"
#include "base/environment.h"
#include "base/error.h"
#include "hub/headers.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPublicHub = "https://huggingface.co";
constexpr size_t kTokenLimit = 4096;

bool is_true(const char* name) {
  const std::string value = ascii_upper(environment(name));
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

// Everything of the hub's own tools: cache and token.
fs::path hub_home() {
  const fs::path home = expand_home(environment("HF_HOME"));
  return home.empty() ? user_folder("XDG_CACHE_HOME", ".cache") / "huggingface" : home;
}

}  // namespace

fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string folder = environment(name); !folder.empty()) return expand_home(folder);
  return hub_home() / "hub";
}

bool offline_in_environment() {
  return is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
}

HubSettings settings_from_environment() {
  HubSettings out;
  out.endpoint = environment("HF_ENDPOINT");
  if (out.endpoint.empty()) out.endpoint = kPublicHub;
  while (out.endpoint.ends_with('/')) out.endpoint.pop_back();
  const std::string origin = origin_of(out.endpoint);
  if (!origin.starts_with("https://") && !origin.starts_with("http://"))
    throw_error(ErrorCode::invalid_input, "HF_ENDPOINT: '{}' is no http or https URL",
                printable(out.endpoint));

  out.cache = cache_folder();

  fs::path token_file = expand_home(environment("HF_TOKEN_PATH"));
  if (token_file.empty()) token_file = hub_home() / "token";
  out.token_file = token_file.string();
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (!out.token.empty()) break;
    out.token = stripped(environment(name));
    out.token_source = name;
  }
  if (out.token.empty()) {
    std::ifstream file(token_file, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.size() <= kTokenLimit) out.token = stripped(std::move(text));
    out.token_source = out.token.empty() ? std::string() : out.token_file;
  }
  check_token(out.token, out.token_source);

  out.offline = offline_in_environment();
  if (const std::string text = environment("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.timeout);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(out.timeout >= 1 && out.timeout <= 3600))
      throw_error(ErrorCode::invalid_input,
                  "HF_HUB_DOWNLOAD_TIMEOUT: '{}' is no number of seconds from 1 to 3600", printable(text));
  }
  return out;
}

}  // namespace kvasir::hub
