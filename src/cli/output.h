// Standard output as scripts see it: a write that fails is an error, never silence.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvasir::cli {

// Descriptors 0 to 2 that the caller closed are taken, so that no file we open lands on them; writing to such
// an output fails.
void guard_standard_streams();

// One line of JSON; bytes that are no UTF-8 (parts of characters in token pieces, file names) become U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);
void print_json(const nlohmann::ordered_json& json);

// Whether anything written to standard output was lost so far: long work polls it.
bool output_failed();
// Flushes. Throws Error{not_found} when something was lost.
void finish_output();

// Whether escapes may be written to this descriptor: a terminal that is not dumb, and NO_COLOR is not set
// (https://no-color.org).
bool styled(int descriptor);

}  // namespace kvasir::cli
