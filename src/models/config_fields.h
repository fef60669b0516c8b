// Typed access to a parsed config.json (or what GGUF metadata was turned into), with errors that name the
// field and the value.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace kvasir::models {

using formats::shown;

// What a file calls the fields, where it has names of its own (GGUF's keys); of an object in another as
// "outer.inner".
using FieldNames = std::map<std::string, std::string, std::less<>>;

class ConfigFields {
 public:
  // `object` and `names` outlive this; `where` is what messages call it ("config.json of SmolLM2"). The keys
  // that are asked for are added to `read`.
  ConfigFields(const nlohmann::json& object, std::string where, std::set<std::string>* read = nullptr,
               const FieldNames* names = nullptr);

  const nlohmann::json& object() const { return *object_; }
  const std::string& where() const { return where_; }
  std::string name(std::string_view key) const;  // of a field, as the file has it: what messages call it

  bool has(std::string_view key) const;                    // present and not null
  const nlohmann::json* find(std::string_view key) const;  // null for absent or null

  // Whole numbers in [1, 2^31 - 1] ("count") or [0, 2^31 - 1] ("size"); reals must be finite.
  int64_t count(std::string_view key) const;
  int64_t count(std::string_view key, int64_t otherwise) const;
  int64_t size(std::string_view key, int64_t otherwise) const;
  double real(std::string_view key) const;
  double real(std::string_view key, double otherwise) const;
  double positive(std::string_view key) const;
  double positive(std::string_view key, double otherwise) const;
  std::optional<double> find_real(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  std::optional<std::string> find_text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view otherwise) const;
  std::optional<std::vector<int64_t>> find_integers(std::string_view key) const;
  std::optional<std::vector<double>> find_reals(std::string_view key) const;
  std::optional<std::vector<std::string>> find_texts(std::string_view key) const;
  // A token id or a list of them; absent, null and [] are none.
  std::vector<int32_t> token_ids(std::string_view key) const;

  // The object under a key, as fields of its own.
  std::optional<ConfigFields> find_object(std::string_view key) const;

  // Error{corrupt_file}: "<where>: <key> is <value>, expected <expected>".
  [[noreturn]] void reject(std::string_view key, std::string_view expected) const;

 private:
  int64_t integer_in(std::string_view key, const nlohmann::json& value, int64_t least, int64_t most,
                     std::string_view expected) const;

  const nlohmann::json* object_;
  std::string where_;
  std::set<std::string>* read_;
  const FieldNames* names_;
  std::string outer_;  // the key of this object in `names`, with a dot
};

}  // namespace kvasir::models
