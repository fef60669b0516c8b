#include "models/config_fields.h"

#include <cmath>

#include "base/error.h"

namespace kvasir::models {
namespace {

constexpr int64_t kLargest = 2147483647;
constexpr char kCount[] = "a whole number from 1 to 2147483647";
constexpr char kSize[] = "a whole number from 0 to 2147483647";

}  // namespace

ConfigFields::ConfigFields(const nlohmann::json& object, std::string where, std::set<std::string>* read,
                           const FieldNames* names)
    : object_(&object), where_(std::move(where)), read_(read), names_(names) {
  if (!object.is_object())
    throw_error(ErrorCode::corrupt_file, "{}: expected a JSON object, found {}", where_, object.type_name());
}

const nlohmann::json* ConfigFields::find(std::string_view key) const {
  if (read_ != nullptr) read_->emplace(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::has(std::string_view key) const {
  return find(key) != nullptr;
}

std::string ConfigFields::name(std::string_view key) const {
  if (names_ == nullptr) return std::string(key);
  const auto found = names_->find(outer_ + std::string(key));
  return found == names_->end() ? std::string(key) : found->second;
}

void ConfigFields::reject(std::string_view key, std::string_view expected) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr)
    throw_error(ErrorCode::corrupt_file, "{}: {} is missing, expected {}", where_, name(key), expected);
  throw_error(ErrorCode::corrupt_file, "{}: {} is {}, expected {}", where_, name(key), shown(*value),
              expected);
}

int64_t ConfigFields::integer_in(std::string_view key, const nlohmann::json& value, int64_t least,
                                 int64_t most, std::string_view expected) const {
  // 256.0 is a whole number too: some exporters write sizes as reals.
  if (value.is_number_float()) {
    const double real = value.get<double>();
    if (!(real >= static_cast<double>(least) && real <= static_cast<double>(most)) ||
        real != std::floor(real))
      reject(key, expected);
    return static_cast<int64_t>(real);
  }
  if (!value.is_number_integer()) reject(key, expected);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kLargest))
    reject(key, expected);
  const int64_t integer = value.get<int64_t>();
  if (integer < least || integer > most) reject(key, expected);
  return integer;
}

int64_t ConfigFields::count(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) reject(key, kCount);
  return integer_in(key, *value, 1, kLargest, kCount);
}
int64_t ConfigFields::count(std::string_view key, int64_t otherwise) const {
  return has(key) ? count(key) : otherwise;
}

int64_t ConfigFields::size(std::string_view key, int64_t otherwise) const {
  const nlohmann::json* value = find(key);
  return value == nullptr ? otherwise : integer_in(key, *value, 0, kLargest, kSize);
}

double ConfigFields::real(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>()))
    reject(key, "a finite number");
  return value->get<double>();
}
double ConfigFields::real(std::string_view key, double otherwise) const {
  return has(key) ? real(key) : otherwise;
}
std::optional<double> ConfigFields::find_real(std::string_view key) const {
  return has(key) ? std::optional(real(key)) : std::nullopt;
}

double ConfigFields::positive(std::string_view key) const {
  const double value = real(key);
  if (!(value > 0)) reject(key, "a number above 0");
  return value;
}
double ConfigFields::positive(std::string_view key, double otherwise) const {
  return has(key) ? positive(key) : otherwise;
}

bool ConfigFields::flag(std::string_view key, bool otherwise) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) reject(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigFields::find_text(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) reject(key, "a string");
  return value->get<std::string>();
}
std::string ConfigFields::text(std::string_view key, std::string_view otherwise) const {
  return find_text(key).value_or(std::string(otherwise));
}

std::optional<std::vector<int64_t>> ConfigFields::find_integers(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) reject(key, "a list of whole numbers");
  std::vector<int64_t> out;
  for (const nlohmann::json& item : *value)
    out.push_back(integer_in(key, item, -kLargest, kLargest, "a list of whole numbers"));
  return out;
}

std::optional<std::vector<double>> ConfigFields::find_reals(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) reject(key, "a list of numbers");
  std::vector<double> out;
  for (const nlohmann::json& item : *value) {
    if (!item.is_number() || !std::isfinite(item.get<double>())) reject(key, "a list of finite numbers");
    out.push_back(item.get<double>());
  }
  return out;
}

std::optional<std::vector<std::string>> ConfigFields::find_texts(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) reject(key, "a list of strings");
  std::vector<std::string> out;
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) reject(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<int32_t> ConfigFields::token_ids(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return {};
  auto ids = formats::token_ids(*value);
  if (!ids) reject(key, formats::kTokenIds);
  return *std::move(ids);
}

std::optional<ConfigFields> ConfigFields::find_object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) reject(key, "an object");
  // A file with names of its own has no such object.
  ConfigFields inner(*value, names_ == nullptr ? where_ + ": " + std::string(key) : where_);
  inner.names_ = names_;
  inner.outer_ = outer_ + std::string(key) + ".";
  return inner;
}

}  // namespace kvasir::models
