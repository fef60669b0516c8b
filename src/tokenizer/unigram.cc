#include "tokenizer/unigram.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {

UnigramModel::UnigramModel(const Vocabulary& vocabulary, const std::vector<Token>& tokens,
                           const Options& options)
    : vocabulary_(vocabulary), options_(options) {
  std::vector<Trie::Item> items;
  items.reserve(tokens.size());
  scores_.reserve(tokens.size());
  for (const Token& t : tokens) {
    if (t.text.empty()) continue;
    items.push_back({t.text, static_cast<int32_t>(scores_.size())});
    scores_.push_back({t.id, t.score});
  }
  trie_ = Trie(std::move(items));
  for (unsigned b = 0; b < 256; ++b) byte_ids_[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
}

void UnigramModel::emit_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (options_.look_up_unknown) {
    const int32_t id = vocabulary_.find(text);
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  if (options_.byte_fallback) {
    const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) >= 0; })) {
      for (char c : text) ids.push_back(id_of(c));
      return;
    }
  }
  ids.push_back(options_.unknown);
}

void UnigramModel::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  std::span<const int32_t> known;
  if (workspace.cache.find(piece, known)) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const size_t first_id = ids.size();

  // Viterbi over byte positions (the Rust library's and sentencepiece's order: earlier starts first, shorter
  // tokens first, and only a strictly better score replaces).
  std::vector<Workspace::BestPath>& best = workspace.best;
  best.assign(piece.size() + 1, {0.0, -1, -1});
  for (size_t i = 0; i < piece.size();) {
    const double before = best[i].score;
    const size_t character = std::min<size_t>(utf8_length(piece[i]), piece.size() - i);
    bool single = false;
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (options_.single_precision) score = double{static_cast<float>(score)};
      Workspace::BestPath& target = best[end];
      if (target.begin >= 0 && !(score > target.score)) return;
      target = {score, static_cast<int32_t>(i), id};
    };
    trie_.prefixes(piece.substr(i), [&](size_t length, int32_t index) {
      const Scored& token = scores_[static_cast<size_t>(index)];
      offer(i + length, token.score + before, token.id);
      single = single || length == character;
    });
    if (!single) {
      if (options_.unknown < 0) {
        throw_error(ErrorCode::invalid_input,
                    "tokenizer: {} is in no token, and the vocabulary has no unknown token (unk_id)",
                    printable(piece.substr(i, character)));
      }
      offer(i + character, options_.unknown_score + before, options_.unknown);
    }
    i += character;
  }

  // Back from the end; neighbouring unknown parts are one.
  std::vector<Symbol>& parts = workspace.symbols;
  parts.clear();
  for (size_t end = piece.size(); end > 0;) {
    const Workspace::BestPath& node = best[end];
    const auto begin = static_cast<size_t>(node.begin);
    if (node.id == options_.unknown && !parts.empty() && parts.back().id == node.id) {
      parts.back().begin = static_cast<uint32_t>(begin);
      parts.back().length += static_cast<uint32_t>(end - begin);
    } else {
      parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin), node.id, -1, -1});
    }
    end = begin;
  }
  for (size_t k = parts.size(); k-- > 0;) {
    if (parts[k].id == options_.unknown) {
      emit_unknown(piece.substr(parts[k].begin, parts[k].length), ids);
    } else {
      ids.push_back(parts[k].id);
    }
  }
  workspace.cache.store(piece, std::span(ids).subspan(first_id));
}

}  // namespace kvasir::tokenizer
