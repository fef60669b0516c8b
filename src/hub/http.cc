#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/ascii.h"
#include "base/environment.h"
#include "base/error.h"
#include "hub/headers.h"

namespace kvasir::hub {
namespace {

constexpr int kRedirects = 8;
constexpr size_t kErrorBodyLimit = size_t{16} << 10;
constexpr size_t kHeaderLimit = size_t{256} << 10;

NetworkFailure failure_of(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return NetworkFailure::none;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return NetworkFailure::resolve;
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
      return NetworkFailure::connect;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return NetworkFailure::tls;
    case CURLE_OPERATION_TIMEDOUT:
      return NetworkFailure::stalled;
    case CURLE_WRITE_ERROR:
    case CURLE_ABORTED_BY_CALLBACK:
      return NetworkFailure::stopped;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_WEIRD_SERVER_REPLY:
      return NetworkFailure::protocol;
    default:  // CURLE_PARTIAL_FILE, CURLE_RECV_ERROR, CURLE_GOT_NOTHING, HTTP/2 stream errors and their like
      return NetworkFailure::cut;
  }
}

const std::string* find(const std::map<std::string, std::string>& headers, const std::string& name) {
  const auto at = headers.find(name);
  return at == headers.end() ? nullptr : &at->second;
}

struct HeaderList {
  curl_slist* list = nullptr;
  ~HeaderList() { curl_slist_free_all(list); }
  void add(const std::string& header) {
    curl_slist* longer = curl_slist_append(list, header.c_str());
    KVASIR_CHECK(longer != nullptr);
    list = longer;
  }
};

}  // namespace

struct HttpClient::State {
  CURL* curl = nullptr;
  double timeout = 10;
  std::function<bool()> cancelled;
  // Of the request in flight.
  const HttpRequest* request = nullptr;
  HttpResponse response;
  size_t header_bytes = 0;
  bool from_hub = false;  // this hop goes to the origin of the first request
  bool announced = false;
  bool overflow = false;
  std::exception_ptr thrown;

  ~State() {
    if (curl != nullptr) curl_easy_cleanup(curl);
  }

  static size_t on_header(char* data, size_t size, size_t count, void* user) {
    auto& state = *static_cast<State*>(user);
    const std::string_view line(data, size * count);
    state.header_bytes += line.size();
    if (state.header_bytes > kHeaderLimit) return 0;
    // A new status line: an interim response (100), a proxy's, or the answer after a challenge.
    if (line.starts_with("HTTP/")) {
      state.response.headers.clear();
      return line.size();
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return line.size();
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    while (!value.empty() && (value.back() == '\r' || value.back() == '\n' || value.back() == ' '))
      value.remove_suffix(1);
    state.response.headers[ascii_lower(line.substr(0, colon))] = std::string(value);
    return line.size();
  }

  void keep_hub_headers() {
    if (!from_hub) return;
    for (const auto& [name, value] : response.headers) response.hub_headers[name] = value;
  }

  bool announce() {
    announced = true;
    keep_hub_headers();
    return !request->on_response || request->on_response(response);
  }

  size_t take_body(std::string_view data) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    response.status = static_cast<int>(status);
    if (status / 100 == 3) return data.size();
    if (status / 100 != 2) {
      response.body.append(data.substr(0, kErrorBodyLimit - std::min(kErrorBodyLimit, response.body.size())));
      return data.size();
    }
    if (!announced && !announce()) return 0;
    if (request->receive)
      return request->receive(std::as_bytes(std::span(data.data(), data.size()))) ? data.size() : 0;
    if (response.body.size() + data.size() > request->body_limit) {
      overflow = true;
      return 0;
    }
    response.body.append(data);
    return data.size();
  }

  static size_t on_body(char* data, size_t size, size_t count, void* user) {
    auto& state = *static_cast<State*>(user);
    // Exceptions must not pass through C.
    try {
      return state.take_body(std::string_view(data, size * count));
    } catch (...) {
      state.thrown = std::current_exception();
      return size * count == 0 ? 1 : 0;
    }
  }

