#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/character_sets.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace kvasir::tokenizer {
namespace {

// cut(piece, offset, ends) appends the ends of the parts of each piece; the text stays.
template <typename Cut>
void cut_pieces(Pieces& pieces, Cut&& cut) {
  std::vector<uint32_t>& ends = pieces.other_ends;
  ends.clear();
  uint32_t begin = 0;
  for (uint32_t end : pieces.ends) {
    cut(std::string_view(pieces.text).substr(begin, end - begin), begin, ends);
    begin = end;
  }
  ends.swap(pieces.ends);
}

// rewrite(piece, first piece of the text, out, ends) appends new text and the ends of its parts.
template <typename Rewrite>
void rewrite_pieces(Pieces& pieces, Rewrite&& rewrite) {
  std::string& out = pieces.other_text;
  std::vector<uint32_t>& ends = pieces.other_ends;
  out.clear();
  ends.clear();
  uint32_t begin = 0;
  for (uint32_t end : pieces.ends) {
    rewrite(std::string_view(pieces.text).substr(begin, end - begin), pieces.at_start && begin == 0, out,
            ends);
    begin = end;
  }
  KVASIR_CHECK_MSG(out.size() < UINT32_MAX, "text of {} bytes", out.size());
  out.swap(pieces.text);
  ends.swap(pieces.ends);
}

class RegexSplitter final : public Splitter {
 public:
  explicit RegexSplitter(Regex regex) : regex_(std::move(regex)) {}
  void find(std::string_view text, std::vector<Regex::Match>& matches) const override {
    regex_.find_all(text, matches);
  }

 private:
  Regex regex_;
};

class LiteralSplitter final : public Splitter {
 public:
  explicit LiteralSplitter(std::string literal) : literal_(std::move(literal)) {}
  void find(std::string_view text, std::vector<Regex::Match>& matches) const override {
    for (size_t i = text.find(literal_); i != std::string_view::npos;
         i = text.find(literal_, i + literal_.size())) {
      matches.push_back({i, i + literal_.size()});
    }
  }

 private:
  std::string literal_;
};

class CharacterSplitter final : public Splitter {
 public:
  CharacterSplitter(CharacterTest test, bool runs) : test_(test), runs_(runs) {}
  void find(std::string_view text, std::vector<Regex::Match>& matches) const override {
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = decode_valid(text, i);
      if (test_(c.value)) {
        if (runs_ && !matches.empty() && matches.back().end == i) {
          matches.back().end = i + c.length;
        } else {
          matches.push_back({i, i + c.length});
        }
      }
      i += c.length;
    }
  }

 private:
  CharacterTest test_;
  bool runs_;
};

struct Span {
  size_t begin, end;
  bool match;
};

// The Rust library's merging rules over matches and gaps, in place.
void merge_spans(std::vector<Span>& spans, SplitBehavior behavior) {
  std::vector<Span> out;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(spans, [](const Span& s) { return s.match; });
      return;
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::contiguous:
      for (const Span& s : spans) {
        if (s.match == previous && !out.empty()) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (const Span& s : spans) {
        if (s.match && !previous && !out.empty()) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (size_t i = spans.size(); i-- > 0;) {
        const Span& s = spans[i];
        if (s.match && !previous && !out.empty()) {
          out.back().begin = s.begin;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  spans.swap(out);
}

}  // namespace

std::unique_ptr<Splitter> regex_splitter(Regex regex) {
  return std::make_unique<RegexSplitter>(std::move(regex));
}
std::unique_ptr<Splitter> literal_splitter(std::string literal) {
  KVASIR_CHECK(!literal.empty());
  return std::make_unique<LiteralSplitter>(std::move(literal));
}
std::unique_ptr<Splitter> character_splitter(CharacterTest test, bool runs) {
  return std::make_unique<CharacterSplitter>(test, runs);
}

void SplitPreTokenizer::apply(Pieces& pieces) const {
  std::vector<Span> spans;
  const auto spans_of = [&](std::string_view piece) {
    pieces.matches.clear();
    splitter_->find(piece, pieces.matches);
    spans.clear();
    size_t done = 0;
    for (const Regex::Match& m : pieces.matches) {
      if (m.begin > done) spans.push_back({done, m.begin, invert_});
      spans.push_back({m.begin, m.end, !invert_});
      done = m.end;
    }
    if (done < piece.size()) spans.push_back({done, piece.size(), invert_});
    merge_spans(spans, behavior_);
    std::erase_if(spans, [](const Span& s) { return s.begin == s.end; });
  };
  if (behavior_ != SplitBehavior::removed) {
    cut_pieces(pieces, [&](std::string_view piece, uint32_t offset, std::vector<uint32_t>& ends) {
      spans_of(piece);
      for (const Span& s : spans) ends.push_back(offset + static_cast<uint32_t>(s.end));
    });
    return;
  }
  bool start_kept = false, any = false;
  rewrite_pieces(pieces,
                 [&](std::string_view piece, bool first, std::string& out, std::vector<uint32_t>& ends) {
                   spans_of(piece);
                   for (const Span& s : spans) {
                     if (!any) start_kept = first && s.begin == 0;
                     any = true;
                     out += piece.substr(s.begin, s.end - s.begin);
                     ends.push_back(static_cast<uint32_t>(out.size()));
                   }
                 });
  pieces.at_start = start_kept;
}

void ScanPreTokenizer::apply(Pieces& pieces) const {
  cut_pieces(pieces, [&](std::string_view piece, uint32_t offset, std::vector<uint32_t>& ends) {
    scan(pattern_, piece, offset, ends);
  });
}

void ByteLevelPreTokenizer::apply(Pieces& pieces) const {
  if (add_prefix_space_) {
    rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& out, std::vector<uint32_t>& ends) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
      ends.push_back(static_cast<uint32_t>(out.size()));
    });
  }
  if (use_regex_) ScanPreTokenizer(Scan::gpt2).apply(pieces);
  if (map_) {
    rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& out, std::vector<uint32_t>& ends) {
      append_in_alphabet(out, piece);
      ends.push_back(static_cast<uint32_t>(out.size()));
    });
  }
}

