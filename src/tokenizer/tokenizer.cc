#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "tokenizer/parts.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr size_t kMostIdle = 16;

}  // namespace

std::unique_ptr<Workspace> Tokenizer::Parts::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Workspace> workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::make_unique<Workspace>();
}

void Tokenizer::Parts::give_back(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(workspace));
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > std::numeric_limits<int32_t>::max()) {
    throw_error(ErrorCode::invalid_input, "text of {} bytes: a text to encode has at most {}", text.size(),
                std::numeric_limits<int32_t>::max());
  }
  const Parts& p = *parts_;
  std::string repaired, prefixed;
  if (p.repair_text && !is_valid_utf8(text)) {
    repaired = replace_invalid(text);
    text = repaired;
  }
  std::vector<Fragment> fragments;
  p.matcher.split(text, options.parse_special, fragments);
  if (p.prefix_space && !fragments.empty() &&
      (fragments[0].id < 0 || !p.special[static_cast<size_t>(fragments[0].id)])) {
    // In front of the text itself, because the space can be part of an added token (a run of spaces).
    prefixed.append(1, ' ').append(text);
    text = prefixed;
    fragments.clear();
    p.matcher.split(text, options.parse_special, fragments);
  }

  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  std::unique_ptr<Workspace> workspace = parts_->borrow();
  const auto encode_text = [&] {
    int32_t previous = -1;
    const auto after_special = [&] { return previous >= 0 && p.special[static_cast<size_t>(previous)]; };
    for (size_t i = 0; i < fragments.size(); ++i) {
      const Fragment& f = fragments[i];
      if (f.id >= 0) {
        ids.push_back(f.id);
        previous = f.id;
        continue;
      }
      std::string_view part = text.substr(f.begin, f.end - f.begin);
      if (p.drop_space_after_special && after_special() &&
          std::find(p.keep_space_after.begin(), p.keep_space_after.end(), previous) ==
              p.keep_space_after.end()) {
        while (!part.empty() && (part[0] == ' ' || (part[0] >= '\t' && part[0] <= '\r')))
          part.remove_prefix(1);
      }
      if (!part.empty()) {
        p.encoder->encode(part, {f.begin == 0, after_special(), options.parse_special}, *workspace, ids);
      }
      previous = -1;
    }
  };
  const bool own_bos = p.one_bos && p.bos && !fragments.empty() && fragments[0].id == *p.bos;
  const std::vector<int32_t>& frame = options.add_special ? p.frame : p.plain_frame;
  for (size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] < 0) {
      encode_text();
    } else if (!(i == 0 && own_bos && frame[i] == *p.bos)) {
      ids.push_back(frame[i]);
    }
  }
  parts_->give_back(std::move(workspace));
  return ids;
}

bool Tokenizer::decode_token(int32_t id, const DecodeOptions& options, DecodeToken& token) const {
  const Parts& p = *parts_;
  if (id < 0 || id >= p.size) return false;
  const auto i = static_cast<size_t>(id);
  if (p.hidden[i] || (options.skip_special && p.special[i])) return false;
  if (p.added.has(id)) {
    const auto other = p.respelled.find(id);
    token = {other == p.respelled.end() ? p.added.text(id) : std::string_view(other->second), true};
  } else if (p.vocabulary.has(id)) {
    token = {p.vocabulary.text(id), false};
  } else {
    return false;
  }
  return true;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::vector<DecodeToken> tokens;
  tokens.reserve(ids.size());
  DecodeToken token;
  for (int32_t id : ids) {
    if (decode_token(id, options, token)) tokens.push_back(token);
  }
  return parts_->decoder->decode(tokens);
}

const Decoder& Tokenizer::decoder() const {
  return *parts_->decoder;
}

std::string_view Tokenizer::piece(int32_t id) const {
  return parts_->added.has(id) ? parts_->added.text(id) : parts_->vocabulary.text(id);
}

std::string Tokenizer::piece_bytes(int32_t id) const {
  DecodeToken token;
  if (!decode_token(id, {.skip_special = false}, token)) return {};
  if (decoder().stream_rule().kind == StreamRule::Kind::generic) return decoder().decode({&token, 1});
  std::string bytes;
  decoder().append_token(token, false, bytes);
  return bytes;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token_text) const {
  int32_t id = parts_->added.find(token_text);
  if (id < 0) id = parts_->vocabulary.find(token_text);
  return id < 0 ? std::nullopt : std::optional(id);
}

int32_t Tokenizer::vocab_size() const {
  return parts_->size;
}
bool Tokenizer::exists(int32_t id) const {
  return parts_->added.has(id) || parts_->vocabulary.has(id);
}
void Tokenizer::check_ids(std::span<const int32_t> ids, std::string_view what) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (!exists(ids[i]))
      throw_error(ErrorCode::invalid_input, "{}: entry {} is {}, and the vocabulary has {} tokens",
                  printable(what), i, ids[i], vocab_size());
}
void Tokenizer::check_width(int64_t width, std::string_view what) const {
  const int32_t last = parts_->vocabulary.size() - 1;
  if (last >= width)
    throw_error(ErrorCode::corrupt_file,
                "{}: token {} of its vocabulary has id {}, and the model has {} logits", printable(what),
                printable(parts_->vocabulary.text(last)), last, width);
}
bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < parts_->size && parts_->special[static_cast<size_t>(id)];
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return parts_->bos;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return parts_->eos;
}
std::optional<int32_t> Tokenizer::pad_id() const {
  return parts_->pad;
}
std::optional<int32_t> Tokenizer::unknown_id() const {
  return parts_->unknown;
}
std::span<const int32_t> Tokenizer::eog_ids() const {
  return parts_->eog;
}
bool Tokenizer::is_eog(int32_t id) const {
  return std::binary_search(parts_->eog.begin(), parts_->eog.end(), id);
}
bool Tokenizer::adds_bos() const {
  return parts_->bos && !parts_->frame.empty() && parts_->frame.front() == *parts_->bos;
}
std::span<const std::string> Tokenizer::warnings() const {
  return parts_->warnings;
}

size_t Tokenizer::memory_bytes() const {
  const Parts& p = *parts_;
  return p.vocabulary.memory_bytes() + p.added.memory_bytes() + p.kinds.capacity() * sizeof(TokenKind) +
         p.scores.capacity() * sizeof(float) + (p.special.capacity() + p.hidden.capacity()) / 8 +
         p.encoder->memory_bytes();
}

}  // namespace kvasir::tokenizer
