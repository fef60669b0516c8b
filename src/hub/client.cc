#include "hub/client.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "hub/headers.h"

namespace kvasir::hub {
namespace {

constexpr int kMaxPages = 10'000;

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string hub_header(const HttpResponse& response, const char* name) {
  const std::string* value = response.hub_header(name);
  return value == nullptr ? std::string() : *value;
}

std::string token_hint(const HubSettings& settings) {
  if (settings.token.empty())
    return fmt::format("make a token at {}/settings/tokens, then set HF_TOKEN to it or write it to {}",
                       settings.endpoint, settings.token_file);
  return fmt::format("the token in use comes from {}: it must belong to an account with access",
                     settings.token_source);
}

[[noreturn]] void access_error(const HttpResponse& response, const HubSettings& settings,
                               const std::string& repo) {
  const std::string code = hub_header(response, "x-error-code");
  if (code == "GatedRepo" || (response.status == 403 && code.empty()))
    throw_error(ErrorCode::not_found, "access to {} is restricted ({}): accept its licence at {}/{}, and {}",
                repo, response.status, settings.endpoint, repo, token_hint(settings));
  const std::string said = hub_header(response, "x-error-message");
  if (!settings.token.empty() && response.status == 401)
    throw_error(ErrorCode::not_found,
                "the hub refuses the token from {} ({}){}{}: make a new one at {}/settings/tokens",
                settings.token_source, response.status, said.empty() ? "" : ": ", printable(said),
                settings.endpoint);
  // The hub answers 401 for what does not exist, too, so as not to tell which private repositories there are.
  throw_error(ErrorCode::not_found,
              "{}: no such repository, or a private or gated one ({}): check the name, or {}", repo,
              response.status, token_hint(settings));
}

[[noreturn]] void network_error(const HttpResponse& response, const HubSettings& settings,
                                const std::string& what) {
  const std::string host = printable(origin_of(response.url));
  switch (response.failure) {
    case NetworkFailure::stopped:
      throw_error(ErrorCode::cancelled, "interrupted while fetching {}", what);
    case NetworkFailure::resolve:
      throw_error(
          ErrorCode::not_found,
          "{} cannot be reached: its name does not resolve (no network? a proxy is set with https_proxy, a "
          "mirror with HF_ENDPOINT)",
          host);
    case NetworkFailure::connect:
      throw_error(ErrorCode::not_found,
                  "{} cannot be reached: {} (no network? a proxy is set with https_proxy)", host,
                  printable(response.failure_text));
    case NetworkFailure::tls:
      throw_error(
          ErrorCode::not_found,
          "{}: no secure connection: {} (certificates of a proxy are named by SSL_CERT_FILE; is the clock "
          "right?)",
          host, printable(response.failure_text));
    case NetworkFailure::stalled:
      throw_error(ErrorCode::not_found,
                  "{}: nothing came from {} for {:.0f} s (HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)",
                  what, host, settings.timeout);
    case NetworkFailure::protocol:
      throw_error(ErrorCode::corrupt_file, "{}: {} does not answer like a hub: {}", what, host,
                  printable(response.failure_text));
    case NetworkFailure::cut:
    case NetworkFailure::none:
      throw_error(ErrorCode::not_found, "{}: the connection to {} broke: {}", what, host,
                  printable(response.failure_text));
  }
  check_failed("network failure", __FILE__, __LINE__, {});
}

}  // namespace

void throw_response_error(const HttpResponse& response, const HubSettings& settings, const std::string& repo,
                          const std::string& revision, const std::string& file) {
  const std::string what =
      file.empty() ? fmt::format("{}@{}", repo, revision) : fmt::format("{}/{}", repo, printable(file));
  if (response.failure != NetworkFailure::none) network_error(response, settings, what);
  const std::string code = hub_header(response, "x-error-code");
  const std::string said = hub_header(response, "x-error-message");
  if (code == "RevisionNotFound")
    throw_error(ErrorCode::not_found, "{}: no revision '{}' (a branch, tag or commit; without @ it is main)",
                repo, printable(revision));
  if (code == "EntryNotFound")
    throw_error(ErrorCode::not_found, "{}: no such file at revision {}", what, printable(revision));
  if (code == "GatedRepo" || response.status == 401 || response.status == 403 || code == "RepoNotFound")
    access_error(response, settings, repo);
  if (response.status == 404)
    throw_error(ErrorCode::not_found, "{}: not found on {}: check repository, revision and file", what,
                settings.endpoint);
  if (response.status == 429) {
    const std::string* after = response.header("retry-after");
    const std::optional<double> seconds =
        after != nullptr ? parse_retry_after(*after, now_seconds()) : std::nullopt;
    throw_error(ErrorCode::not_found, "{}: {} limits requests (429){}: try again later{}", what,
                printable(origin_of(response.url)),
                seconds ? fmt::format(" and asks to wait {:.0f} s", *seconds) : std::string(),
                settings.token.empty() ? ", or with a token (HF_TOKEN), which has higher limits" : "");
  }
  throw_error(ErrorCode::not_found, "{}: {} answered {}{}{}", what, printable(origin_of(response.url)),
              response.status, said.empty() ? "" : ": ", printable(said));
}

bool is_transient(const HttpResponse& response) {
  switch (response.failure) {
    case NetworkFailure::none:
      return response.status == 408 || response.status == 429 || response.status >= 500;
    case NetworkFailure::resolve:
    case NetworkFailure::connect:
    case NetworkFailure::stalled:
    case NetworkFailure::cut:
      return true;
    case NetworkFailure::tls:  // a certificate that does not verify will not verify the next time
    case NetworkFailure::stopped:
    case NetworkFailure::protocol:
      return false;
  }
  return false;
}

double backoff_seconds(const HttpResponse& response, int attempt) {
  if (response.failure == NetworkFailure::none)
    if (const std::string* after = response.header("retry-after"))
      if (const std::optional<double> seconds = parse_retry_after(*after, now_seconds())) return *seconds;
  thread_local std::minstd_rand random{std::random_device{}()};
  const double base = 0.5 * static_cast<double>(1 << std::min(attempt - 1, 6));
  return base * std::uniform_real_distribution<double>(0.8, 1.2)(random);
}

bool wait_seconds(double seconds, const std::function<bool()>& cancelled) {
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < end) {
    if (cancelled && cancelled()) return false;
    std::this_thread::sleep_for(std::min(
        end - Clock::now(), std::chrono::duration_cast<Clock::duration>(std::chrono::milliseconds(50))));
  }
  return true;
}

