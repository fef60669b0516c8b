// The sequence breakers of DRY in the tokens of a vocabulary.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/dry_breakers.h"
#include "tokenizer/tokenizer.h"

namespace kvasir::engine {

// Goes through the whole vocabulary. Breakers are cut to 40 bytes and what follows a first token to 20
// tokens, as in llama.cpp. Throws Error{invalid_input} for an empty one.
std::shared_ptr<const DryBreakers> make_dry_breakers(const tokenizer::Tokenizer& tokenizer,
                                                     std::span<const std::string> texts);

}  // namespace kvasir::engine
