// Standard output as scripts see it: a write that fails is an error, never silence.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace kvasir::cli {

// Descriptors 0 to 2 that the caller closed are taken, so that no file we open lands on them; writing to such
// an output fails.
void guard_standard_streams();

// JSON in one line or (indent >= 0) in several; bytes that are no UTF-8 (parts of characters in token pieces,
// file names) become U+FFFD. All JSON that verbs write goes through these.
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);
std::string json_line(const nlohmann::ordered_json& json);  // with a newline behind it
void print_json(const nlohmann::ordered_json& json, int indent = -1);

// "93.4 MB", from 1000 MB on "1.25 GB".
std::string size_text(uint64_t bytes);

// Whether anything written to standard output was lost so far: long work polls it.
bool output_failed();
// Flushes. Throws Error{not_found} when something was lost.
void finish_output();

// Whether escapes may be written to this descriptor: a terminal that is not dumb, and NO_COLOR is not set
// (https://no-color.org).
bool styled(int descriptor);

}  // namespace kvasir::cli
