// Filters that lay text out: indent, truncate, wordwrap, pprint.
#include <algorithm>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

Value indent(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("indent", arguments, {"width", "first", "blank"}, 0);
  const Value width = p.get(0, Value(4));
  // `s += "\n"`: anything but a string fails here, or is concatenated as Python would.
  const Value text = arithmetic(Binary::add, operand, Value("\n"));
  const bool markup = operand.is_markup();
  std::string margin;
  if (width.is_string()) {
    margin = width.text();
  } else {
    const int64_t count = as_index(width, "indent()", true);
    margin.assign(checked_repeat(1, count, true), ' ');
  }
  std::string out;
  bool first_line = true;
  for (const std::string_view line : split_lines(text.text(), false)) {
    if (!first_line) out += '\n';
    if (!first_line && (p.flag(2, false) || !line.empty())) out += margin;
    first_line = false;
    out += line;
    check_string_size(out.size());
  }
  if (p.flag(1, false)) out.insert(0, margin);
  return Value(std::move(out), markup);
}

Value truncate(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0);
  const Value end = p.get(2, Value("..."));
  const Value leeway = p.has(3) && !p[3].is_none() ? p[3] : Value(5);
  const Value limit = p.get(0, Value(255));
  const Value end_length(length(end));
  if (compare(limit, end_length, Order::less))
    fail(FailureKind::runtime_error, "truncate: expected length >= {}, got {}", to_text(end_length),
         to_text(limit));
  if (compare(leeway, Value(0), Order::less))
    fail(FailureKind::runtime_error, "truncate: expected leeway >= 0, got {}", to_text(leeway));
  const Value most = arithmetic(Binary::add, limit, leeway);
  if (!compare(Value(length(operand)), most, Order::greater)) return operand;
  const Value kept = slice(operand, Value(), arithmetic(Binary::subtract, limit, end_length), Value());
  if (p.flag(1, false)) return arithmetic(Binary::add, kept, end);
  if (!kept.is_string())
    fail(FailureKind::attribute_error, "'{}' object has no attribute 'rsplit'", type_name(kept));
  const auto parts = split_text(kept.text(), " ", 1, true);
  return arithmetic(Binary::add, Value(parts[0], kept.is_markup()), end);
}

// ---- wordwrap: Python's textwrap.wrap of each line

struct WrapOptions {
  int64_t width;
  bool break_long_words, break_on_hyphens;
};

bool is_wrap_space(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13);
}
bool is_letter(char32_t c) {
  return is_word(c) && !is_decimal(c);
}
bool is_word_punctuation(char32_t c) {
  return is_word(c) || c == '!' || c == '"' || c == '\'' || c == '&' || c == '.' || c == ',' || c == '?';
}

using Codes = std::vector<char32_t>;

// Pieces that a line may be broken between (textwrap's description: white space, words, parts of hyphenated
// words, dashes between words).
std::vector<Codes> wrap_pieces(const Codes& s, bool hyphens) {
  std::vector<Codes> pieces;
  const auto at = [&](int64_t i) -> char32_t {
    return i >= 0 && i < static_cast<int64_t>(s.size()) ? s[static_cast<size_t>(i)] : 0;
  };
  // The end of two or more dashes that stand before a word character; 0 if there are none.
  const auto dashes = [&](int64_t i) -> int64_t {
    int64_t j = i;
    while (at(j) == '-') ++j;
    return j - i >= 2 && j < static_cast<int64_t>(s.size()) && is_word(at(j)) ? j : 0;
  };
  const auto size = static_cast<int64_t>(s.size());
  for (int64_t i = 0; i < size;) {
    int64_t j = i;
    if (is_wrap_space(at(i))) {
      while (j < size && is_wrap_space(at(j))) ++j;
    } else if (!hyphens) {
      while (j < size && !is_wrap_space(at(j))) ++j;
    } else if (const int64_t end = i > 0 && is_word_punctuation(at(i - 1)) ? dashes(i) : 0; end != 0) {
      j = end;
    } else {
      for (j = i + 1;; ++j) {
        if (at(j) == '-' && j < size) {
          const bool before =
              (j >= 2 && is_letter(at(j - 2)) && is_letter(at(j - 1))) ||
              (j >= 3 && is_letter(at(j - 3)) && at(j - 2) == '-' && is_word_punctuation(at(j - 1)));
          const bool after =
              j + 2 < size && is_letter(at(j + 1)) &&
              (is_letter(at(j + 2)) || (at(j + 2) == '-' && j + 3 < size && is_letter(at(j + 3))));
          if (before && after) {
            ++j;
            break;
          }
        }
        if (j >= size || is_wrap_space(at(j))) break;
        if (is_word_punctuation(at(j - 1)) && dashes(j) != 0) break;
      }
    }
    pieces.emplace_back(s.begin() + i, s.begin() + j);
    i = j;
  }
  return pieces;
}

