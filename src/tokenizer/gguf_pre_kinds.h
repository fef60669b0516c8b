// The pre-tokenizers that GGUF files name (tokenizer.ggml.pre), and what else the name decides.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/scanner.h"

namespace kvasir::tokenizer {

struct PreKind {
  std::vector<Scan> steps;  // one after another, each within the pieces of the one before
  bool ignore_merges = false, add_bos = false, add_separator = false, default_bos = true;
};

// Nothing for a name that is not known.
std::optional<PreKind> pre_kind(std::string_view name);

}  // namespace kvasir::tokenizer
