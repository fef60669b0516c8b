// JSON that a person or a program gives: messages, tools, variables, lists of ids. Files of checkpoints are
// read by formats/json.h, which is stricter.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kvasir {

// RFC 8259, keys in their order; of equal keys the last counts. Nesting beyond the limit, which recursion
// over the value would not survive, is an error. Throws Error{`code`} naming `what`, the reason and the
// place.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what,
                                          ErrorCode code = ErrorCode::invalid_input, int depth_limit = 64);
// The same; nothing for text that is no JSON. Only what cannot be held is an error.
std::optional<nlohmann::ordered_json> find_ordered_json(std::string_view text, const std::string& what);

}  // namespace kvasir