bool is_blank(const Codes& piece) {
  return std::all_of(piece.begin(), piece.end(), [](char32_t c) { return is_space(c); });
}

std::vector<std::string> wrap_line(std::string_view line, const WrapOptions& options) {
  if (options.width <= 0) value_error("invalid width {} (must be > 0)", options.width);
  std::vector<Codes> pieces = wrap_pieces(decode(line), options.break_on_hyphens);
  std::reverse(pieces.begin(), pieces.end());
  std::vector<std::string> lines;
  const auto size_of = [](const Codes& piece) { return static_cast<int64_t>(piece.size()); };
  while (!pieces.empty()) {
    count_work(64);
    std::vector<Codes> current;
    int64_t used = 0;
    if (!lines.empty() && is_blank(pieces.back())) pieces.pop_back();
    while (!pieces.empty() && used + size_of(pieces.back()) <= options.width) {
      used += size_of(pieces.back());
      current.push_back(std::move(pieces.back()));
      pieces.pop_back();
    }
    if (!pieces.empty() && size_of(pieces.back()) > options.width) {
      Codes& piece = pieces.back();
      if (options.break_long_words) {
        const int64_t left = options.width - used;
        int64_t end = left;
        if (options.break_on_hyphens && size_of(piece) > left) {
          for (int64_t hyphen = left - 1; hyphen > 0; --hyphen) {
            if (piece[static_cast<size_t>(hyphen)] != '-') continue;
            if (std::any_of(piece.begin(), piece.begin() + hyphen, [](char32_t c) { return c != '-'; }))
              end = hyphen + 1;
            break;
          }
        }
        current.emplace_back(piece.begin(), piece.begin() + end);
        piece.erase(piece.begin(), piece.begin() + end);
        count_work(piece.size() * 4);
      } else if (current.empty()) {
        current.push_back(std::move(piece));
        pieces.pop_back();
      }
    }
    if (!current.empty() && is_blank(current.back())) current.pop_back();
    if (current.empty()) continue;
    std::string text;
    for (const Codes& piece : current) text += encode(piece);
    lines.push_back(std::move(text));
  }
  return lines;
}

Value word_wrap(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("wordwrap", arguments, {"width", "break_long_words", "wrapstring", "break_on_hyphens"},
                     0);
  if (operand.is_undefined()) raise_undefined(operand);
  if (!operand.is_string())
    fail(FailureKind::attribute_error, "'{}' object has no attribute 'splitlines'", type_name(operand));
  const Value separator = p.has(2) && !p[2].is_none() ? p[2] : Value("\n");
  if (!separator.is_string())
    fail(FailureKind::attribute_error, "'{}' object has no attribute 'join'", type_name(separator));
  const WrapOptions options{as_index(p.get(0, Value(79)), "wordwrap()", true), p.flag(1, true),
                            p.flag(3, true)};
  std::string out;
  bool first = true;
  for (const std::string_view line : split_lines(operand.text(), false)) {
    std::string joined;
    bool first_part = true;
    for (const std::string& part : wrap_line(line, options)) {
      if (!first_part) joined += separator.text();
      first_part = false;
      joined += separator.is_markup() ? escape_text(part) : part;
      check_string_size(joined.size());
    }
    if (!first) out += separator.text();
    first = false;
    out += joined;
    check_string_size(out.size());
  }
  return Value(std::move(out), separator.is_markup());
}

// ---- pprint: Python's pprint.pformat

class PrettyPrinter {
 public:
  std::string print(const Value& value) {
    format(value, 0, 0, 0);
    return std::move(out_);
  }

 private:
  static constexpr int64_t kWidth = 80;

  using Entry = std::pair<Value, Value>;