HubClient::HubClient(HubSettings settings, HubClientOptions options)
    : settings_(std::move(settings)),
      options_(std::move(options)),
      origin_(origin_of(settings_.endpoint)),
      http_(settings_.timeout, options_.cancelled) {}

HttpResponse HubClient::get_json(const std::string& url, const std::string& repo,
                                 const std::string& revision) {
  for (int attempt = 1;; ++attempt) {
    HttpRequest request;
    request.url = url;
    request.token = settings_.token;
    request.token_origin = origin_;
    request.headers = {"Accept: application/json"};
    HttpResponse response = http_.get(request);
    if (response.failure == NetworkFailure::none && response.status == 200) return response;
    // Without a network there is no point in asking five times for the first thing of all.
    const bool unreachable =
        response.failure == NetworkFailure::resolve || response.failure == NetworkFailure::connect;
    if (!is_transient(response) || attempt > (unreachable ? std::min(options_.retries, 1) : options_.retries))
      throw_response_error(response, settings_, repo, revision, {});
    const double seconds = backoff_seconds(response, attempt);
    if (seconds > kLongestWait) throw_response_error(response, settings_, repo, revision, {});
    if (response.status == 429) note(fmt::format("{} limits requests: waiting {:.0f} s", origin_, seconds));
    if (!wait_seconds(seconds, options_.cancelled)) throw Error(ErrorCode::cancelled, "interrupted");
  }
}

Listing HubClient::list(const std::string& repo, const std::string& revision) {
  if (settings_.offline)
    throw_error(ErrorCode::not_found,
                "offline: the files of {} cannot be listed (HF_HUB_OFFLINE or --offline)", repo);
  Listing listing;
  listing.repo = repo;
  listing.revision = revision;
  const std::string api = fmt::format("{}/api/models/{}", settings_.endpoint, repo);
  const std::string info_url = fmt::format("{}/revision/{}", api, encode_part(revision));
  listing.commit = parse_commit(get_json(info_url, repo, revision).body, info_url);
  std::string url = fmt::format("{}/tree/{}?recursive=true", api, listing.commit);
  for (int pages = 1;; ++pages) {
    const HttpResponse response = get_json(url, repo, revision);
    parse_tree_page(response.body, url, &listing.files);
    const std::string* link = response.header("link");
    const std::optional<std::string> next = link != nullptr ? next_link(*link) : std::nullopt;
    if (!next) break;
    // A mirror may pass on links that name the public hub: only their path is followed, so that neither the
    // question nor the token goes anywhere else.
    const std::optional<std::string> target = redirect_target(url, *next);
    if (!target || pages == kMaxPages || path_and_query(*target) == path_and_query(url))
      throw_error(ErrorCode::corrupt_file, "{}: a page of the listing leads nowhere", printable(url));
    url = origin_ + path_and_query(*target);
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  for (size_t i = 1; i < listing.files.size(); ++i)
    if (listing.files[i].path == listing.files[i - 1].path)
      throw_error(ErrorCode::corrupt_file, "{}: '{}' is listed twice", repo,
                  printable(listing.files[i].path));
  return listing;
}

std::string HubClient::file_url(const std::string& repo, const std::string& commit,
                                const std::string& path) const {
  return fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, repo, commit, encode_path(path));
}

}  // namespace kvasir::hub
