// What a GGUF file says about its tokenizer, in plain form (whoever reads the file fills this in;
// gguf_adapter.h does it for kvasir's own reader). Views must stay valid while Tokenizer::from_gguf runs, and
// no longer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

struct GgufTokenizerData {
  std::string_view
      huggingface_json;    // tokenizer.huggingface.json; empty: none. Where it is valid it is used instead.
  std::string_view model;  // tokenizer.ggml.model
  std::optional<std::string_view> pre;
  std::string_view general_name;  // general.name

  std::vector<std::string_view> tokens, merges;
  std::vector<float> scores;         // as many as tokens, or none
  std::vector<int32_t> token_types;  // as many as tokens, or none

  std::optional<int64_t> bos, eos, eot, eom, unknown, separator, padding, mask, cls;
  std::optional<int64_t> fim_prefix, fim_suffix, fim_middle, fim_padding, fim_repository, fim_separator;
  std::optional<bool> add_bos, add_eos, add_separator, add_space_prefix, remove_extra_whitespaces;
  std::optional<bool> lowercase, strip_accents;   // tokenizer.ggml.normalizer.*, WordPiece
  std::span<const uint8_t> precompiled_charsmap;  // Unigram
};

}  // namespace kvasir::tokenizer
