// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that the model sees one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/scanner.h"

namespace kvasir::tokenizer {

// Pieces of one text, end to end.
struct Pieces {
  std::string text;
  std::vector<uint32_t> ends;
  bool at_start = false;  // the first piece begins the whole text
  // Scratch of the steps.
  std::string other_text;
  std::vector<uint32_t> other_ends;
  std::vector<Regex::Match> matches;

  void reset(std::string_view whole, bool start) {
    text.assign(whole);
    ends.assign(1, static_cast<uint32_t>(text.size()));
    at_start = start;
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// What finds the places to split at.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the matches in `text`, left to right.
  virtual void find(std::string_view text, std::vector<Regex::Match>& matches) const = 0;
};

// Cuts at matches (with `invert`, at what lies between them).
class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<Splitter> splitter, SplitBehavior behavior, bool invert)
      : splitter_(std::move(splitter)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override;

 private:
  std::unique_ptr<Splitter> splitter_;
  SplitBehavior behavior_;
  bool invert_;
};

std::unique_ptr<Splitter> regex_splitter(Regex regex);
std::unique_ptr<Splitter> literal_splitter(std::string literal);  // not empty
// Characters one by one, or in runs.
using CharacterTest = bool (*)(char32_t);
std::unique_ptr<Splitter> character_splitter(CharacterTest test, bool runs);

// A known pattern, "isolated", without a regex engine.
class ScanPreTokenizer final : public PreTokenizer {
 public:
  explicit ScanPreTokenizer(Scan pattern) : pattern_(pattern) {}
  void apply(Pieces& pieces) const override;

 private:
  Scan pattern_;
};

// `map` is off where the model itself works on bytes.
class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex, bool map)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex), map_(map) {}
  void apply(Pieces& pieces) const override;

 private:
  bool add_prefix_space_, use_regex_, map_;
};

enum class PrependScheme { always, first, never };

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}
  void apply(Pieces& pieces) const override;

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(size_t length) : length_(length) {}
  void apply(Pieces& pieces) const override;

 private:
  size_t length_;  // characters
};

class UnicodeScriptsPreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override;
};

// Words (\w+) and runs of what is neither word nor white space; white space goes.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& step : steps_) step->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

}  // namespace kvasir::tokenizer
