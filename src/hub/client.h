// Questions to a hub, and its refusals as errors that say what to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "hub/http.h"
#include "hub/listing.h"
#include "hub/settings.h"

namespace kvasir::hub {

// What a failed response means to the user. `what` names the thing asked for ("org/name@main", or a file of
// it); `file` is empty for the repository itself. Always throws: not_found (also for what may not be had),
// corrupt_file, cancelled.
[[noreturn]] void throw_response_error(const HttpResponse& response, const HubSettings& settings,
                                       const std::string& repo, const std::string& revision,
                                       const std::string& file);

// Whether a failed response may come right when asked again.
bool is_transient(const HttpResponse& response);

// Seconds to wait before attempt `attempt` (1, 2, ...): what the server asked for, else doubling from half a
// second, with a little chance so that processes do not march in step.
double backoff_seconds(const HttpResponse& response, int attempt);

// Waits, polling `cancelled`; false when cancelled.
bool wait_seconds(double seconds, const std::function<bool()>& cancelled);

// More than this is not waited for: the error says how long the server asks.
inline constexpr double kLongestWait = 300;

struct HubClientOptions {
  int retries = 5;  // attempts after the first, without progress
  std::function<bool()> cancelled;
  std::function<void(const std::string&)> note;  // one line for the user: "429 from ...: waiting 3 s"
};

class HubClient {
 public:
  HubClient(HubSettings settings, HubClientOptions options);

  const HubSettings& settings() const { return settings_; }
  const HubClientOptions& options() const { return options_; }

  // The commit that `revision` names and the files at it. Throws Error{not_found, corrupt_file, cancelled}.
  Listing list(const std::string& repo, const std::string& revision);

  // Where a file's bytes are: .../{repo}/resolve/{commit}/{path}.
  std::string file_url(const std::string& repo, const std::string& commit, const std::string& path) const;

  // Bytes of files that came over the network, for reports.
  uint64_t received_bytes() const { return received_.load(); }
  void count_received(uint64_t bytes) { received_ += bytes; }

  bool cancelled() const { return options_.cancelled && options_.cancelled(); }
  void note(const std::string& line) const {
    if (options_.note) options_.note(line);
  }

 private:
  HttpResponse get_json(const std::string& url, const std::string& repo, const std::string& revision);

  HubSettings settings_;
  HubClientOptions options_;
  std::string origin_;
  std::atomic<uint64_t> received_ = 0;
  HttpClient http_;
};

}  // namespace kvasir::hub
