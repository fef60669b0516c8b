#include "tokenizer/scanner.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvasir::tokenizer {
namespace {

std::vector<std::string> pieces(Scan pattern, std::string_view text) {
  std::vector<uint32_t> ends;
  scan(pattern, text, 0, ends);
  std::vector<std::string> out;
  uint32_t begin = 0;
  for (uint32_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return out;
}

using Pieces = std::vector<std::string>;

// The tables of verified pieces in the format specification (made with the `tokenizers` package).
TEST(Scanner, VerifiedPieces) {
  const std::string contractions = "I'LL don't  x\n\n y1234";
  EXPECT_EQ(pieces(Scan::gpt2, contractions),
            (Pieces{"I", "'", "LL", " don", "'t", " ", " x", "\n\n", " y", "1234"}));
  EXPECT_EQ(pieces(Scan::llama3, contractions),
            (Pieces{"I", "'LL", " don", "'t", " ", " x", "\n\n", " y", "123", "4"}));
  EXPECT_EQ(pieces(Scan::gpt4o, contractions),
            (Pieces{"I'LL", " don't", " ", " x", "\n\n", " y", "123", "4"}));

  const std::string ends = " 5\r\n  z ";
  EXPECT_EQ(pieces(Scan::gpt2, ends), (Pieces{" 5", "\r\n ", " z", " "}));
  EXPECT_EQ(pieces(Scan::llama3, ends), (Pieces{" ", "5", "\r\n", " ", " z", " "}));
  EXPECT_EQ(pieces(Scan::gpt4o, ends), (Pieces{" ", "5", "\r\n", " ", " z", " "}));

  const std::string camel = "CamelCaseHTTPServer's //\n\n/x";
  EXPECT_EQ(pieces(Scan::gpt2, camel), (Pieces{"CamelCaseHTTPServer", "'s", " //", "\n", "\n", "/", "x"}));
  EXPECT_EQ(pieces(Scan::llama3, camel), (Pieces{"CamelCaseHTTPServer", "'s", " //\n\n", "/x"}));
  EXPECT_EQ(pieces(Scan::gpt4o, camel), (Pieces{"Camel", "Case", "HTTPServer's", " //\n\n/", "x"}));

  const std::string spaces =
      "a\u00A0b\xC2\x85"
      "c\u2028d  ";
  EXPECT_EQ(pieces(Scan::gpt2, spaces), (Pieces{"a", "\u00A0", "b", "\xC2\x85", "c", "\u2028", "d", "  "}));
  EXPECT_EQ(pieces(Scan::llama3, spaces), (Pieces{"a", "\u00A0b",
                                                  "\xC2\x85"
                                                  "c",
                                                  "\u2028d", "  "}));
  EXPECT_EQ(pieces(Scan::gpt4o, spaces), (Pieces{"a", "\u00A0b",
                                                 "\xC2\x85"
                                                 "c",
                                                 "\u2028d", "  "}));

  const std::string marks = " \u0301a e\u0301x";
  EXPECT_EQ(pieces(Scan::gpt2, marks), (Pieces{" \u0301", "a", " e", "\u0301", "x"}));
  EXPECT_EQ(pieces(Scan::llama3, marks), (Pieces{" \u0301", "a", " e", "\u0301x"}));
  EXPECT_EQ(pieces(Scan::gpt4o, marks), (Pieces{" \u0301a", " e\u0301x"}));

  const std::string tabs = "  \t\n  a";
  EXPECT_EQ(pieces(Scan::gpt2, tabs), (Pieces{"  \t\n ", " a"}));
  EXPECT_EQ(pieces(Scan::llama3, tabs), (Pieces{"  \t\n", " ", " a"}));

  const std::string numbers = "٣٤٥٦ ²½";
  EXPECT_EQ(pieces(Scan::gpt2, numbers), (Pieces{"٣٤٥٦", " ²½"}));
  EXPECT_EQ(pieces(Scan::llama3, numbers), (Pieces{"٣٤٥", "٦", " ", "²½"}));
}

TEST(Scanner, PatternsAreFoundByTheirText) {
  for (Scan s : all_scanners()) EXPECT_EQ(scanner_for(pattern_of(s)), s);
  EXPECT_EQ(scanner_for(R"(\p{L}+)"), std::nullopt);
}

TEST(Scanner, LongRunsAreLinear) {
  // A megabyte of each; a quadratic scanner would need minutes.
  for (const char* unit : {"a", " ", "\n", "'", "1", "!", "\t ", "é", "\u0301", "中"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    text += "x";
    for (Scan s : all_scanners()) {
      std::vector<uint32_t> ends;
      scan(s, text, 0, ends);
      EXPECT_EQ(ends.back(), text.size());
    }
  }
}

}  // namespace
}  // namespace kvasir::tokenizer
