// Text taken from untrusted input (names of files, keys, answers of servers), made safe to show on a
// terminal.
//
// Escaped is what a terminal acts on, what changes the order or the lines of other text, and what nobody
// sees: control characters (C0, DEL, C1), separators of lines and paragraphs, controls of the direction of
// text, invisible format characters and tags: "\x1b", "\u202e"; and every byte that is no UTF-8: "\xe9". The
// two joiners (U+200C, U+200D) stay: words of several languages are written with them.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

// In one line, cut at 200 bytes between two characters (declared in base/error.h, too).
std::string printable(std::string_view text);

// Text of several lines, not cut: newlines and tabs stay. For what the program says itself, in which names
// may have been taken up as they are.
std::string printable_lines(std::string_view text);

}  // namespace kvasir
