// The lines of `kvasir generate --jsonl`: one request a line, checked before anything runs.
//
//   {"prompt": "Why?", "max_tokens": 50, "id": "q1"}
//   {"messages": [{"role": "user", "content": "Why?"}], "temperature": 0, "stop": ["\n"]}
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "engine/text_model.h"

namespace kvasir::cli {

// What the command line says for every line; a line may override each.
struct BatchDefaults {
  engine::SamplingOptions sampling;  // seed: of line 0; line i takes sample_seed(seed, i)
  int64_t max_tokens = 256;
  int64_t min_tokens = 0;
  std::vector<std::string> stop;
  bool raw = false;
  bool ignore_eos = false;
  int logprobs = -1;
  std::string system;
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  // of the chat template
};

struct BatchLine {
  nlohmann::ordered_json id;        // null: none given
  nlohmann::ordered_json messages;  // null: `prompt` as it is
  std::string prompt;
  nlohmann::ordered_json tools;
  BatchDefaults options;  // those of the command line with the line's own
};

// One line. Throws Error{invalid_input} "<where>: <what>", where `where` is "FILE line N".
BatchLine parse_batch_line(std::string_view text, const std::string& where, uint64_t number,
                           const BatchDefaults& defaults);

// Whether a prompt (messages never) is completed as it is: asked for, or the checkpoint has no chat template
// and nothing else needs one, which note_no_template() says on standard error.
bool completes_as_it_is(const BatchDefaults& options, const engine::TextSide& text);
void note_no_template(const BatchDefaults& options, const engine::TextSide& text);
// Its prompt as tokens: rendered with the checkpoint's template unless raw. Throws Error{unsupported} where
// there is none.
std::vector<int32_t> encode_batch_line(const BatchLine& line, const engine::TextSide& text);

// Whether a line may set this: names of settings, those of the command line with underscores.
bool is_batch_key(std::string_view key);

// Tokens of context that a prompt and its answer may take.
int64_t tokens_needed(int64_t prompt_tokens, int64_t max_tokens);

// Where each line of `text` that is not blank begins and ends, with its number from 1.
struct LineSpan {
  size_t number;
  std::string_view text;
};
std::vector<LineSpan> split_lines(std::string_view text);

}  // namespace kvasir::cli
