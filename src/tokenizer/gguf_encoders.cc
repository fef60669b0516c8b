#include "tokenizer/gguf_encoders.h"

#include <algorithm>

#include "tokenizer/character_sets.h"
#include "tokenizer/decoder_chain.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

void append_marking_spaces(std::string& out, std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t space = std::min(text.find(' ', i), text.size());
    out.append(text, i, space - i);
    if (space < text.size()) out += kSpaceMark;
    i = space + 1;
  }
}

}  // namespace

void ScannedBpe::encode(std::string_view text, const Place&, Workspace& workspace,
                        std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_structural(text);
    text = repaired;
  }
  std::vector<uint32_t>&ends = workspace.ends, &more = workspace.more_ends;
  ends.clear();
  scan(steps_[0], text, 0, ends);
  for (size_t step = 1; step < steps_.size(); ++step) {
    more.clear();
    uint32_t begin = 0;
    for (uint32_t end : ends) {
      scan(steps_[step], text.substr(begin, end - begin), begin, more);
      begin = end;
    }
    ends.swap(more);
  }
  uint32_t begin = 0;
  for (uint32_t end : ends) {
    model_->encode(text.substr(begin, end - begin), workspace, ids);
    begin = end;
  }
}

void SpmEncoder::encode(std::string_view text, const Place& place, Workspace& workspace,
                        std::vector<int32_t>& ids) const {
  std::string& marked = workspace.text;
  marked.clear();
  // Where text follows a special token the publishers' tokenizers put a space before it, but no second one.
  // (At the start of the whole text there is one already: Parts::prefix_space.)
  if (add_space_prefix_ && place.after_special && !text.starts_with(' ')) marked += kSpaceMark;
  append_marking_spaces(marked, text);
  model_->encode(marked, workspace, ids);
}

void LineBpe::encode(std::string_view text, const Place&, Workspace& workspace,
                     std::vector<int32_t>& ids) const {
  std::string marked;
  append_marking_spaces(marked, text);
  if (!is_valid_utf8(marked)) marked = replace_invalid_structural(marked);
  const std::string_view all = marked;
  for (size_t i = 0; i < all.size();) {
    const bool ends = all[i] == '\n';
    const size_t stop = ends ? all.find_first_not_of('\n', i) : all.find('\n', i);
    const std::string_view piece = all.substr(i, std::min(stop, all.size()) - i);
    const int32_t id = ends ? vocabulary_.find(piece) : Vocabulary::kNone;
    if (id >= 0) {
      ids.push_back(id);
    } else {
      model_->encode(piece, workspace, ids);
    }
    i += piece.size();
  }
}

BertEncoder::BertEncoder(std::unique_ptr<WordPieceModel> model, bool lowercase, bool strip_accents)
    : model_(std::move(model)), normalizer_(true, true, strip_accents, lowercase) {
  steps_.push_back(std::make_unique<SplitPreTokenizer>(character_splitter(is_white_space, false),
                                                       SplitBehavior::removed, false));
  steps_.push_back(std::make_unique<SplitPreTokenizer>(character_splitter(is_punctuation_mark, false),
                                                       SplitBehavior::isolated, false));
}

void BertEncoder::encode(std::string_view text, const Place& place, Workspace& workspace,
                         std::vector<int32_t>& ids) const {
  std::string normal =
      is_valid_utf8(text) ? std::string(text) : replace_invalid(replace_invalid_structural(text));
  normalizer_.apply(normal);
  Pieces& pieces = workspace.pieces;
  pieces.reset(normal, place.first);
  for (const auto& step : steps_) step->apply(pieces);
  uint32_t begin = 0;
  for (uint32_t end : pieces.ends) {
    if (end > begin) model_->encode(std::string_view(pieces.text).substr(begin, end - begin), workspace, ids);
    begin = end;
  }
}

std::string UnigramEncoder::normalize(std::string_view text) const {
  std::string out;
  out.reserve(text.size() * 2);
  bool in_word = false, prefixed = false;
  const auto append = [&](std::string_view part) {
    for (char c : part) {
      if (c == ' ') {
        in_word = false;
        if (!options_.remove_extra_spaces) out += kSpaceMark;
        continue;
      }
      if (!in_word) {
        in_word = true;
        if (options_.remove_extra_spaces || (options_.add_space_prefix && !prefixed)) {
          out += kSpaceMark;
          prefixed = true;
        }
      }
      out += c;
    }
  };
  const bool any = !text.empty();
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    size_t verbatim = 0;
    options_.verbatim.prefixes(rest, [&](size_t length, int32_t) { verbatim = length; });
    if (verbatim) {
      append(rest.substr(0, verbatim));
      i += verbatim;
      continue;
    }
    if (options_.map) {
      if (const auto hit = options_.map->longest_prefix(rest)) {
        append(hit->replacement);
        i += hit->length;
        continue;
      }
    }
    const CodePoint c = decode_lossy(rest, 0);
    if (c.value == kReplacement) {
      // A well-formed U+FFFD has three bytes; an ill-formed sequence is used up byte by byte.
      append("\xEF\xBF\xBD");
      i += rest.starts_with("\xEF\xBF\xBD") ? 3 : 1;
    } else {
      append(rest.substr(0, c.length));
      i += c.length;
    }
  }
  if (any && !prefixed && options_.add_space_prefix && !options_.remove_extra_spaces) out += kSpaceMark;
  return is_valid_utf8(out) ? out : replace_invalid(out);
}

void UnigramEncoder::encode(std::string_view text, const Place&, Workspace& workspace,
                            std::vector<int32_t>& ids) const {
  const std::string normal = normalize(text);
  if (!normal.empty()) model_->encode(normal, workspace, ids);
}

std::string MarkedWordDecoder::decode(std::span<const DecodeToken> tokens) const {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) append_token(tokens[i], i == 0, out);
  return is_valid_utf8(out) ? out : replace_invalid(out);
}

bool MarkedWordDecoder::append_token(const DecodeToken& token, bool first, std::string& out) const {
  std::string_view text = token.text;
  const bool marked = text.starts_with(kSpaceMark);
  if (marked) text.remove_prefix(kSpaceMark.size());
  std::string word((marked || token.added) && !first ? " " : "");
  word += text;
  clean_up(word);
  out += word;
  return false;
}

}  // namespace kvasir::tokenizer
