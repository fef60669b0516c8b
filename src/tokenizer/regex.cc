#include "tokenizer/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "tokenizer/regex_dialect.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr size_t kLongestPattern = 64 * 1024;
constexpr unsigned long kMostRepeats = 1000;
constexpr unsigned kDeepestNesting = 256;

// Oniguruma's own state is set up once. Its parser's limits are global; these serve everyone.
void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    onig_set_parse_depth_limit(kDeepestNesting);
  });
}

// {n}, {n,m}, {,m}: counts above the limit make programs of unbounded size.
void check_repeats(std::string_view pattern, std::string_view where) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
      continue;
    }
    if (pattern[i] != '{') continue;
    unsigned long count = 0;
    for (size_t k = i + 1; k < pattern.size() && pattern[k] != '}'; ++k) {
      const char c = pattern[k];
      if (c >= '0' && c <= '9') {
        count = std::min(count * 10 + static_cast<unsigned long>(c - '0'), kMostRepeats + 1);
        if (count > kMostRepeats) {
          throw_error(ErrorCode::unsupported, "{}: pattern {} repeats more than {} times at byte {}", where,
                      printable(pattern), kMostRepeats, i);
        }
      } else if (c == ',') {
        count = 0;
      } else {
        break;
      }
    }
  }
}

}  // namespace

struct Regex::Compiled {
  regex_t* regex = nullptr;
  std::string where, pattern;
  ~Compiled() {
    if (regex) onig_free(regex);
  }
};

Regex::Regex(std::string_view pattern, std::string_view where) : compiled_(std::make_unique<Compiled>()) {
  initialize();
  if (pattern.size() > kLongestPattern) {
    throw_error(ErrorCode::unsupported, "{}: a pattern of {} bytes, the limit is {}", where, pattern.size(),
                kLongestPattern);
  }
  if (!is_valid_utf8(pattern)) throw_error(ErrorCode::corrupt_file, "{}: the pattern is no UTF-8", where);
  check_repeats(pattern, where);
  compiled_->where = where;
  compiled_->pattern = pattern;
  const std::string written_out = with_unicode_16_classes(pattern, where);
  const auto* begin = reinterpret_cast<const OnigUChar*>(written_out.data());
  OnigErrorInfo info;
  const int status = onig_new(&compiled_->regex, begin, begin + written_out.size(), ONIG_OPTION_NONE,
                              ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (status != ONIG_NORMAL) {
    compiled_->regex = nullptr;
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(text, status, &info);
    throw_error(ErrorCode::corrupt_file, "{}: pattern {} is invalid: {}", where, printable(pattern),
                printable({reinterpret_cast<const char*>(text), static_cast<size_t>(std::max(length, 0))}));
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<Match>& matches) const {
  const auto* begin = reinterpret_cast<const OnigUChar*>(text.data());
  const auto* end = begin + text.size();
  std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(onig_region_new(),
                                                            [](OnigRegion* r) { onig_region_free(r, 1); });
  std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(),
                                                                    onig_free_match_param);
  KVASIR_CHECK(region && limits);
  onig_initialize_match_param(limits.get());
  const size_t steps = std::min<size_t>(10'000 + 2'000 * text.size(), std::numeric_limits<int32_t>::max());
  onig_set_retry_limit_in_match_of_match_param(limits.get(), steps);
  onig_set_retry_limit_in_search_of_match_param(limits.get(), steps);
  onig_set_match_stack_limit_size_of_match_param(limits.get(), 4'000'000);

  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    onig_region_clear(region.get());
    const int at = onig_search_with_param(compiled_->regex, begin, end, begin + from, end, region.get(),
                                          ONIG_OPTION_NONE, limits.get());
    if (at == ONIG_MISMATCH) return;
    if (at < 0) {
      throw_error(ErrorCode::invalid_input,
                  "{}: pre-tokenizer pattern {} exceeded its step budget on a text of {} bytes",
                  compiled_->where, printable(compiled_->pattern), text.size());
    }
    const Match match{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0])};
    if (match.begin == match.end && match.end == last_end) {
      from += from < text.size() ? utf8_length(text[from]) : 1;
      continue;
    }
    matches.push_back(match);
    from = last_end = match.end;
  }
}

}  // namespace kvasir::tokenizer
