#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

bool word_starts_at(std::string_view text, size_t i) {
  return i < text.size() && is_word_character(decode_valid(text, i).value);
}

// Start of the character that ends at i > 0.
size_t previous(std::string_view text, size_t i) {
  do --i;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80);
  return i;
}

bool word_ends_at(std::string_view text, size_t i) {
  return i > 0 && is_word_character(decode_valid(text, previous(text, i)).value);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, Rule rule)
    : tokens_(std::move(tokens)), rule_(rule) {
  std::vector<Trie::Item> items;
  items.reserve(tokens_.size());
  for (size_t i = tokens_.size(); i-- > 0;) {  // of equal contents the first counts
    if (!tokens_[i].content.empty()) items.push_back({tokens_[i].content, static_cast<int32_t>(i)});
  }
  trie_ = Trie(std::move(items));
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special, std::vector<Fragment>& out) const {
  if (text.empty()) return;
  if (trie_.empty()) {
    out.push_back({0, text.size(), -1});
  } else if (rule_ == Rule::leftmost_longest) {
    split_leftmost(text, parse_special, out);
  } else {
    split_longest(text, parse_special, out);
  }
}

// The order of checks is the Rust library's: a match that is refused still uses up its text, and a token
// whose rstrip ran over the next match does not stop that match.
void AddedTokenMatcher::split_leftmost(std::string_view text, bool parse_special,
                                       std::vector<Fragment>& out) const {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    if (!trie_.may_start(text[i])) {
      ++i;
      continue;
    }
    Match match{i, i, -1};
    trie_.prefixes(text.substr(i), [&](size_t length, int32_t token) {
      match.end = i + length;
      match.token = token;
    });
    if (match.token < 0) {
      ++i;
      continue;
    }
    i = match.end;
    const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
    if (token.special && !parse_special) continue;
    if (token.single_word && (word_ends_at(text, match.begin) || word_starts_at(text, match.end))) continue;
    if (token.lstrip) {
      size_t begin = match.begin;
      while (begin > done) {
        const size_t before = previous(text, begin);
        if (!is_white_space(decode_valid(text, before).value)) break;
        begin = before;
      }
      match.begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (match.end < text.size()) {
        const CodePoint c = decode_valid(text, match.end);
        if (!is_white_space(c.value)) break;
        match.end += c.length;
      }
    }
    // White space that the token before took is not there any more: a token of nothing else is no token.
    if (match.begin >= match.end) continue;
    if (done < match.begin) out.push_back({done, match.begin, -1});
    out.push_back({match.begin, match.end, token.id});
    done = match.end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

void AddedTokenMatcher::split_longest(std::string_view text, bool parse_special,
                                      std::vector<Fragment>& out) const {
  // The longest candidate of at most `limit` bytes at `begin`.
  const auto candidate = [&](size_t begin, size_t limit) {
    Match match{begin, begin, -1};
    trie_.prefixes(text.substr(begin, limit), [&](size_t length, int32_t token) {
      if (parse_special || !tokens_[static_cast<size_t>(token)].special)
        match = {begin, begin + length, token};
    });
    return match;
  };
  std::map<size_t, std::vector<Match>, std::greater<>> by_length;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!trie_.may_start(text[i])) continue;
    const Match match = candidate(i, text.size());
    if (match.token >= 0) by_length[match.end - match.begin].push_back(match);
  }
  // Each token takes all its leftmost places in what longer tokens have left over. A place whose start is
  // taken is lost for shorter tokens too; where only the end is taken, the next shorter candidate waits for
  // its turn. So a long run of one character costs one candidate per character, however many lengths of it
  // are tokens.
  std::vector<Match> taken;
  std::vector<bool> used(by_length.empty() ? 0 : text.size());
  while (!by_length.empty()) {
    const size_t length = by_length.begin()->first;
    std::vector<Match> matches = std::move(by_length.begin()->second);
    by_length.erase(by_length.begin());
    std::sort(matches.begin(), matches.end(), [&](const Match& a, const Match& b) {
      const int32_t id_a = tokens_[static_cast<size_t>(a.token)].id,
                    id_b = tokens_[static_cast<size_t>(b.token)].id;
      return id_a != id_b ? id_a < id_b : a.begin < b.begin;
    });
    for (const Match& m : matches) {
      if (used[m.begin]) continue;
      if (used[m.end - 1]) {
        const Match shorter = candidate(m.begin, length - 1);
        if (shorter.token >= 0) by_length[shorter.end - shorter.begin].push_back(shorter);
        continue;
      }
      std::fill(used.begin() + static_cast<ptrdiff_t>(m.begin), used.begin() + static_cast<ptrdiff_t>(m.end),
                true);
      taken.push_back(m);
    }
  }
  std::sort(taken.begin(), taken.end(), [](const Match& a, const Match& b) { return a.begin < b.begin; });
  size_t done = 0;
  for (const Match& m : taken) {
    if (done < m.begin) out.push_back({done, m.begin, -1});
    out.push_back({m.begin, m.end, tokens_[static_cast<size_t>(m.token)].id});
    done = m.end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace kvasir::tokenizer
