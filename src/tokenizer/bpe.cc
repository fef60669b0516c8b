#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
// Up to here finding the next merge by looking at every pair beats a queue.
constexpr size_t kFewSymbols = 32;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::string byte_token(unsigned byte) {
  return fmt::format("<0x{:02X}>", byte);
}

}  // namespace

void MergeTable::reserve(size_t merges) {
  const size_t slots = std::bit_ceil(std::max<size_t>(4, merges * 2));
  if (slots <= slots_.size()) return;
  std::vector<Slot> old(slots);
  old.swap(slots_);
  mask_ = slots - 1;
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
  for (const Slot& slot : old) {
    if (slot.key == kEmpty) continue;
    size_t s = slot_of(slot.key);
    while (slots_[s].key != kEmpty) s = (s + 1) & mask_;
    slots_[s] = slot;
  }
}

void MergeTable::add(int32_t left, int32_t right, Merge merge, bool replace) {
  if ((count_ + 1) * 2 > slots_.size()) reserve(slots_.size());
  const uint64_t key = key_of(left, right);
  size_t s = slot_of(key);
  while (slots_[s].key != kEmpty && slots_[s].key != key) s = (s + 1) & mask_;
  if (slots_[s].key == key && !replace) return;
  count_ += slots_[s].key == kEmpty;
  slots_[s] = {key, merge};
}

BpeModel::BpeModel(const Vocabulary& vocabulary, const std::vector<MergeText>& merges, BpeOptions options)
    : vocabulary_(vocabulary), options_(std::move(options)) {
  KVASIR_CHECK(merges.size() < kNoMerge);
  byte_ids_.fill(-1);
  ascii_ids_.fill(-1);
  bytes_complete_ = true;
  for (unsigned b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids_[b] = vocabulary.find(options_.byte_level ? in_alphabet({&c, 1}) : byte_token(b));
    bytes_complete_ = bytes_complete_ && byte_ids_[b] >= 0;
    if (b < 128) ascii_ids_[b] = vocabulary.find({&c, 1});
  }
  if (options_.unknown_token) unknown_ = vocabulary.find(*options_.unknown_token);

  // A character that vanishes would let its neighbours meet across a cut: with cuts, every character must
  // give a symbol. Byte tokens could join a cut on either side; merges of theirs (none are known) rule cuts
  // out.
  const bool may_cut = !options_.byte_level && !options_.ignore_merges && !options_.lenient_merges &&
                       options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty() &&
                       vocabulary.find(kSpaceMark) >= 0 &&
                       (options_.unknown_token || (options_.byte_fallback && bytes_complete_));
  if (may_cut) cut_before_ = kSpaceMark;
  for (const MergeText& m : merges) {
    if (cut_before_.empty()) break;
    if (m.left.starts_with("<0x") || m.left == options_.unknown_token) cut_before_ = {};
    if (!m.right.starts_with(kSpaceMark)) continue;
    size_t last = m.left.size();
    while (last > 0 && (static_cast<unsigned char>(m.left[--last]) & 0xC0) == 0x80) {
    }
    joined_.emplace(m.left.substr(last));
  }

  // Three lookups a merge: a block's hashes are computed ahead, so that the cache misses overlap.
  struct Pending {
    uint64_t left, right;
    size_t begin, length;
  };
  constexpr size_t kBlock = 32;
  std::array<Pending, kBlock> pending;
  std::string texts;
  const std::string& prefix = options_.continuing_subword_prefix;
  merges_.reserve(merges.size());
  const auto resolve = [&](std::string_view text, uint64_t hash, size_t n) {
    int32_t id = vocabulary_.find(text, hash);
    if (id >= 0) return id;
    if (!options_.lenient_merges) {
      throw_error(ErrorCode::corrupt_file, "tokenizer: token {} of merge {} is out of vocabulary",
                  printable(text), n);
    }
    id = odd_.find(text);
    if (id < 0) odd_.add(text, id = static_cast<int32_t>(odd_.entries()));
    return vocabulary_.size() + id;
  };
  int32_t whole = -1;
  for (size_t block = 0; block < merges.size(); block += kBlock) {
    const size_t count = std::min(kBlock, merges.size() - block);
    texts.clear();
    for (size_t k = 0; k < count; ++k) {
      const MergeText& m = merges[block + k];
      Pending& p = pending[k];
      if (m.right.size() < prefix.size()) {
        throw_error(ErrorCode::corrupt_file, "tokenizer: right side {} of merge {} lacks the prefix {}",
                    printable(m.right), block + k, printable(prefix));
      }
      p.begin = texts.size();
      texts.append(m.left).append(m.right.substr(prefix.size()));
      p.length = texts.size() - p.begin;
      p.left = Vocabulary::hash(m.left);
      p.right = Vocabulary::hash(m.right);
      vocabulary_.prefetch(p.left);
      vocabulary_.prefetch(p.right);
    }
    for (size_t k = 0; k < count; ++k) {
      const MergeText& m = merges[block + k];
      const Pending& p = pending[k];
      const int32_t left = resolve(m.left, p.left, block + k), right = resolve(m.right, p.right, block + k);
      // As a rule each merge makes the token after the one that the merge before it made: no search then.
      const std::string_view text = std::string_view(texts).substr(p.begin, p.length);
      whole = vocabulary_.has(whole + 1) && vocabulary_.text(whole + 1) == text
                  ? whole + 1
                  : resolve(text, Vocabulary::hash(text), block + k);
      merges_.add(left, right, {static_cast<uint32_t>(block + k), whole}, !options_.first_merge_counts);
    }
  }
}

