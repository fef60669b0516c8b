#include "tokenizer/normal_form.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tokenizer/character_sets.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr NormalForm kForms[] = {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd};

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

// Unicode 16, UAX #15, tables of its examples, and section 3.11 of the standard: U+0323 (class 220) goes
// before U+0301 (class 230), U+0345 (class 240) after both; marks of one class keep their order; U+212B and
// Hangul.
TEST(NormalFormOf, TheExamplesOfTheStandard) {
  EXPECT_EQ(normal_form("a\u0301\u0323", NormalForm::nfd), "a\u0323\u0301");
  EXPECT_EQ(normal_form("a\u0301\u0323", NormalForm::nfc), "\u1ea1\u0301");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfc), "\u1e9b\u0323");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfd), "\u017f\u0323\u0307");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfkc), "\u1e69");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normal_form("x\u0345\u0301\u0300\u0323", NormalForm::nfd), "x\u0323\u0301\u0300\u0345");
  EXPECT_EQ(normal_form("\u0301\u0323", NormalForm::nfc), "\u0323\u0301");
  EXPECT_EQ(normal_form("\u212b", NormalForm::nfc), "\u00c5");
  EXPECT_EQ(normal_form("\u1100\u1161\u11a8", NormalForm::nfc), "\uac01");
  EXPECT_EQ(normal_form("\ufb01", NormalForm::nfkc), "fi");
}

// Short texts of marks, letters that have normal forms and any others, against utf8proc's own ordering.
TEST(NormalFormOf, ShortTextsAreUtf8procs) {
  std::vector<char32_t> marks, letters;
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0 && !is_inert(c))
      marks.push_back(c);
    else if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex != UINT16_MAX &&
             !is_inert(c))
      letters.push_back(c);
  }
  std::mt19937 random(7);
  const auto pick = [&](const std::vector<char32_t>& from) { return from[random() % from.size()]; };
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      const unsigned kind = random() % 8;
      if (kind < 4)
        append_utf8(text, pick(marks));
      else if (kind < 6)
        append_utf8(text, pick(letters));
      else if (kind < 7)
        text += static_cast<char>('a' + random() % 26);
      else
        append_utf8(text, 0x1100 + random() % 0x100);
    }
    for (const NormalForm form : kForms) {
      const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
      const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
      const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                          (compatible ? UTF8PROC_COMPAT : 0);
      utf8proc_uint8_t* result = nullptr;
      const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                 static_cast<utf8proc_ssize_t>(text.size()), &result,
                                                 static_cast<utf8proc_option_t>(options));
      const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
      ASSERT_GT(size, 0);
      ASSERT_EQ(normal_form(text, form),
                std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(size)))
          << "text " << i;
    }
  }
}

// A million marks, whose classes alternate: an order by insertion would take hours.
TEST(NormalFormOf, LongRunsOfMarks) {
  constexpr size_t kPairs = 500'000;
  const std::string text = "a" + repeated("\u0301\u0323", kPairs);
  const std::string above = repeated("\u0301", kPairs);
  EXPECT_TRUE(normal_form(text, NormalForm::nfd) == "a" + repeated("\u0323", kPairs) + above);
  EXPECT_TRUE(normal_form(text, NormalForm::nfkd) == "a" + repeated("\u0323", kPairs) + above);
  EXPECT_TRUE(normal_form(text, NormalForm::nfc) == "\u1ea1" + repeated("\u0323", kPairs - 1) + above);
  EXPECT_TRUE(normal_form(text, NormalForm::nfkc) == "\u1ea1" + repeated("\u0323", kPairs - 1) + above);
}

}  // namespace
}  // namespace kvasir::tokenizer
