// Sets of characters that regexes call by name: scripts (\p{Cyrillic}) and binary properties (\p{Emoji}).
#pragma once

#include <span>
#include <string_view>

#include "tokenizer/unicode.h"

namespace kvasir::tokenizer {

// The members, in order, as of Unicode 16. `name`: the long or the short one of PropertyValueAliases.txt or
// PropertyAliases.txt (also "graph" and "print", after POSIX) in lower case, without spaces, hyphens,
// underscores. Empty: another name.
std::span<const CodePointRange> named_set(std::string_view name);

}  // namespace kvasir::tokenizer