void BpeModel::make_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto add = [&](size_t begin, size_t length, int32_t id) {
    const auto n = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(length), id, n - 1, n + 1});
  };
  if (options_.byte_level && (bytes_complete_ || !options_.unknown_token)) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
      if (id >= 0) add(i, 1, id);  // a byte without a token vanishes
    }
  } else {
    // One unknown symbol waits for the next known one. Byte tokens do not flush it (the Rust library's
    // order).
    size_t unknown_begin = 0, unknown_length = 0;
    bool waiting = false;
    const auto flush = [&] {
      if (waiting) add(unknown_begin, unknown_length, unknown_);
      waiting = false;
    };
    std::string decorated;
    for (size_t i = 0, length; i < piece.size(); i += length) {
      length = options_.byte_level ? 1 : std::min<size_t>(utf8_length(piece[i]), piece.size() - i);
      const bool first = i == 0, last = i + length == piece.size();
      std::string_view s = piece.substr(i, length);
      int32_t id;
      if (options_.byte_level) {
        decorated = in_alphabet(s);
        s = decorated;
        id = byte_ids_[static_cast<unsigned char>(piece[i])];
      } else if ((first || options_.continuing_subword_prefix.empty()) &&
                 (!last || options_.end_of_word_suffix.empty())) {
        id = length == 1 ? ascii_ids_[static_cast<unsigned char>(piece[i]) & 0x7F] : vocabulary_.find(s);
      } else {
        decorated.clear();
        if (!first) decorated += options_.continuing_subword_prefix;
        decorated += s;
        if (last) decorated += options_.end_of_word_suffix;
        s = decorated;
        id = vocabulary_.find(s);
      }
      if (id >= 0) {
        flush();
        add(i, length, id);
        continue;
      }
      if (options_.byte_fallback) {
        const auto byte_id = [&](char c) {
          return options_.byte_level ? vocabulary_.find(byte_token(static_cast<unsigned char>(c)))
                                     : byte_ids_[static_cast<unsigned char>(c)];
        };
        if (std::all_of(s.begin(), s.end(), [&](char c) { return byte_id(c) >= 0; })) {
          for (char c : s) add(i, 1, byte_id(c));
          continue;
        }
      }
      if (!options_.unknown_token) continue;
      if (unknown_ < 0) {
        throw_error(ErrorCode::corrupt_file, "tokenizer: unk_token {} is out of vocabulary",
                    printable(*options_.unknown_token));
      }
      if (waiting && options_.fuse_unknown) {
        unknown_length += length;
      } else {
        flush();
        unknown_begin = i, unknown_length = length, waiting = true;
      }
    }
    flush();
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void BpeModel::merge_few(std::vector<Symbol>& symbols) const {
  size_t n = symbols.size();
  std::array<MergeTable::Merge, kFewSymbols> best;  // of symbol i with i + 1
  const auto merge_at = [&](size_t i) -> MergeTable::Merge {
    const MergeTable::Merge* m = merges_.find(symbols[i].id, symbols[i + 1].id);
    return m ? *m : MergeTable::Merge{kNoMerge, -1};
  };
  for (size_t i = 0; i + 1 < n; ++i) best[i] = merge_at(i);
  while (n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (best[i].rank < best[at].rank) at = i;
    }
    if (best[at].rank == kNoMerge) break;
    symbols[at].id = best[at].merged;
    for (size_t i = at + 1; i + 1 < n; ++i) symbols[i].id = symbols[i + 1].id;
    for (size_t i = at + 1; i + 2 < n; ++i) best[i] = best[i + 1];
    --n;
    if (at + 1 < n) best[at] = merge_at(at);
    if (at > 0) best[at - 1] = merge_at(at - 1);
  }
  symbols.resize(n);
}

