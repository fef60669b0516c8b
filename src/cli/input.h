// What a user hands over as input: files, pipes, standard input; and text that has to be UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::cli {

// The whole of a file, a pipe or device (process substitution, /dev/stdin), or standard input for "-". Throws
// Error{not_found} or Error{invalid_input}: a folder, or more than `limit` bytes.
std::string read_input(const std::string& path, size_t limit);

// Throws Error{invalid_input} naming the place of the first byte that is no UTF-8.
void check_utf8(std::string_view text, std::string_view what);
// The same for text that may be any bytes: says so on standard error.
void note_utf8(std::string_view text, std::string_view what);

}  // namespace kvasir::cli