void MetaspacePreTokenizer::apply(Pieces& pieces) const {
  rewrite_pieces(
      pieces, [&](std::string_view piece, bool first, std::string& out, std::vector<uint32_t>& ends) {
        const size_t begin = out.size();
        // Spaces first: a piece that begins with a space needs no other mark.
        const bool marked = piece.starts_with(' ') || piece.starts_with(replacement_);
        if (!marked && (scheme_ == PrependScheme::always || (scheme_ == PrependScheme::first && first)))
          out += replacement_;
        for (size_t i = 0; i < piece.size();) {
          const size_t space = std::min(piece.find(' ', i), piece.size());
          out += piece.substr(i, space - i);
          if (space < piece.size()) out += replacement_;
          i = space + 1;
        }
        if (split_) {
          for (size_t i = out.find(replacement_, begin + 1); i != std::string::npos;
               i = out.find(replacement_, i + replacement_.size())) {
            if (i > begin) ends.push_back(static_cast<uint32_t>(i));
          }
        }
        ends.push_back(static_cast<uint32_t>(out.size()));
      });
}

void FixedLengthPreTokenizer::apply(Pieces& pieces) const {
  cut_pieces(pieces, [&](std::string_view piece, uint32_t offset, std::vector<uint32_t>& ends) {
    size_t characters = 0;
    for (size_t i = 0; i < piece.size(); i += decode_valid(piece, i).length) {
      if (characters == length_) {
        ends.push_back(offset + static_cast<uint32_t>(i));
        characters = 0;
      }
      ++characters;
    }
    ends.push_back(offset + static_cast<uint32_t>(piece.size()));
  });
}

// Characters that go with any script vanish where they lead a piece (the Rust library cuts from the first
// script on).
void UnicodeScriptsPreTokenizer::apply(Pieces& pieces) const {
  bool start_kept = false, any = false;
  rewrite_pieces(pieces,
                 [&](std::string_view piece, bool first, std::string& out, std::vector<uint32_t>& ends) {
                   uint8_t script = 0;
                   size_t begin = piece.size();
                   for (size_t i = 0; i < piece.size();) {
                     const CodePoint c = decode_valid(piece, i);
                     const uint8_t own = script_class(c.value);
                     if (own) {
                       if (!script) begin = i;
                       if (script && own != script)
                         ends.push_back(static_cast<uint32_t>(out.size() + i - begin));
                       script = own;
                     }
                     i += c.length;
                   }
                   if (!script) return;
                   if (!any) start_kept = first && begin == 0;
                   any = true;
                   out += piece.substr(begin);
                   ends.push_back(static_cast<uint32_t>(out.size()));
                 });
  pieces.at_start = start_kept;
}

void WhitespacePreTokenizer::apply(Pieces& pieces) const {
  bool start_kept = false, any = false;
  rewrite_pieces(pieces,
                 [&](std::string_view piece, bool first, std::string& out, std::vector<uint32_t>& ends) {
                   enum class Kind { space, word, other };
                   const auto kind_of = [](char32_t c) {
                     return is_word_character(c) ? Kind::word : is_white_space(c) ? Kind::space : Kind::other;
                   };
                   for (size_t i = 0; i < piece.size();) {
                     const Kind kind = kind_of(decode_valid(piece, i).value);
                     size_t end = i;
                     while (end < piece.size() && kind_of(decode_valid(piece, end).value) == kind)
                       end += decode_valid(piece, end).length;
                     if (kind != Kind::space) {
                       if (!any) start_kept = first && i == 0;
                       any = true;
                       out += piece.substr(i, end - i);
                       ends.push_back(static_cast<uint32_t>(out.size()));
                     }
                     i = end;
                   }
                 });
  pieces.at_start = start_kept;
}

}  // namespace kvasir::tokenizer
