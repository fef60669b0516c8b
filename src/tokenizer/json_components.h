// The components of a tokenizer.json, built from their JSON descriptions. Errors name the member's path.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/decoder.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace kvasir::tokenizer {

std::unique_ptr<Normalizer> load_normalizer(const JsonValue& json);

// `byte_level_model`: the model itself works on bytes (see ends_in_byte_level), so the last step need not
// spell them.
std::unique_ptr<PreTokenizer> load_pre_tokenizer(const JsonValue& json, bool byte_level_model);

// Whether the pre-tokenizer spells bytes in the byte alphabet as its last step, and only there.
bool ends_in_byte_level(const JsonValue& json);

std::unique_ptr<Decoder> load_decoder(const JsonValue& json);

// Refuses a component inside of too many sequences, and one of a type that does not exist.
void check_depth(const JsonValue& json, size_t depth);
[[noreturn]] void unknown_type(const JsonValue& json, std::string_view what, std::string_view type);

}  // namespace kvasir::tokenizer
