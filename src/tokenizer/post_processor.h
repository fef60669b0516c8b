// The "post_processor" of a tokenizer.json, worked out for single texts.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/json_reader.h"

namespace kvasir::tokenizer {

// The ids around a text; -1 stands for the text. A template may leave the text out or repeat it, with its
// special tokens and without.
struct Frames {
  std::vector<int32_t> with_special, plain;
};

// Throws Error{corrupt_file} for what the `tokenizers` package cannot apply to a text.
Frames load_post_processor(const JsonValue& json);

}  // namespace kvasir::tokenizer
