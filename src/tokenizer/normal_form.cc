#include "tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

void append_normal(std::string& out, std::string_view text, int options) {
  if (text.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &result,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  if (size < 0)
    throw_error(ErrorCode::resource_exhausted, "text of {} bytes: {}", text.size(), utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid(text, i);
    if (c.value >= 0x300 && is_inert(c.value)) {
      append_normal(out, text.substr(begin, i - begin), options);
      out.append(text.substr(i, c.length));
      begin = i + c.length;
    }
    i += c.length;
  }
  append_normal(out, text.substr(begin), options);
  return out;
}

}  // namespace kvasir::tokenizer