void BpeModel::merge_many(std::vector<Symbol>& symbols, std::vector<Workspace::Candidate>& heap) const {
  using Candidate = Workspace::Candidate;
  const auto later = [](const Candidate& a, const Candidate& b) { return a.key > b.key; };
  heap.clear();
  const auto candidate = [&](size_t left, Candidate& c) {
    const int32_t right = symbols[left].next;
    if (right < 0) return false;
    const int32_t left_id = symbols[left].id, right_id = symbols[static_cast<size_t>(right)].id;
    const MergeTable::Merge* m = merges_.find(left_id, right_id);
    if (!m) return false;
    c = {uint64_t{m->rank} << 32 | left, left_id, right_id, m->merged};
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
    if (left.length == 0 || left.id != c.left || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != c.right) continue;
    left.id = c.merged;
    left.length += right.length;
    right.length = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(at);
    push(at);
    if (left.previous >= 0) push(static_cast<size_t>(left.previous));
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.length == 0; });
}

void BpeModel::encode_uncached(std::string_view piece, Workspace& workspace,
                               std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    int32_t id;
    if (options_.byte_level) {
      workspace.text.clear();
      append_in_alphabet(workspace.text, piece);
      id = vocabulary_.find(workspace.text);
    } else {
      id = vocabulary_.find(piece);
    }
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = workspace.symbols;
  make_symbols(piece, symbols);
  if (symbols.size() <= kFewSymbols) {
    merge_few(symbols);
  } else {
    merge_many(symbols, workspace.heap);
  }
  for (const Symbol& s : symbols) {
    if (s.id < vocabulary_.size()) {
      ids.push_back(s.id);
      continue;
    }
    // A symbol that is no token becomes the tokens that are exactly its bytes (so only ASCII letters have
    // any).
    for (char c : odd_.text(s.id - vocabulary_.size())) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 128 && ascii_ids_[byte] >= 0) ids.push_back(ascii_ids_[byte]);
    }
  }
}

void BpeModel::encode(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  if (!cut_before_.empty()) {
    size_t begin = 0;
    std::string character;
    for (size_t at = piece.find(cut_before_, 1); at != std::string_view::npos;
         at = piece.find(cut_before_, at + cut_before_.size())) {
      size_t last = at;
      while (last > 0 && (static_cast<unsigned char>(piece[--last]) & 0xC0) == 0x80) {
      }
      character.assign(piece.substr(last, at - last));
      if (joined_.contains(character)) continue;
      encode_part(piece.substr(begin, at - begin), workspace, ids);
      begin = at;
    }
    piece.remove_prefix(begin);
  }
  encode_part(piece, workspace, ids);
}

void BpeModel::encode_part(std::string_view piece, Workspace& workspace, std::vector<int32_t>& ids) const {
  std::span<const int32_t> known;
  if (workspace.cache.find(piece, known)) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  const size_t begin = ids.size();
  encode_uncached(piece, workspace, ids);
  workspace.cache.store(piece, std::span(ids).subspan(begin));
}

}  // namespace kvasir::tokenizer
