// Strict reading of config-like JSON files into nlohmann::json (spec: formats.md 0.1).
//
// RFC 8259 and UTF-8; a byte order mark is skipped; duplicate keys, lone surrogates, trailing text and
// nesting beyond the limit are errors. Integers stay exact (i64, above it u64), other numbers become the
// nearest double. What Python writes for special floats reads as numbers: the literals NaN, Infinity,
// -Infinity, and transformers 5's {"__float__": "NaN"} objects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/limits.h"

namespace kvasir::formats {

// `file` is what errors call the text. Throws Error{corrupt_file} naming file, reason, byte and line.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          int depth_limit = ReadLimits{}.json_depth);

// Reads and parses a file of at most `byte_limit` bytes.
nlohmann::json read_json_file(const std::filesystem::path& path,
                              size_t byte_limit = ReadLimits{}.config_bytes,
                              int depth_limit = ReadLimits{}.json_depth);

// A value as a message shows it: printable, on one line.
std::string shown(const nlohmann::json& value);

// The token ids that a configuration writes: a whole number in [0, 2^31 - 1] or a list of them; null and an
// empty list are none. Nullopt for anything else, of which nothing may be taken.
std::optional<std::vector<int32_t>> token_ids(const nlohmann::json& value);
inline constexpr char kTokenIds[] = "a token id from 0 to 2147483647 or a list of them";

}  // namespace kvasir::formats
