#include "chat/reasoning.h"

#include <algorithm>
#include <array>

namespace kvasir::chat {
namespace {

enum class Effect { open, close, nothing };  // nothing: the marker only disappears

struct Rules {
  std::array<std::string_view, 6> markers;
  std::array<Effect, 6> effects;
  size_t count;
};

// Longer markers stand before those that begin them.
constexpr Rules kThink = {{"<think>", "</think>"}, {Effect::open, Effect::close}, 2};
constexpr Rules kLongcat = {{"<longcat_think>", "</longcat_think>"}, {Effect::open, Effect::close}, 2};
constexpr Rules kGemma = {{"<|channel>thought", "<channel|>"}, {Effect::open, Effect::close}, 2};
constexpr Rules kMistral = {{"[THINK]", "[/THINK]"}, {Effect::open, Effect::close}, 2};
// Each message of an answer names its channel: analysis is thought, the others are said.
constexpr Rules kHarmony = {{"<|channel|>analysis<|message|>", "<|channel|>final<|message|>",
                             "<|channel|>commentary<|message|>", "<|start|>assistant", "<|end|>"},
                            {Effect::open, Effect::close, Effect::close, Effect::nothing, Effect::close},
                            5};
constexpr Rules kNone = {{}, {}, 0};

const Rules& rules_of(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::none:
      return kNone;
    case ReasoningFormat::think:
      return kThink;
    case ReasoningFormat::longcat_think:
      return kLongcat;
    case ReasoningFormat::gemma_channel:
      return kGemma;
    case ReasoningFormat::harmony:
      return kHarmony;
    case ReasoningFormat::mistral_think:
      return kMistral;
  }
  return kNone;
}

void append(std::vector<OutputPiece>& pieces, bool reasoning, std::string_view text) {
  if (text.empty()) return;
  if (!pieces.empty() && pieces.back().reasoning == reasoning)
    pieces.back().text += text;
  else
    pieces.push_back({reasoning, std::string(text)});
}

}  // namespace

std::span<const std::string_view> reasoning_markers(ReasoningFormat format) {
  const Rules& rules = rules_of(format);
  return std::span(rules.markers).first(rules.count);
}

ReasoningSplitter::ReasoningSplitter(ReasoningFormat format, std::string_view prompt) : format_(format) {
  // The last marker that opens or closes decides.
  const Rules& rules = rules_of(format);
  size_t last = 0;
  for (size_t i = 0; i < rules.count; ++i) {
    const size_t at = prompt.rfind(rules.markers[i]);
    if (at == std::string_view::npos || rules.effects[i] == Effect::nothing || at + 1 < last) continue;
    last = at + 1;
    reasoning_ = rules.effects[i] == Effect::open;
  }
}

std::vector<OutputPiece> ReasoningSplitter::push(std::string_view text) {
  const Rules& rules = rules_of(format_);
  std::vector<OutputPiece> pieces;
  held_ += text;
  size_t at = 0, shown = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    size_t matched = rules.count;
    bool partial = false;
    for (size_t i = 0; i < rules.count && matched == rules.count; ++i) {
      // An opening marker inside reasoning, or a closing one outside of it, changes nothing: harmony's still
      // disappear, another format's is text.
      const bool idle =
          format_ != ReasoningFormat::harmony && reasoning_ == (rules.effects[i] == Effect::open);
      if (idle) continue;
      if (rest.starts_with(rules.markers[i]))
        matched = i;
      else if (rules.markers[i].starts_with(rest))
        partial = true;
    }
    if (matched < rules.count) {
      append(pieces, reasoning_, std::string_view(held_).substr(shown, at - shown));
      at += rules.markers[matched].size();
      shown = at;
      if (rules.effects[matched] != Effect::nothing) reasoning_ = rules.effects[matched] == Effect::open;
      continue;
    }
    if (partial) break;
    ++at;
  }
  append(pieces, reasoning_, std::string_view(held_).substr(shown, at - shown));
  held_.erase(0, at);
  return pieces;
}

std::vector<OutputPiece> ReasoningSplitter::finish() {
  std::vector<OutputPiece> pieces;
  append(pieces, reasoning_, held_);
  held_.clear();
  return pieces;
}

}  // namespace kvasir::chat
