#include "hub/headers.h"

#include <curl/curl.h>

#include <charconv>
#include <memory>

#include "base/ascii.h"

namespace kvasir::hub {
namespace {

struct CurlUrlCleanup {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, CurlUrlCleanup>;

std::string url_part(const UrlHandle& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK || text == nullptr) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

UrlHandle parse_url(const std::string& text) {
  UrlHandle url(curl_url());
  if (url == nullptr ||
      curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK)
    return nullptr;
  return url;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() &&
         (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n'))
    text.remove_suffix(1);
  return text;
}

bool parse_number(std::string_view text, uint64_t* out) {
  if (text.empty()) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// Takes one parameter (";name=value" or ";name=\"value\"") off `text`; false when the next is none.
bool take_parameter(std::string_view* text, std::string_view* name, std::string* value) {
  *text = trim(*text);
  if (text->empty() || text->front() != ';') return false;
  text->remove_prefix(1);
  *text = trim(*text);
  const size_t end = text->find_first_of("=;,");
  *name = trim(text->substr(0, end));
  value->clear();
  if (end == std::string_view::npos) {
    *text = {};
    return true;
  }
  text->remove_prefix(end);
  if (text->front() != '=') return true;
  text->remove_prefix(1);
  *text = trim(*text);
  if (!text->empty() && text->front() == '"') {
    text->remove_prefix(1);
    while (!text->empty() && text->front() != '"') {
      if (text->front() == '\\' && text->size() > 1) text->remove_prefix(1);
      value->push_back(text->front());
      text->remove_prefix(1);
    }
    if (!text->empty()) text->remove_prefix(1);
    return true;
  }
  const size_t stop = text->find_first_of(";,");
  *value = std::string(trim(text->substr(0, stop)));
  text->remove_prefix(stop == std::string_view::npos ? text->size() : stop);
  return true;
}

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    words = trim(words);
    const size_t end = words.find(' ');
    if (equal_ignoring_case(words.substr(0, end), word)) return true;
    words.remove_prefix(end == std::string_view::npos ? words.size() : end);
  }
  return false;
}

std::string encode(std::string_view text, bool keep_slash) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size() + 8);
  for (const char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (keep_slash && c == '/');
    if (plain) {
      out.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

}  // namespace

std::optional<std::string> next_link(std::string_view header) {
  std::string_view rest = trim(header);
  while (!rest.empty()) {
    if (rest.front() != '<') return std::nullopt;
    const size_t close = rest.find('>');
    if (close == std::string_view::npos) return std::nullopt;
    const std::string target(rest.substr(1, close - 1));
    rest.remove_prefix(close + 1);
    bool is_next = false, have_rel = false;
    std::string_view name;
    std::string value;
    while (take_parameter(&rest, &name, &value))
      // The first rel counts (RFC 8288 3.3).
      if (!have_rel && equal_ignoring_case(name, "rel")) {
        have_rel = true;
        is_next = has_word(value, "next");
      }
    if (is_next && !target.empty()) return target;
    rest = trim(rest);
    if (!rest.empty() && rest.front() != ',') return std::nullopt;
    while (!rest.empty() && (rest.front() == ',' || rest.front() == ' ' || rest.front() == '\t'))
      rest.remove_prefix(1);
  }
  return std::nullopt;
}

std::string bare_etag(std::string_view header) {
  std::string_view text = trim(header);
  if (text.starts_with("W/")) text.remove_prefix(2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text.remove_prefix(1);
    text.remove_suffix(1);
  }
  if (text.find_first_of("\"/\\ ") != std::string_view::npos) return {};
  return std::string(text);
}

bool is_digest(std::string_view text) {
  if (text.size() != 40 && text.size() != 64) return false;
  for (const char c : text)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
  return true;
}

std::optional<ContentRange> parse_content_range(std::string_view header) {
  std::string_view text = trim(header);
  if (text.size() < 6 || !equal_ignoring_case(text.substr(0, 5), "bytes")) return std::nullopt;
  text = trim(text.substr(5));
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  ContentRange range;
  if (!parse_number(text.substr(0, dash), &range.first) ||
      !parse_number(text.substr(dash + 1, slash - dash - 1), &range.last) || range.last < range.first)
    return std::nullopt;
  const std::string_view total = text.substr(slash + 1);
  if (total != "*") {
    uint64_t count = 0;
    if (!parse_number(total, &count) || count <= range.last) return std::nullopt;
    range.total = count;
  }
  return range;
}

std::optional<double> parse_retry_after(std::string_view header, int64_t now) {
  const std::string_view text = trim(header);
  uint64_t seconds = 0;
  if (parse_number(text, &seconds)) return static_cast<double>(seconds);
  const time_t when = curl_getdate(std::string(text).c_str(), nullptr);
  if (when < 0) return std::nullopt;
  return when > now ? static_cast<double>(when - now) : 0.0;
}

std::optional<uint64_t> parse_length(std::string_view header) {
  uint64_t value = 0;
  return parse_number(trim(header), &value) ? std::optional(value) : std::nullopt;
}

std::optional<std::string> redirect_target(const std::string& url, const std::string& location) {
  const UrlHandle handle = parse_url(url);
  if (handle == nullptr || location.empty()) return std::nullopt;
  if (curl_url_set(handle.get(), CURLUPART_URL, location.c_str(),
                   CURLU_NON_SUPPORT_SCHEME | CURLU_URLENCODE) != CURLUE_OK)
    return std::nullopt;
  const std::string scheme = url_part(handle, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") return std::nullopt;
  std::string out = url_part(handle, CURLUPART_URL);
  if (out.empty()) return std::nullopt;
  return out;
}

std::string origin_of(const std::string& url) {
  const UrlHandle handle = parse_url(url);
  if (handle == nullptr) return {};
  const std::string scheme = url_part(handle, CURLUPART_SCHEME);
  const std::string host = ascii_lower(url_part(handle, CURLUPART_HOST));
  if (scheme.empty() || host.empty()) return {};
  return scheme + "://" + host + ":" + url_part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string path_and_query(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t slash = url.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  return slash == std::string::npos ? "/" : url.substr(slash);
}

std::string encode_path(std::string_view path) {
  return encode(path, true);
}
std::string encode_part(std::string_view part) {
  return encode(part, false);
}

}  // namespace kvasir::hub
