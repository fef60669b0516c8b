// Conversations as templates expect them.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace kvasir::chat {

using Json = nlohmann::ordered_json;

// The members under which the reasoning of a message is known, the standard one first.
const std::vector<std::string_view>& reasoning_fields();

// Checks a conversation and gives it the form that every template gets (transformers' normalisation, and
// parsed tool calls): members that are null are dropped; reasoning is present as `reasoning_content` and
// `thinking`; arguments of tool calls that are JSON text become objects. Throws Error{invalid_input} naming
// the message (and call).
Json prepare_messages(const Json& messages);

// Content that is a list of text parts only becomes one string (many templates print nothing for lists). The
// server does this with requests; templates that handle lists give the same text either way.
Json collapse_text_parts(Json messages);

// Every node of the tools' JSON schemas that has no `type` gets one: that of its enum or const values,
// `object` if it has properties, `array` if it has items, that of its first typed alternative, else `string`.
// For templates that print `type` of every node (Gemma 4's); on request only.
Json infer_schema_types(Json tools);

}  // namespace kvasir::chat
