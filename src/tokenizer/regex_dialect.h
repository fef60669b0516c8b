// Makes a pattern mean the same for every version of Oniguruma.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::tokenizer {

// The pattern with general categories (\p{L}, \P{Lu} ...), scripts, the sets of named_sets.h, \s \d \w \b
// (and their opposites) and POSIX brackets whose members change with Unicode ([[:punct:]], [[:upper:]] ...)
// written out as code points of Unicode 16, which the `tokenizers` package has, whatever tables the installed
// library has. Everything else stays as it is. Throws
// Error{unsupported} where the result would be longer than 4 MiB; `where` names the component.
std::string with_unicode_16_classes(std::string_view pattern, std::string_view where);

}  // namespace kvasir::tokenizer
