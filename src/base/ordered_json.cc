#include "base/ordered_json.h"

#include <algorithm>

namespace kvasir {

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what, ErrorCode code,
                                          int depth_limit) {
  using Json = nlohmann::ordered_json;
  int depth = 0;
  bool too_deep = false;
  const auto watch = [&](int, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    depth += event == Event::object_start || event == Event::array_start;
    depth -= event == Event::object_end || event == Event::array_end;
    too_deep = too_deep || depth > depth_limit;
    return !too_deep;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    const size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw_error(code, "{}: is not JSON (line {}, byte {})", printable(what), line, at);
  } catch (const Json::exception&) {
    throw_error(code, "{}: is not JSON that can be held: a number is out of range", printable(what));
  }
  if (too_deep) throw_error(code, "{}: is nested more than {} levels deep", printable(what), depth_limit);
  return json;
}

std::optional<nlohmann::ordered_json> find_ordered_json(std::string_view text, const std::string& what) {
  if (!nlohmann::ordered_json::accept(text)) return std::nullopt;
  return parse_ordered_json(text, what);
}

}  // namespace kvasir
