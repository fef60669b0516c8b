// Stop strings on decoded text, as it streams (spec: engine.md 12.2).
//
// The earliest start wins. Text that could still turn out to be the beginning of a stop string is held back;
// what is emitted is the same however the text is cut into pieces, and no part of a stop string that matched
// is ever emitted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::engine {

class StopMatcher {
 public:
  // Empty strings are dropped. Throws Error{invalid_input} for more than 16 strings or one of more than 1024
  // bytes.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that may be shown now. Nothing more once stopped().
  std::string push(std::string_view text);
  // What was held back, when the text ends without a match.
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string that ended the text

 private:
  // Longest suffix of held_ from `begin` on that some stop string begins with, as a start index; held_.size()
  // for none.
  size_t earliest_partial() const;

  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace kvasir::engine
