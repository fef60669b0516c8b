// The rows of tokens that `kvasir eval ppl` and `eval kl` run, each on its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"

namespace kvasir::cli {

struct EvalText {
  std::string tokens;  // a JSON list of ids, taken as they are; or
  std::string file;    // a text, encoded without special tokens, BOS in front of each row where the
                       // vocabulary wants it
};

// `ids` in rows of at most `window` tokens, `bos` (where there is one) counted; 0: all in one row.
std::vector<std::vector<int32_t>> cut_rows(std::span<const int32_t> ids, std::optional<int32_t> bos,
                                           int64_t window);

// Of a text and the model that reads it. Throws Error{invalid_input, not_found} naming the file.
std::vector<std::vector<int32_t>> read_rows(const EvalText& text, int64_t window,
                                            const std::filesystem::path& model);

// For LoadOptions::accept: throws Error{invalid_input}, naming the file, for ids that the model does not
// know.
void check_rows(const models::ModelInfo& info, std::span<const std::vector<int32_t>> rows,
                const EvalText& text);

}  // namespace kvasir::cli
