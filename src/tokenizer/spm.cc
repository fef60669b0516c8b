#include "tokenizer/spm.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

// Characters by their lead byte alone; a text that ends inside one cuts it.
size_t symbol_length(std::string_view text, size_t i) {
  return std::min<size_t>(utf8_length(text[i]), text.size() - i);
}

// A number for the bytes of a symbol: equal for equal bytes.
char32_t symbol_value(std::string_view text, size_t i, size_t length) {
  char32_t value = 0;
  for (size_t k = 0; k < length; ++k) value = value << 8 | static_cast<unsigned char>(text[i + k]);
  return value;
}

// Orders floats as unsigned integers, highest first.
uint32_t descending(float score) {
  const auto bits = std::bit_cast<uint32_t>(score == 0 ? 0.0f : score);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

}  // namespace

SpmModel::SpmModel(const Vocabulary& vocabulary, std::span<const float> scores,
                   std::span<const TokenKind> kinds, int32_t unknown)
    : vocabulary_(vocabulary), scores_(scores), kinds_(kinds), unknown_(unknown) {
  const auto n = static_cast<size_t>(vocabulary.size());
  KVASIR_CHECK(scores.size() == n && kinds.size() == n);
  for (unsigned b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids_[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
    if (byte_ids_[b] < 0) byte_ids_[b] = vocabulary.find({&c, 1});
  }
  for (size_t id = 0; id < n; ++id) {
    const TokenKind kind = kinds[id];
    if (kind == TokenKind::unused) has_unused_ = true;
    if (kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::byte) continue;
    const std::string_view text = vocabulary.text(static_cast<int32_t>(id));
    if (text.empty()) continue;
    size_t i = symbol_length(text, 0);
    char32_t before = symbol_value(text, 0, i);
    while (i < text.size()) {
      const size_t length = symbol_length(text, i);
      const char32_t value = symbol_value(text, i, length);
      inside_.insert(before, value);
      before = value;
      i += length;
    }
  }
}

int32_t SpmModel::find_mergeable(std::string_view text) const {
  if (text.size() > vocabulary_.longest()) return -1;
  const int32_t id = vocabulary_.find(text);
  if (id < 0) return -1;
  const TokenKind kind = kinds_[static_cast<size_t>(id)];
  return kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::byte ? -1 : id;
}

void SpmModel::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  size_t begin = 0, i = symbol_length(piece, 0);
  char32_t before = symbol_value(piece, 0, i);
  while (i < piece.size()) {
    const size_t length = symbol_length(piece, i);
    const char32_t value = symbol_value(piece, i, length);
    if (!inside_.contains(before, value)) {
      encode_part(piece.substr(begin, i - begin), first, workspace, ids);
      begin = i;
    }
    before = value;
    i += length;
  }
  encode_part(piece.substr(begin), first, workspace, ids);
}

void SpmModel::encode_part(std::string_view part, size_t first, Workspace& workspace,
                           std::vector<int32_t>& ids) const {
  std::span<const int32_t> known;
  if (workspace.cache.find(part, known)) {
    // A run of unknown text is one unknown token, also across parts.
    if (!known.empty() && known[0] == unknown_ && ids.size() > first && ids.back() == unknown_)
      known = known.subspan(1);
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const size_t begin = ids.size();
  const bool after_unknown = begin > first && ids.back() == unknown_;
  merge(part, first, workspace, ids);
  if (!after_unknown) workspace.cache.store(part, std::span(ids).subspan(begin));
}

void SpmModel::emit(std::string_view symbol, size_t first, std::vector<int32_t>& ids) const {
  const int32_t id = vocabulary_.find(symbol);
  if (id >= 0 && id != unknown_) {
    ids.push_back(id);
    return;
  }
  for (char c : symbol) {
    const int32_t byte = byte_ids_[static_cast<unsigned char>(c)];
    if (byte >= 0) {
      ids.push_back(byte);
    } else if (unknown_ >= 0 && (ids.size() == first || ids.back() != unknown_)) {
      ids.push_back(unknown_);
    }
  }
}

void SpmModel::merge(std::string_view part, size_t first, Workspace& workspace,
                     std::vector<int32_t>& ids) const {
  using Candidate = Workspace::Candidate;
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<Candidate>& heap = workspace.heap;
  symbols.clear();
  heap.clear();
  for (size_t i = 0; i < part.size();) {
    const size_t length = symbol_length(part, i);
    const auto n = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(length), -1, n - 1, n + 1});
    i += length;
  }
  symbols.back().next = -1;

  // Pieces of unused tokens, to take those apart again. Rare: kept by text.
  std::map<std::string_view, size_t> halves;
  const auto later = [](const Candidate& a, const Candidate& b) { return a.key > b.key; };
  // left and right of a candidate are the lengths of the two sides when it was found.
  const auto candidate = [&](size_t left, Candidate& c) {
    const int32_t right = symbols[left].next;
    if (right < 0) return false;
    const uint32_t a = symbols[left].length, b = symbols[static_cast<size_t>(right)].length;
    const std::string_view whole = part.substr(symbols[left].begin, a + b);
    const int32_t id = find_mergeable(whole);
    if (id < 0) return false;
    if (has_unused_ && kinds_[static_cast<size_t>(id)] == TokenKind::unused) halves[whole] = a;
    c = {uint64_t{descending(scores_[static_cast<size_t>(id)])} << 32 | left, static_cast<int32_t>(a),
         static_cast<int32_t>(b), id};
    return true;
  };
  const auto push = [&](size_t left) {
    Candidate c;
    if (!candidate(left, c)) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    Candidate c;
    if (candidate(i, c)) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate c = heap.back();
    heap.pop_back();
    const auto at = static_cast<size_t>(c.key & 0xFFFFFFFFu);
    Symbol& left = symbols[at];
    if (left.length != static_cast<uint32_t>(c.left) || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.length != static_cast<uint32_t>(c.right)) continue;
    left.length += right.length;
    right.length = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(at);
    push(at);
    if (left.previous >= 0) push(static_cast<size_t>(left.previous));
  }
  // An unused token is taken apart into what it was last found to be made of.
  const auto emit_used = [&](auto&& self, std::string_view symbol) -> void {
    if (has_unused_) {
      const int32_t id = vocabulary_.find(symbol);
      const auto half = halves.find(symbol);
      if (id >= 0 && kinds_[static_cast<size_t>(id)] == TokenKind::unused && half != halves.end()) {
        self(self, symbol.substr(0, half->second));
        self(self, symbol.substr(half->second));
        return;
      }
    }
    emit(symbol, first, ids);
  };
  for (const Symbol& s : symbols) {
    if (s.length > 0) emit_used(emit_used, part.substr(s.begin, s.length));
  }
}

}  // namespace kvasir::tokenizer
