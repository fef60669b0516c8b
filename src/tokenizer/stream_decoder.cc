#include <algorithm>

#include "base/error.h"
#include "tokenizer/parts.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";
// The generic decoder's window is cut here even where its text is not certain, so that a stream of tokens
// that never make a character costs linear time.
constexpr size_t kLongestWindow = 64;

// What `after` has behind the first `size` bytes, as whole characters: a decoder that strips ends or judges
// runs of bytes as a whole may make other text of the tokens before, whose characters end elsewhere.
std::string_view text_behind(std::string_view after, size_t size) {
  while (size > 0 && size < after.size() && (static_cast<unsigned char>(after[size]) & 0xC0) == 0x80) --size;
  return after.substr(size);
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options,
                             std::span<const int32_t> context)
    : tokenizer_(&tokenizer),
      options_(options),
      rule_(tokenizer.decoder().stream_rule()),
      spaces_to_strip_(rule_.strip_spaces) {
  if (context.size() > kLongestWindow) context = context.last(kLongestWindow);
  for (int32_t id : context) push(id);
  out_.clear();
}

void StreamDecoder::append(std::string_view text) {
  while (spaces_to_strip_ > 0 && !text.empty()) {
    if (text[0] != ' ') {
      spaces_to_strip_ = 0;
      break;
    }
    text.remove_prefix(1);
    --spaces_to_strip_;
  }
  out_ += text;
}

void StreamDecoder::flush_bytes(bool more) {
  size_t i = 0;
  std::string text;
  while (i < pending_.size()) {
    bool cut = false;
    const CodePoint c = decode_lossy(pending_, i, &cut);
    if (cut && more) break;
    append_utf8(text, c.value);
    i += c.length;
  }
  pending_.erase(0, i);
  append(text);
}

void StreamDecoder::flush_run(bool more) {
  std::string text;
  if (rule_.poisoned_runs) {
    // A run that is well-formed as a whole is text; in any other every byte is one U+FFFD. What has been
    // handed out when the first ill-formed byte comes stays.
    size_t i = 0;
    while (i < pending_.size()) {
      bool cut = false;
      const CodePoint c = decode_lossy(pending_, i, &cut);
      if (cut && more && !poisoned_) break;
      const bool valid = c.value != kReplacement || pending_.compare(i, 3, kReplacementText) == 0;
      if (!valid) poisoned_ = true;
      if (poisoned_) {
        text += kReplacementText;
        i += 1;
      } else {
        append_utf8(text, c.value);
        i += c.length;
      }
    }
    pending_.erase(0, i);
    if (!more) poisoned_ = false;
  } else {
    pending_.erase(0, append_byte_run(text, pending_, more));
  }
  append(text);
}

void StreamDecoder::take(const DecodeToken& token) {
  piece_.clear();
  const bool raw = tokenizer_->decoder().append_token(token, first_, piece_);
  first_ = false;
  if (rule_.kind == StreamRule::Kind::bytes) {
    pending_ += piece_;
    flush_bytes(true);
  } else if (raw) {
    pending_ += piece_;
    flush_run(true);
  } else {
    flush_run(false);
    if (is_valid_utf8(piece_)) {
      append(piece_);
    } else {
      append(replace_invalid(piece_));
    }
  }
}

// Decodes the window with and without its newest tokens. Text that ends in U+FFFD may be half a character and
// waits.
void StreamDecoder::take_generic(int32_t id) {
  window_.push_back(id);
  const std::span<const int32_t> ids = window_;
  const std::string before = tokenizer_->decode(ids.first(read_).subspan(prefix_), options_);
  const std::string after = tokenizer_->decode(ids.subspan(prefix_), options_);
  const bool full = window_.size() - prefix_ >= kLongestWindow;
  if (!full && (after.size() <= before.size() || std::string_view(after).ends_with(kReplacementText))) return;
  if (after.size() > before.size()) out_ += text_behind(after, before.size());
  prefix_ = read_;
  read_ = window_.size();
  if (prefix_ > 0) {
    window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(prefix_));
    read_ -= prefix_;
    prefix_ = 0;
  }
}

std::string_view StreamDecoder::push(int32_t id) {
  out_.clear();
  DecodeToken token;
  if (!tokenizer_->decode_token(id, options_, token)) return out_;
  if (rule_.kind == StreamRule::Kind::generic) {
    take_generic(id);
  } else {
    take(token);
  }
  return out_;
}

std::string_view StreamDecoder::finish() {
  out_.clear();
  switch (rule_.kind) {
    case StreamRule::Kind::bytes:
      flush_bytes(false);
      break;
    case StreamRule::Kind::pieces:
      flush_run(false);
      break;
    case StreamRule::Kind::generic: {
      const std::span<const int32_t> ids = window_;
      const std::string before = tokenizer_->decode(ids.first(read_).subspan(prefix_), options_);
      const std::string after = tokenizer_->decode(ids.subspan(prefix_), options_);
      if (after.size() > before.size()) out_ += text_behind(after, before.size());
      prefix_ = read_;
      read_ = window_.size();
      break;
    }
  }
  return out_;
}

}  // namespace kvasir::tokenizer
