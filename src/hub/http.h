// One HTTP connection at a time, on libcurl: proxies, certificates and versions are its business (and its
// environment variables': https_proxy, no_proxy, SSL_CERT_FILE). Redirects are followed by hand, so that the
// token never reaches another host.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvasir::hub {

// Why no complete response came. All but `stopped` and `protocol` are worth another attempt.
enum class NetworkFailure : unsigned char {
  none,
  resolve,   // the host's name
  connect,   // nobody answers, or a proxy refuses
  tls,       // certificates, handshakes
  stalled,   // no byte for the time allowed
  cut,       // the connection ended before the body did
  stopped,   // by the receiver of the body, or `cancelled`
  protocol,  // not HTTP, too many redirects, a redirect to something that is not http(s)
};

struct HttpResponse {
  NetworkFailure failure = NetworkFailure::none;
  std::string failure_text;  // of libcurl, for messages
  int status = 0;
  std::map<std::string, std::string> headers;  // of the last response; names in lower case
  std::map<std::string, std::string>
      hub_headers;   // of the last response that came from the first request's origin
  std::string url;   // that answered, after redirects
  std::string body;  // when the request had no receiver, or the status was no 2xx (bounded)

  // Null where there is none; `name` in lower case.
  const std::string* header(const std::string& name) const;
  const std::string* hub_header(const std::string& name) const;
};

struct HttpRequest {
  std::string url;
  std::string token;  // sent as Bearer to the origin of `token_origin`, and to no other
  std::string token_origin;
  std::vector<std::string> headers;  // "Name: value"
  // Called once before the first byte of a 2xx body; false ends the transfer.
  std::function<bool(const HttpResponse&)> on_response;
  // The body of a 2xx response, in pieces; false ends the transfer. None: it is collected in `body`.
  std::function<bool(std::span<const std::byte>)> receive;
  size_t body_limit = size_t{64} << 20;  // of a collected 2xx body
};

class HttpClient {
 public:
  // `timeout`: seconds to connect, and without a byte. `cancelled` is polled at least once a second.
  HttpClient(double timeout, std::function<bool()> cancelled);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpResponse get(const HttpRequest& request);

 private:
  HttpResponse once(const HttpRequest& request, const std::string& url, bool with_token, bool from_hub,
                    const std::map<std::string, std::string>& hub_headers);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir::hub
