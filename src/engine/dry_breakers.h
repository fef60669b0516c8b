// Sequence breakers of DRY ("don't repeat yourself" sampling): texts that a repetition does not run across,
// as in llama.cpp (--dry-sequence-breaker).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvasir::engine {

std::vector<std::string> default_dry_breakers();  // llama.cpp's: newline, colon, quote, asterisk

// Breakers as a vocabulary spells them. Of each first token, what must follow it: nothing where the token
// holds the whole breaker; where it ends in a beginning of one, the tokens of the rest.
using DryBreakers = std::unordered_map<int32_t, std::vector<std::vector<int32_t>>>;

// How many of the last tokens come behind the last breaker (all of them: no breaker). `reversed`: the
// history, newest first. Where several breakers begin at one token the longest counts.
int tokens_behind_breaker(const DryBreakers& breakers, std::span<const int32_t> reversed);

}  // namespace kvasir::engine
