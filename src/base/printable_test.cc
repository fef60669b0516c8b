#include "base/printable.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Printable, WhatATerminalActsOnIsEscaped) {
  EXPECT_EQ(printable("a\nb\x1b[0m\x7f"), "a\\x0ab\\x1b[0m\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  // C1: CSI is what "ESC [" is.
  EXPECT_EQ(printable("a\u009b31mb\u0085"), "a\\u009b31mb\\u0085");
  for (const char* one : {"\u061c", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069", "\u2028",
                          "\u2029", "\u200b", "\u2060", "\ufeff", "\u00ad", "\ufff9", "\U000e0041"}) {
    const std::string text = printable(std::string("x") + one + "y");
    EXPECT_TRUE(text.starts_with("x\\") && text.ends_with("y")) << text;
    for (const char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
  }
  EXPECT_EQ(printable("\u202egpj.exe"), "\\u202egpj.exe");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
}

TEST(Printable, WhatIsReadStays) {
  for (const char* text : {"", "plain text ~", "é", "Ω ქართული 日本語", "\u05d0\u05d1\u05d2",
                           "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f469\u200d\U0001f4bb",
                           "\U0001f600", "a\\b", "\ufffd", "\U0010fffd"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, BytesThatAreNoUtf8) {
  EXPECT_EQ(printable("caf\xe9.gguf"), "caf\\xe9.gguf");
  EXPECT_EQ(printable("\x9b\x80\xff"), "\\x9b\\x80\\xff");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");                    // overlong
  EXPECT_EQ(printable("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");           // overlong C1
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");  // the end is missing
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");
  EXPECT_EQ(printable("\xe2\x1b[2J"), "\\xe2\\x1b[2J");
  // Nothing but ASCII comes of any two bytes that are none and no character.
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      const char bytes[] = {static_cast<char>(a), static_cast<char>(b)};
      const std::string text = printable({bytes, 2});
      const bool character = a >= 0xC2 && a <= 0xDF && b >= 0x80 && b <= 0xBF;
      for (const char c : text)
        ASSERT_TRUE(character || (c >= ' ' && c <= '~')) << a << ' ' << b << ' ' << text;
    }
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(200, 'x') + "...");
  std::string text(199, 'x');
  for (int i = 0; i < 10; ++i) text += "\u20ac";
  EXPECT_EQ(printable(text), std::string(199, 'x') + "...");
  EXPECT_EQ(printable(std::string(198, 'x') + "\x1b[0m"), std::string(198, 'x') + "...");
}

TEST(Printable, Lines) {
  const std::string message = "a\tb\nc " + std::string(500, 'x');
  EXPECT_EQ(printable_lines(message), message);
  EXPECT_EQ(printable_lines("a\r\n\x1b]0;t\x07 \u202e\xff"), "a\\x0d\n\\x1b]0;t\\x07 \\u202e\\xff");
  // What is printable already stays as it is.
  EXPECT_EQ(printable_lines(printable("a\x1b\u009b\xe9")), "a\\x1b\\u009b\\xe9");
}

}  // namespace
}  // namespace kvasir
