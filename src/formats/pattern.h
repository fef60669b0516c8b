// Regular expressions that a checkpoint's configuration names modules with. They are untrusted: compiling and
// matching are bounded in size, depth and steps.
#pragma once

#include <memory>
#include <string_view>

namespace kvasir::formats {

class Pattern {
 public:
  // Throws Error{corrupt_file} naming `where` for one that is malformed or larger than 4 KiB.
  Pattern(std::string_view expression, std::string_view where);
  // Whether it matches at the beginning of `text` (as Python's re.match). Throws Error{unsupported} when that
  // takes more than 100,000 steps back.
  bool matches_start(std::string_view text) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace kvasir::formats
