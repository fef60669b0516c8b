// Reading the members of a tokenizer.json: every miss is an error that names the member's path.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kvasir::tokenizer {

// A JSON value and where it stands ("model.merges[3]").
class JsonValue {
 public:
  JsonValue(simdjson::dom::element element, std::string path, const std::string* file)
      : element_(element), path_(std::move(path)), file_(file) {}

  const std::string& path() const { return path_; }
  const simdjson::dom::element& raw() const { return element_; }
  bool is_null() const { return element_.is_null(); }
  bool is_string() const { return element_.is_string(); }
  bool is_object() const { return element_.is_object(); }
  bool is_array() const { return element_.is_array(); }

  std::string_view string() const { return get<std::string_view>("a string"); }
  bool boolean() const { return get<bool>("true or false"); }
  double number() const { return get<double>("a number"); }
  simdjson::dom::object object() const { return get<simdjson::dom::object>("an object"); }
  simdjson::dom::array array() const { return get<simdjson::dom::array>("an array"); }
  // An integer in [0, limit].
  uint64_t count(uint64_t limit) const {
    uint64_t value = 0;
    if (element_.get(value) || value > limit) wrong("an integer from 0 to " + std::to_string(limit));
    return value;
  }

  // A member, which must exist / if it exists and is not null.
  JsonValue at(std::string_view key) const;
  std::optional<JsonValue> find(std::string_view key) const;
  JsonValue item(simdjson::dom::element element, size_t index) const {
    return {element, fmt::format("{}[{}]", path_, index), file_};
  }
  JsonValue member(simdjson::dom::element element, std::string_view key) const {
    return {element, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, printable(key)), file_};
  }

  bool boolean_or(std::string_view key, bool fallback) const {
    const auto value = find(key);
    return value ? value->boolean() : fallback;
  }
  std::string string_or(std::string_view key, std::string_view fallback) const {
    const auto value = find(key);
    return std::string(value ? value->string() : fallback);
  }

  [[noreturn]] void wrong(std::string_view expected) const;
  [[noreturn]] void fail(ErrorCode code, std::string_view what) const;

 private:
  template <typename T>
  T get(std::string_view expected) const {
    T value;
    if (element_.get(value)) wrong(expected);
    return value;
  }

  simdjson::dom::element element_;
  std::string path_;
  const std::string* file_;
};

// A parsed text. `limit` and depth 64 hold; Python's NaN, Infinity and -Infinity read as null.
class JsonDocument {
 public:
  JsonDocument(std::string_view text, std::string file, size_t limit);
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonValue root() const { return {root_, "", &file_}; }

 private:
  std::string file_;
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
};

}  // namespace kvasir::tokenizer
