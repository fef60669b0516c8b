// The answer of a `generate` run as JSON: the same fields for one answer, several, and the lines of a batch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/text_model.h"

namespace kvasir::cli {

// {"text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens", "seed", "timings"}, with
// "stop" when a stop string ended it and "logprobs" when they were asked for.
nlohmann::ordered_json answer_json(const engine::TextModel& model, const engine::TextOutcome& result,
                                   uint64_t seed);

}  // namespace kvasir::cli
