#include "formats/pattern.h"

#include <oniguruma.h>

#include <mutex>
#include <string>

#include "base/error.h"

namespace kvasir::formats {
namespace {

constexpr size_t kLongestPattern = 4096;
constexpr unsigned long kMostStepsBack = 100'000;

// Repeat counts of three digits and more would make programs that names of modules never need.
bool has_large_repeats(std::string_view expression) {
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '{') continue;
    int digits = 0;
    for (size_t k = i + 1; k < expression.size() && expression[k] != '}'; ++k) {
      digits = expression[k] == ',' ? 0 : digits + 1;
      if (digits > 2) return true;
    }
  }
  return false;
}

}  // namespace

struct Pattern::Compiled {
  regex_t* regex = nullptr;
  std::string expression, where;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Pattern::Pattern(std::string_view expression, std::string_view where) {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    onig_set_parse_depth_limit(256);
  });
  auto compiled = std::make_shared<Compiled>();
  compiled->expression = expression;
  compiled->where = where;
  const auto* begin = reinterpret_cast<const OnigUChar*>(compiled->expression.data());
  const OnigUChar* end = begin + compiled->expression.size();
  OnigErrorInfo info;
  const bool plain = expression.size() <= kLongestPattern && !has_large_repeats(expression) &&
                     onigenc_is_valid_mbc_string(ONIG_ENCODING_UTF8, begin, end) != 0;
  if (!plain || onig_new(&compiled->regex, begin, end, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                         ONIG_SYNTAX_PERL_NG, &info) != ONIG_NORMAL) {
    compiled->regex = nullptr;
    throw_error(ErrorCode::corrupt_file, "{}: pattern {}: expected a regular expression of at most {} bytes",
                printable(where), printable(expression), kLongestPattern);
  }
  compiled_ = std::move(compiled);
}

bool Pattern::matches_start(std::string_view text) const {
  const auto* begin = reinterpret_cast<const OnigUChar*>(text.data());
  std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                    onig_free_match_param);
  KVASIR_CHECK(limits);
  onig_initialize_match_param(limits.get());
  onig_set_retry_limit_in_match_of_match_param(limits.get(), kMostStepsBack);
  onig_set_match_stack_limit_size_of_match_param(limits.get(), 1'000'000);
  const int length = onig_match_with_param(compiled_->regex, begin, begin + text.size(), begin, nullptr,
                                           ONIG_OPTION_NONE, limits.get());
  if (length >= 0) return true;
  if (length != ONIG_MISMATCH)
    throw_error(ErrorCode::unsupported, "{}: pattern {} takes too many steps on {}", compiled_->where,
                printable(compiled_->expression), printable(text));
  return false;
}

}  // namespace kvasir::formats
