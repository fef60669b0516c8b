// The tokenizer that a GGUF file carries. A library of its own (kvasir_gguf_tokenizer): the tokenizer itself
// knows nothing of files.
#pragma once

#include "formats/gguf.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace kvasir::tokenizer {

// Views into the file's mapping.
GgufTokenizerData gguf_tokenizer_data(const formats::GgufFile& file);

// The tokenizer keeps no view of the file.
Tokenizer tokenizer_from_gguf(const formats::GgufFile& file);

}  // namespace kvasir::tokenizer
