#include "tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

// Text between characters that have no normal form but themselves. utf8proc has the characters'
// decompositions and compositions; its own ordering of marks is quadratic in their number, so that it is done
// here: a stable sort of each run by combining class (Unicode Standard, section 3.11, D109).
class Segment {
 public:
  explicit Segment(int options) : options_(static_cast<utf8proc_option_t>(options)) {}

  void append(std::string& out, std::string_view text) {
    if (text.empty()) return;
    values_.clear();
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = decode_valid(text, i);
      i += c.length;
      if (c.value < 0x80)
        values_.push_back(static_cast<utf8proc_int32_t>(c.value));
      else
        decompose(static_cast<utf8proc_int32_t>(c.value));
    }
    order_marks();
    auto count = static_cast<utf8proc_ssize_t>(values_.size());
    if (options_ & UTF8PROC_COMPOSE) count = utf8proc_normalize_utf32(values_.data(), count, options_);
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      append_utf8(out, static_cast<char32_t>(values_[static_cast<size_t>(i)]));
  }

 private:
  void decompose(utf8proc_int32_t value) {
    constexpr utf8proc_ssize_t kLongest = 32;  // U+FDFA, the longest, becomes 18
    const size_t at = values_.size();
    values_.resize(at + kLongest);
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(value, values_.data() + at, kLongest, options_, nullptr);
    KVASIR_CHECK(count > 0 && count <= kLongest);
    values_.resize(at + static_cast<size_t>(count));
  }

  void order_marks() {
    const auto class_of = [](utf8proc_int32_t value) {
      return value < 0x300 ? 0 : utf8proc_get_property(value)->combining_class;
    };
    for (size_t i = 0; i < values_.size(); ++i) {
      if (class_of(values_[i]) == 0) continue;
      marks_.clear();
      const size_t begin = i;
      bool sorted = true;
      for (; i < values_.size(); ++i) {
        const auto mark_class = class_of(values_[i]);
        if (mark_class == 0) break;
        sorted &= marks_.empty() || marks_.back().first <= mark_class;
        marks_.emplace_back(mark_class, values_[i]);
      }
      if (sorted) continue;
      std::stable_sort(marks_.begin(), marks_.end(),
                       [](const Mark& a, const Mark& b) { return a.first < b.first; });
      for (size_t k = 0; k < marks_.size(); ++k) values_[begin + k] = marks_[k].second;
    }
  }

  using Mark = std::pair<utf8proc_propval_t, utf8proc_int32_t>;  // combining class, code point
  utf8proc_option_t options_;
  std::vector<utf8proc_int32_t> values_;
  std::vector<Mark> marks_;
};

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  Segment segment(options);
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid(text, i);
    if (c.value >= 0x300 && is_inert(c.value)) {
      segment.append(out, text.substr(begin, i - begin));
      out.append(text.substr(i, c.length));
      begin = i + c.length;
    }
    i += c.length;
  }
  segment.append(out, text.substr(begin));
  return out;
}

}  // namespace kvasir::tokenizer
