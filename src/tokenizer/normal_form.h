// Unicode normal forms, as the `tokenizers` package computes them.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::tokenizer {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// `text`: valid UTF-8. Characters that the package's tables do not know stand for themselves and order
// nothing around them.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace kvasir::tokenizer
