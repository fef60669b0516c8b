#include "formats/json.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/json_scanner.h"

namespace kvasir::formats {
namespace {

// {"__float__": "NaN" | "Infinity" | "-Infinity"}, as transformers 5 writes floats that JSON lacks.
void unwrap_tagged_float(nlohmann::json* object) {
  if (object->size() != 1) return;
  const auto tag = object->find("__float__");
  if (tag == object->end() || !tag->is_string()) return;
  const auto& text = tag->get_ref<const std::string&>();
  double value = std::numeric_limits<double>::infinity();
  if (text == "NaN")
    value = std::numeric_limits<double>::quiet_NaN();
  else if (text == "-Infinity")
    value = -value;
  else if (text != "Infinity")
    return;
  *object = value;
}

// Recursion is bounded by the scanner's depth limit.
nlohmann::json read_value(JsonScanner& scanner) {
  switch (scanner.peek()) {
    case JsonScanner::Kind::object: {
      nlohmann::json object = nlohmann::json::object();
      scanner.begin_object();
      std::string_view key;
      for (size_t at = scanner.position(); scanner.next_key(&key); at = scanner.position()) {
        const auto [place, inserted] = object.emplace(std::string(key), nullptr);
        if (!inserted) scanner.fail(fmt::format("duplicate key \"{}\"", printable(key)), at);
        *place = read_value(scanner);
      }
      unwrap_tagged_float(&object);
      return object;
    }
    case JsonScanner::Kind::array: {
      nlohmann::json array = nlohmann::json::array();
      scanner.begin_array();
      while (scanner.next_element()) array.push_back(read_value(scanner));
      return array;
    }
    case JsonScanner::Kind::string:
      return std::string(scanner.string());
    case JsonScanner::Kind::number: {
      const JsonScanner::Number number = scanner.number();
      if (number.form == JsonScanner::Number::Form::real) return number.real;
      if (number.form == JsonScanner::Number::Form::u64) return number.u64;
      return number.i64;
    }
    case JsonScanner::Kind::boolean:
      return scanner.boolean();
    case JsonScanner::Kind::null:
      scanner.null();
      return nullptr;
  }
  return nullptr;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file, int depth_limit) {
  JsonScanner scanner(text, file, {.depth = depth_limit, .non_finite = true});
  nlohmann::json value = read_value(scanner);
  scanner.finish();
  return value;
}

nlohmann::json read_json_file(const std::filesystem::path& path, size_t byte_limit, int depth_limit) {
  return parse_json(read_file(path, byte_limit), path.string(), depth_limit);
}

std::string shown(const nlohmann::json& value) {
  // JSON has no word for these: dump() writes null.
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return fmt::format("{}", value.get<double>());
  return printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::optional<std::vector<int32_t>> token_ids(const nlohmann::json& value) {
  std::vector<int32_t> ids;
  auto add = [&](const nlohmann::json& id) {
    // As u64, negative numbers are beyond the limit too.
    if (!id.is_number_integer() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) return false;
    ids.push_back(id.get<int32_t>());
    return true;
  };
  if (value.is_null()) return ids;
  if (!value.is_array()) return add(value) ? std::optional(ids) : std::nullopt;
  for (const nlohmann::json& id : value)
    if (!add(id)) return std::nullopt;
  return ids;
}

}  // namespace kvasir::formats
