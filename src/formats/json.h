// Strict reading of config-like JSON files into nlohmann::json (spec: formats.md 0.1).
//
// RFC 8259 and UTF-8; a byte order mark is skipped; duplicate keys, lone surrogates, trailing text and
// nesting beyond the limit are errors. Integers stay exact (i64, above it u64), other numbers become the
// nearest double. What Python writes for special floats reads as numbers: the literals NaN, Infinity,
// -Infinity, and transformers 5's {"__float__": "NaN"} objects.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "formats/limits.h"

namespace kvasir::formats {

// `file` is what errors call the text. Throws Error{corrupt_file} naming file, reason, byte and line.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          int depth_limit = ReadLimits{}.json_depth);

// Reads and parses a file of at most `byte_limit` bytes.
nlohmann::json read_json_file(const std::filesystem::path& path,
                              size_t byte_limit = ReadLimits{}.config_bytes,
                              int depth_limit = ReadLimits{}.json_depth);

}  // namespace kvasir::formats
