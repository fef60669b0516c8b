#include "chat/messages.h"

#include <string>

#include "base/error.h"
#include "base/ordered_json.h"

namespace kvasir::chat {
namespace {

constexpr int kMaxSchemaDepth = 64;

void parse_tool_arguments(Json& message, size_t index) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_array())
    throw_error(ErrorCode::invalid_input, "messages[{}].tool_calls must be an array, got {}", index,
                calls->type_name());
  for (size_t c = 0; c < calls->size(); ++c) {
    Json& call = (*calls)[c];
    if (!call.is_object())
      throw_error(ErrorCode::invalid_input, "messages[{}].tool_calls[{}] must be an object, got {}", index, c,
                  call.type_name());
    const auto function = call.find("function");
    Json& holder = function != call.end() && function->is_object() ? *function : call;
    const auto arguments = holder.find("arguments");
    if (arguments == holder.end() || !arguments->is_string()) continue;
    const std::optional<Json> parsed =
        find_ordered_json(arguments->get_ref<const std::string&>(),
                          fmt::format("messages[{}].tool_calls[{}]: its arguments", index, c));
    if (!parsed || !parsed->is_object())
      throw_error(ErrorCode::invalid_input,
                  "messages[{}].tool_calls[{}]: its arguments are not a JSON object: {}", index, c,
                  printable(arguments->get_ref<const std::string&>()));
    *arguments = *parsed;
  }
}

std::string type_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "integer";
    case Json::value_t::number_float:
      return "number";
    case Json::value_t::array:
      return "array";
    case Json::value_t::object:
      return "object";
    case Json::value_t::null:
      return "null";
    default:
      return "string";
  }
}

std::string infer_type(const Json& schema) {
  if (const auto it = schema.find("enum"); it != schema.end() && it->is_array() && !it->empty())
    return type_of_value((*it)[0]);
  if (const auto it = schema.find("const"); it != schema.end()) return type_of_value(*it);
  if (schema.contains("properties")) return "object";
  if (schema.contains("items")) return "array";
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto it = schema.find(key);
    if (it == schema.end() || !it->is_array()) continue;
    for (const Json& branch : *it)
      if (branch.is_object() && branch.value("type", Json()).is_string())
        return branch["type"].get<std::string>();
  }
  return "string";
}

void type_schema(Json& schema, int depth) {
  if (!schema.is_object()) return;
  if (depth > kMaxSchemaDepth)
    throw_error(ErrorCode::invalid_input, "a tool's schema is nested more than {} levels deep",
                kMaxSchemaDepth);
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const auto it = schema.find(key); it != schema.end() && it->is_array())
      for (Json& branch : *it) type_schema(branch, depth + 1);
  if (const auto it = schema.find("properties"); it != schema.end() && it->is_object())
    for (auto& [name, property] : it->items()) type_schema(property, depth + 1);
  for (const char* key : {"items", "additionalProperties"})
    if (const auto it = schema.find(key); it != schema.end()) type_schema(*it, depth + 1);
  if (!schema.contains("type")) schema["type"] = infer_type(schema);
}

}  // namespace

const std::vector<std::string_view>& reasoning_fields() {
  static const std::vector<std::string_view> fields = {"reasoning_content", "thinking", "reasoning"};
  return fields;
}

Json prepare_messages(const Json& messages) {
  if (!messages.is_array())
    throw_error(ErrorCode::invalid_input, "messages must be an array of objects, got {}",
                messages.type_name());
  if (messages.empty())
    throw_error(ErrorCode::invalid_input, "messages is empty: a conversation needs at least one message");
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& given = messages[i];
    if (!given.is_object())
      throw_error(ErrorCode::invalid_input, "messages[{}] must be an object with a role, got {}", i,
                  given.type_name());
    const auto role = given.find("role");
    if (role == given.end()) throw_error(ErrorCode::invalid_input, "messages[{}] has no role", i);
    if (!role->is_string())
      throw_error(ErrorCode::invalid_input, "messages[{}].role must be a text, got {}", i, role->type_name());
    Json message = Json::object();
    const Json* reasoning = nullptr;
    for (const std::string_view name : reasoning_fields()) {
      const auto it = given.find(name);
      if (reasoning == nullptr && it != given.end() && !it->is_null()) reasoning = &*it;
    }
    const auto thinking = given.find("thinking");
    // transformers puts `thinking` first, whether it was given or not.
    if (reasoning != nullptr)
      message["thinking"] = thinking == given.end() || thinking->is_null() ? *reasoning : *thinking;
    for (const auto& [key, value] : given.items())
      if (!value.is_null()) message[key] = value;
    if (reasoning != nullptr) message["reasoning_content"] = *reasoning;
    parse_tool_arguments(message, i);
    out.push_back(std::move(message));
  }
  return out;
}

Json collapse_text_parts(Json messages) {
  for (Json& message : messages) {
    if (!message.is_object()) continue;
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    std::string text;
    bool only_text = true;
    for (const Json& part : *content) {
      only_text = only_text && part.is_object() && part.value("type", Json()) == "text" &&
                  part.value("text", Json()).is_string();
      if (!only_text) break;
      text += part["text"].get<std::string>();
    }
    if (only_text) *content = std::move(text);
  }
  return messages;
}

Json infer_schema_types(Json tools) {
  if (!tools.is_array()) return tools;
  for (Json& tool : tools) {
    if (!tool.is_object()) continue;
    const auto function = tool.find("function");
    Json& holder = function != tool.end() && function->is_object() ? *function : tool;
    if (const auto it = holder.find("parameters"); it != holder.end()) type_schema(*it, 0);
  }
  return tools;
}

}  // namespace kvasir::chat
