// The response headers that downloads depend on, parsed from untrusted text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::hub {

// The target of rel="next" in a Link header (RFC 8288), where there is one.
std::optional<std::string> next_link(std::string_view header);

// An entity tag without W/ and quotes; empty for one that is malformed.
std::string bare_etag(std::string_view header);

// 40 (git's SHA-1) or 64 (SHA-256) lower-case hexadecimal digits: what the hub's etags are.
bool is_digest(std::string_view text);

struct ContentRange {
  uint64_t first = 0, last = 0;   // inclusive
  std::optional<uint64_t> total;  // "*": not known
};
// "bytes 0-99/1000"; nothing for any other form.
std::optional<ContentRange> parse_content_range(std::string_view header);

// Seconds from "120" or from an HTTP date (`now`: seconds since the epoch); nothing when it is neither.
std::optional<double> parse_retry_after(std::string_view header, int64_t now);

std::optional<uint64_t> parse_length(std::string_view header);

// Where a redirect leads: `location` may be relative to `url`. Nothing when it cannot be parsed or is neither
// http nor https.
std::optional<std::string> redirect_target(const std::string& url, const std::string& location);

// "https://host:port" with the port always written; empty for what is no URL.
std::string origin_of(const std::string& url);
// The path and query of a URL, from its first "/".
std::string path_and_query(const std::string& url);

// Percent-encodes a path part by part ("/" stays), or one part of it ("/" becomes %2F).
std::string encode_path(std::string_view path);
std::string encode_part(std::string_view part);

}  // namespace kvasir::hub
