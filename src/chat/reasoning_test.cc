#include "chat/reasoning.h"

#include <gtest/gtest.h>

namespace kvasir::chat {
namespace {

using Pieces = std::vector<OutputPiece>;

void join(Pieces& all, const Pieces& more) {
  for (const OutputPiece& piece : more) {
    if (!all.empty() && all.back().reasoning == piece.reasoning)
      all.back().text += piece.text;
    else
      all.push_back(piece);
  }
}

// The split of a text that arrives whole; it must be the same in pieces of every size.
Pieces split(ReasoningFormat format, std::string_view prompt, std::string_view text) {
  Pieces whole;
  for (size_t size = 1; size <= text.size() + 1; ++size) {
    ReasoningSplitter splitter(format, prompt);
    Pieces pieces;
    for (size_t at = 0; at < text.size(); at += size) join(pieces, splitter.push(text.substr(at, size)));
    join(pieces, splitter.finish());
    if (size == 1)
      whole = pieces;
    else
      EXPECT_EQ(pieces, whole) << "in pieces of " << size;
  }
  return whole;
}

TEST(Reasoning, IsCutOutOfTheAnswer) {
  EXPECT_EQ(split(ReasoningFormat::think, "", "<think>\nSix times seven.\n</think>\n\nIt is 42."),
            (Pieces{{true, "\nSix times seven.\n"}, {false, "\n\nIt is 42."}}));
  EXPECT_EQ(split(ReasoningFormat::longcat_think, "", "<longcat_think>a</longcat_think>b"),
            (Pieces{{true, "a"}, {false, "b"}}));
  EXPECT_EQ(split(ReasoningFormat::mistral_think, "", "[THINK]a[/THINK]b"),
            (Pieces{{true, "a"}, {false, "b"}}));
  EXPECT_EQ(split(ReasoningFormat::gemma_channel, "", "<|channel>thought\na<channel|>b"),
            (Pieces{{true, "\na"}, {false, "b"}}));
  EXPECT_EQ(split(ReasoningFormat::harmony, "<|start|>assistant",
                  "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"),
            (Pieces{{true, "a"}, {false, "b"}}));
  EXPECT_EQ(split(ReasoningFormat::none, "<think>", "<think>a</think>"),
            (Pieces{{false, "<think>a</think>"}}));
}

TEST(Reasoning, BeginsInsideWhereThePromptLeftItOpen) {
  EXPECT_EQ(split(ReasoningFormat::think, "<|user|>hi<|assistant|><think>\n", "a</think>b"),
            (Pieces{{true, "a"}, {false, "b"}}));
  // An earlier turn's block is closed; a template that turns thinking off closes it at once.
  EXPECT_EQ(split(ReasoningFormat::think, "<think>x</think>y<|assistant|>", "b"), (Pieces{{false, "b"}}));
  EXPECT_EQ(split(ReasoningFormat::think, "<think>\n\n</think>\n\n", "b"), (Pieces{{false, "b"}}));
}

TEST(Reasoning, WhatIsNoMarkerStaysText) {
  EXPECT_EQ(split(ReasoningFormat::think, "", "a < b, <thin air>, </think"),
            (Pieces{{false, "a < b, <thin air>, </think"}}));
  EXPECT_EQ(split(ReasoningFormat::think, "", "<<think>a<think></think>b"),
            (Pieces{{false, "<"}, {true, "a<think>"}, {false, "b"}}));
  // Cut off in the middle: all of it was thought.
  EXPECT_EQ(split(ReasoningFormat::think, "", "<think>unfinished </thi"),
            (Pieces{{true, "unfinished </thi"}}));
}

TEST(Reasoning, NothingThatCannotBecomeAMarkerIsHeldBack) {
  ReasoningSplitter splitter(ReasoningFormat::think, "");
  EXPECT_EQ(splitter.push("hello"), (Pieces{{false, "hello"}}));
  EXPECT_EQ(splitter.push(" <th"), (Pieces{{false, " "}}));
  EXPECT_EQ(splitter.push("ree"), (Pieces{{false, "<three"}}));
}

}  // namespace
}  // namespace kvasir::chat