  static std::vector<Entry> sorted(const Value& dict) {
    std::vector<Entry> entries = dict.dictionary().entries;
    const auto less = [](const Value& a, const Value& b) {
      try {
        return compare(a, b, Order::less);
      } catch (const Failure& failure) {
        if (failure.kind != FailureKind::type_error) throw;
        // Unlike types are ordered by the names of their types.
        return type_name(a) < type_name(b);
      }
    };
    std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
      count_work(1024);
      if (equals(a.first, b.first)) return less(a.second, b.second);
      return less(a.first, b.first);
    });
    return entries;
  }

  static std::string flat(const Value& value) {
    const DepthGuard guard;
    if (value.is(Kind::dict)) {
      std::string out = "{";
      for (const auto& [k, v] : sorted(value)) {
        if (out.size() > 1) out += ", ";
        out += flat(k) + ": " + flat(v);
        check_string_size(out.size());
      }
      return out + "}";
    }
    if (value.is(Kind::list) || (value.is(Kind::tuple) && !value.as<SequenceObject>().is_group)) {
      const bool is_list = value.is(Kind::list);
      std::string out = is_list ? "[" : "(";
      bool first = true;
      for (const Value& item : value.items()) {
        if (!first) out += ", ";
        first = false;
        out += flat(item);
        check_string_size(out.size());
      }
      if (!is_list && value.items().size() == 1) out += ',';
      return out + (is_list ? "]" : ")");
    }
    return repr(value);
  }

  void newline(int64_t indent) {
    out_ += '\n';
    out_.append(static_cast<size_t>(indent), ' ');
    check_string_size(out_.size());
  }

  void format(const Value& value, int64_t indent, int64_t allowance, int level) {
    const DepthGuard guard;
    const std::string text = flat(value);
    if (count_code_points(text) <= kWidth - indent - allowance) {
      out_ += text;
      return;
    }
    ++level;
    if (value.is(Kind::dict)) {
      out_ += '{';
      const std::vector<Entry> entries = sorted(value);
      for (size_t i = 0; i < entries.size(); ++i) {
        const bool last = i + 1 == entries.size();
        const std::string key = flat(entries[i].first);
        out_ += key + ": ";
        format(entries[i].second, indent + 1 + count_code_points(key) + 2, last ? allowance + 1 : 1, level);
        if (!last) {
          out_ += ',';
          newline(indent + 1);
        }
      }
      out_ += '}';
    } else if (value.is(Kind::list) || (value.is(Kind::tuple) && !value.as<SequenceObject>().is_group)) {
      const bool is_list = value.is(Kind::list);
      const std::string_view close = is_list ? "]" : value.items().size() == 1 ? ",)" : ")";
      out_ += is_list ? '[' : '(';
      for (size_t i = 0; i < value.items().size(); ++i) {
        const bool last = i + 1 == value.items().size();
        if (i != 0) {
          out_ += ',';
          newline(indent + 1);
        }
        format(value.items()[i], indent + 1, last ? allowance + static_cast<int64_t>(close.size()) : 1,
               level);
      }
      out_ += close;
    } else if (value.is_string() && !value.is_markup()) {
      format_text(value.text(), indent, allowance, level);
    } else {
      out_ += text;
    }
  }

  void format_text(const std::string& text, int64_t indent, int64_t allowance, int level) {
    const auto lines = split_lines(text, true);
    if (level == 1) {
      ++indent;
      ++allowance;
    }
    const int64_t width = kWidth - indent;
    std::vector<std::string> chunks;
    std::string shown;
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last_line = i + 1 == lines.size();
      shown = quote(lines[i]);
      if (count_code_points(shown) <= width - (last_line ? allowance : 0)) {
        chunks.push_back(shown);
        continue;
      }
      std::vector<std::string_view> parts;  // words with the white space after them
      for (size_t k = 0; k < lines[i].size();) {
        const size_t start = k;
        while (k < lines[i].size()) {
          size_t after = k;
          if (is_space(next_code_point(lines[i], after))) break;
          k = after;
        }
        while (k < lines[i].size()) {
          size_t after = k;
          if (!is_space(next_code_point(lines[i], after))) break;
          k = after;
        }
        parts.push_back(lines[i].substr(start, k - start));
      }
      std::string current;
      for (size_t j = 0; j < parts.size(); ++j) {
        std::string candidate = current;
        candidate += parts[j];
        count_work(candidate.size() * 4);
        const int64_t limit = width - (last_line && j + 1 == parts.size() ? allowance : 0);
        if (count_code_points(quote(candidate)) > limit) {
          if (!current.empty()) chunks.push_back(quote(current));
          current = parts[j];
        } else {
          current = std::move(candidate);
        }
      }
      if (!current.empty()) chunks.push_back(quote(current));
    }
    if (chunks.size() == 1) {
      out_ += shown;
      return;
    }
    if (level == 1) out_ += '(';
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i != 0) newline(indent);
      out_ += chunks[i];
    }
    if (level == 1) out_ += ')';
  }

  std::string out_;
};

Value pretty_print(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("pprint", arguments, {}, 0);
  return Value(PrettyPrinter().print(operand));
}

}  // namespace

void add_layout_filters(std::vector<FilterEntry>& table) {
  table.insert(table.end(), {
                                {"indent", false, indent},
                                {"truncate", false, truncate},
                                {"wordwrap", false, word_wrap},
                                {"pprint", false, pretty_print},
                            });
}

}  // namespace kvasir::jinja
