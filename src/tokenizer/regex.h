// Regular expressions of tokenizer.json, run by Oniguruma (Ruby syntax, UTF-8): the engine and the dialect of
// the `tokenizers` package.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tokenizer {

class Regex {
 public:
  struct Match {
    size_t begin, end;
  };

  // `where` names the component in errors. Throws Error{corrupt_file} with the pattern and the reason;
  // patterns with a repeat count above 1,000 or longer than 64 KiB are refused.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // All matches in `text` (valid UTF-8) from left to right, appended to `matches`; an empty match right after
  // the last one does not count. Throws Error{invalid_input} where the pattern needs more than 10^4 + 2,000
  // steps a byte.
  void find_all(std::string_view text, std::vector<Match>& matches) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kvasir::tokenizer
