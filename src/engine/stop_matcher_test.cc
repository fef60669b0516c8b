#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace kvasir::engine {
namespace {

std::string stream(std::vector<std::string> stops, const std::vector<std::string>& pieces,
                   bool* stopped = nullptr) {
  StopMatcher matcher(std::move(stops));
  std::string out;
  for (const std::string& piece : pieces) out += matcher.push(piece);
  out += matcher.finish();
  if (stopped != nullptr) *stopped = matcher.stopped();
  return out;
}

TEST(StopMatcher, SpansPieces) {
  bool stopped = false;
  EXPECT_EQ(stream({"END"}, {"abE", "N", "Dxyz"}, &stopped), "ab");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(stream({"END"}, {"abE", "N"}, &stopped), "abEN");
  EXPECT_FALSE(stopped);
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldMatch) {
  StopMatcher matcher({"\n\n"});
  EXPECT_EQ(matcher.push("hello\n"), "hello");
  EXPECT_EQ(matcher.push("world"), "\nworld");
}

TEST(StopMatcher, EarliestStartWinsEvenWhenItCompletesLater) {
  // "bcde" starts at 1, "cd" at 2 and completes first.
  EXPECT_EQ(stream({"cd", "bcde"}, {"abcd", "e."}), "a");
  EXPECT_EQ(stream({"cd", "bcde"}, {"abcd", "x"}), "ab");
  EXPECT_EQ(stream({"cd", "bcde"}, {"abcd"}), "ab");
}

TEST(StopMatcher, CuttingDoesNotShow) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 24; ++i) text += static_cast<char>('a' + random() % 3);
    std::vector<std::string> stops;
    for (int s = 0; s < 3; ++s) {
      std::string stop;
      for (unsigned i = 0; i < 2 + random() % 4; ++i) stop += static_cast<char>('a' + random() % 3);
      stops.push_back(stop);
    }
    // Reference: the text up to the earliest occurrence.
    size_t first = text.size();
    for (const std::string& stop : stops) first = std::min(first, text.find(stop));
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 5;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    ASSERT_EQ(stream(stops, pieces), text.substr(0, first))
        << text << " " << stops[0] << " " << stops[1] << " " << stops[2];
  }
}

TEST(StopMatcher, LimitsAreNamed) {
  EXPECT_THROW(StopMatcher(std::vector<std::string>(17, "x")), Error);
  EXPECT_THROW(StopMatcher({std::string(1025, 'x')}), Error);
  EXPECT_EQ(stream({"", ""}, {"abc"}), "abc");
}

}  // namespace
}  // namespace kvasir::engine
