// Splits a model's output, as it streams, into what it thinks and what it says (spec: server-cli.md 10.5).
//
// A marker may arrive in any number of pieces: what could still become one is held back. The pieces that come
// out, joined by kind, are the same however the text was cut; no part of a marker is in them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/tool_format.h"

namespace kvasir::chat {

// Texts that a format's output may hold as markers. Where a tokenizer has them as special tokens, the decoder
// must be told to write them out.
std::span<const std::string_view> reasoning_markers(ReasoningFormat format);

struct OutputPiece {
  bool reasoning;
  std::string text;
  bool operator==(const OutputPiece&) const = default;
};

class ReasoningSplitter {
 public:
  // `prompt`: the rendered prompt. Where its last opening marker is not closed, the output begins as
  // reasoning.
  ReasoningSplitter(ReasoningFormat format, std::string_view prompt);

  std::vector<OutputPiece> push(std::string_view text);
  // What was held back: an unfinished marker is text.
  std::vector<OutputPiece> finish();

 private:
  ReasoningFormat format_;
  bool reasoning_ = false;
  std::string held_;
};

}  // namespace kvasir::chat