  static int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& state = *static_cast<State*>(user);
    return state.cancelled && state.cancelled() ? 1 : 0;
  }
};

const std::string* HttpResponse::header(const std::string& name) const {
  return find(headers, name);
}

const std::string* HttpResponse::hub_header(const std::string& name) const {
  return find(hub_headers, name);
}

HttpClient::HttpClient(double timeout, std::function<bool()> cancelled) : state_(std::make_unique<State>()) {
  static std::once_flag once;
  std::call_once(once, [] { KVASIR_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
  state_->curl = curl_easy_init();
  KVASIR_CHECK(state_->curl != nullptr);
  state_->timeout = timeout;
  state_->cancelled = std::move(cancelled);
}

HttpClient::~HttpClient() = default;

HttpResponse HttpClient::once(const HttpRequest& request, const std::string& url, bool with_token,
                              bool from_hub, const std::map<std::string, std::string>& hub_headers) {
  State& state = *state_;
  CURL* curl = state.curl;
  // Options go, the connections that are open stay.
  curl_easy_reset(curl);
  state.request = &request;
  state.response = {};
  state.response.url = url;
  state.response.hub_headers = hub_headers;
  state.from_hub = from_hub;
  state.header_bytes = 0;
  state.announced = state.overflow = false;
  state.thrown = nullptr;

  HeaderList headers;
  for (const std::string& header : request.headers) headers.add(header);
  if (with_token) headers.add("Authorization: Bearer " + request.token);
  char error[CURL_ERROR_SIZE] = {};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kvasir/0.1");
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, std::lround(state.timeout * 1000));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(state.timeout)));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &State::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &state);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &State::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &state);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &State::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &state);
  // Certificate paths as the tools around libcurl take them.
  std::string authorities = environment("CURL_CA_BUNDLE");
  if (authorities.empty()) authorities = environment("SSL_CERT_FILE");
  if (!authorities.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authorities.c_str());

  const CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  state.response.status = static_cast<int>(status);
  // An empty 2xx body calls no receiver: the response still has to be seen.
  const bool refused = code == CURLE_OK && status / 100 == 2 && !state.announced && !state.announce();
  state.keep_hub_headers();
  if (state.thrown) std::rethrow_exception(state.thrown);
  HttpResponse response = std::move(state.response);
  response.failure = state.overflow ? NetworkFailure::protocol : failure_of(code);
  if (state.overflow)
    response.failure_text = fmt::format("the answer is longer than {} bytes", request.body_limit);
  else if (code != CURLE_OK)
    response.failure_text = error[0] != '\0' ? error : curl_easy_strerror(code);
  if (refused) response.failure = NetworkFailure::stopped;
  return response;
}

HttpResponse HttpClient::get(const HttpRequest& request) {
  std::string url = request.url;
  const std::string first_origin = origin_of(url);
  // Once the way leads to another host, the token is not sent again, not even if it leads back.
  bool with_token = !request.token.empty() && first_origin == request.token_origin;
  std::map<std::string, std::string> hub_headers;
  for (int hop = 0;; ++hop) {
    const std::string origin = origin_of(url);
    with_token = with_token && origin == request.token_origin;
    HttpResponse response = once(request, url, with_token, origin == first_origin, hub_headers);
    hub_headers = response.hub_headers;
    if (response.failure != NetworkFailure::none) return response;
    const bool redirect = response.status == 301 || response.status == 302 || response.status == 303 ||
                          response.status == 307 || response.status == 308;
    const std::string* location = response.header("location");
    if (!redirect || location == nullptr) return response;
    const std::optional<std::string> target = redirect_target(url, *location);
    // Only a hub that itself speaks plain http (a local mirror) may send us to plain http.
    const bool downgrade = target && target->starts_with("http://") && request.url.starts_with("https://");
    if (!target || downgrade || hop == kRedirects) {
      response.failure = NetworkFailure::protocol;
      response.failure_text = hop == kRedirects ? fmt::format("more than {} redirects", kRedirects)
                                                : fmt::format("a redirect to '{}'", printable(*location));
      return response;
    }
    url = *target;
  }
}

}  // namespace kvasir::hub
