#include "tokenizer/json_reader.h"

#include <utility>

namespace kvasir::tokenizer {
namespace {

constexpr size_t kDeepest = 64;

// Python writes these where JSON has no number; nothing that a tokenizer needs is ever one.
std::string without_special_numbers(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (in_string) {
      if (text[i] == '\\' && i + 1 < text.size()) out += text[i++];
      if (text[i] == '"') in_string = false;
      out += text[i++];
      continue;
    }
    bool replaced = false;
    for (std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (text.substr(i, word.size()) == word) {
        out += "null";
        i += word.size();
        replaced = true;
        break;
      }
    }
    if (replaced) continue;
    in_string = text[i] == '"';
    out += text[i++];
  }
  return out;
}

}  // namespace

void JsonValue::wrong(std::string_view expected) const {
  const char* type = "nothing";
  switch (element_.type()) {
    case simdjson::dom::element_type::ARRAY:
      type = "an array";
      break;
    case simdjson::dom::element_type::OBJECT:
      type = "an object";
      break;
    case simdjson::dom::element_type::INT64:
    case simdjson::dom::element_type::UINT64:
    case simdjson::dom::element_type::DOUBLE:
      type = "another number";
      break;
    case simdjson::dom::element_type::STRING:
      type = "a string";
      break;
    case simdjson::dom::element_type::BOOL:
      type = "true or false";
      break;
    case simdjson::dom::element_type::NULL_VALUE:
      type = "null";
      break;
  }
  throw_error(ErrorCode::corrupt_file, "{}: {}: expected {}, got {}", *file_,
              path_.empty() ? "the file" : path_, expected, type);
}

void JsonValue::fail(ErrorCode code, std::string_view what) const {
  throw_error(code, "{}: {}: {}", *file_, path_.empty() ? "the file" : path_, what);
}

JsonValue JsonValue::at(std::string_view key) const {
  simdjson::dom::element value;
  if (object().at_key(key).get(value))
    fail(ErrorCode::corrupt_file, fmt::format("member {} is missing", key));
  return member(value, key);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  simdjson::dom::element value;
  if (object().at_key(key).get(value) || value.is_null()) return std::nullopt;
  return member(value, key);
}

JsonDocument::JsonDocument(std::string_view text, std::string file, size_t limit) : file_(std::move(file)) {
  if (text.size() > limit) {
    throw_error(ErrorCode::corrupt_file, "{}: {} bytes, the limit is {}", file_, text.size(), limit);
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  auto error = parser_.allocate(std::max<size_t>(text.size(), 64), kDeepest);
  if (!error) error = parser_.parse(text.data(), text.size(), true).get(root_);
  if (error && (text.find("NaN") != text.npos || text.find("Infinity") != text.npos)) {
    const std::string plain = without_special_numbers(text);
    error = parser_.allocate(std::max<size_t>(plain.size(), 64), kDeepest);
    if (!error) error = parser_.parse(plain).get(root_);
  }
  if (error) {
    throw_error(ErrorCode::corrupt_file, "{}: invalid JSON: {}", file_, simdjson::error_message(error));
  }
}

}  // namespace kvasir::tokenizer
