#include "tokenizer/word_models.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

[[noreturn]] void no_unknown_token(std::string_view word, const std::string& token) {
  throw_error(ErrorCode::corrupt_file, "tokenizer: word {} is unknown, and so is the unknown token {}",
              printable(word), printable(token));
}

}  // namespace

void WordPieceModel::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  bool unknown = count_characters(piece) > options_.most_characters;
  for (size_t begin = 0; !unknown && begin < piece.size();) {
    const std::string& prefix = begin > 0 ? options_.prefix : options_.start;
    // No token is longer than the longest one.
    size_t end = std::min(piece.size(), begin + vocabulary_.longest());
    while (end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80) --end;
    int32_t id = Vocabulary::kNone;
    while (end > begin) {
      workspace.text.assign(prefix).append(piece.substr(begin, end - begin));
      id = vocabulary_.find(workspace.text);
      if (id >= 0) break;
      do --end;
      while (end > begin && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80);
    }
    if (id < 0) {
      unknown = true;
    } else {
      ids.push_back(id);
      begin = end;
    }
  }
  if (!unknown) return;
  if (unknown_ < 0) no_unknown_token(piece, options_.unknown_token);
  ids.resize(first);
  ids.push_back(unknown_);
}

void WordLevelModel::encode(std::string_view piece, Workspace&, std::vector<int32_t>& ids) const {
  int32_t id = vocabulary_.find(piece);
  if (id < 0) id = unknown_;
  if (id < 0) no_unknown_token(piece, unknown_token_);
  ids.push_back(id);
}

}  // namespace kvasir::tokenizer
