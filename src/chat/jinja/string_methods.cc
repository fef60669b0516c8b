// Python's str methods. Markup (text that was escaped or marked safe) keeps being markup, and escapes what it
// takes in.
#include <algorithm>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

std::string unescape_markup(std::string_view text);  // filters_markup.cc
std::string strip_tags(std::string_view text);

namespace {

Value same_kind(const Value& self, std::string text) {
  return Value(std::move(text), self.is_markup());
}
Value same_kind(const Value& self, std::string_view text) {
  return Value(text, self.is_markup());
}

const std::string& text_argument(const Value& value, std::string_view method) {
  if (!value.is_string()) type_error("{}() argument must be str, not {}", method, type_name(value));
  return value.text();
}

int64_t integer_argument(const Value& value) {
  if (!value.is_integer()) type_error("'{}' object cannot be interpreted as an integer", type_name(value));
  return as_index(value, "argument", false);
}

template <std::string (*Map)(std::string_view)>
Value mapped(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("str method", arguments, {}, 0);
  return same_kind(self, Map(self.text()));
}

template <bool (*Test)(std::string_view)>
Value tested(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("str method", arguments, {}, 0);
  return Value(Test(self.text()));
}

template <bool (*Test)(char32_t)>
Value all_characters(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("str method", arguments, {}, 0);
  const std::string& text = self.text();
  for (size_t i = 0; i < text.size();)
    if (!Test(next_code_point(text, i))) return Value(false);
  return Value(!text.empty());
}

Value is_ascii_method(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("isascii", arguments, {}, 0);
  return Value(self.string().ascii());
}

Value is_printable_method(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("isprintable", arguments, {}, 0);
  const std::string& text = self.text();
  for (size_t i = 0; i < text.size();)
    if (!is_printable(next_code_point(text, i))) return Value(false);
  return Value(true);
}

template <bool Left, bool Right>
Value strip_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("strip", arguments, {"chars"}, 0, self.is_markup() ? 0 : 1);
  if (!p.has(0) || p[0].is_none()) return same_kind(self, strip(self.text(), nullptr, Left, Right));
  const std::string_view characters = text_argument(p[0], "strip");
  count_work(self.text().size() * characters.size());
  return same_kind(self, strip(self.text(), &characters, Left, Right));
}

Value to_list(const Value& self, const std::vector<std::string_view>& parts) {
  check_list_size(parts.size());
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const std::string_view part : parts) out.push_back(same_kind(self, part));
  return Value::list(std::move(out));
}

template <bool FromRight>
Value split_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("split", arguments, {"sep", "maxsplit"}, 0);
  const int64_t limit = p.has(1) ? integer_argument(p[1]) : -1;
  if (!p.has(0) || p[0].is_none())
    return to_list(self, FromRight ? right_split_space(self.text(), limit) : split_space(self.text(), limit));
  if (!p[0].is_string()) type_error("must be str or None, not {}", type_name(p[0]));
  if (p[0].text().empty()) value_error("empty separator");
  return to_list(self, split_text(self.text(), p[0].text(), limit, FromRight));
}

Value split_lines_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("splitlines", arguments, {"keepends"}, 0);
  if (p.has(0) && !p[0].is_integer())
    type_error("'{}' object cannot be interpreted as an integer", type_name(p[0]));
  return to_list(self, split_lines(self.text(), p.flag(0, false)));
}

// The part of `text` between two optional indices in code points, and where it starts; nullopt if start >
// length.
struct Part {
  std::string_view text;
  int64_t start;
  bool valid;
};

Part part_of(const Value& self, const Parameters& p, size_t first) {
  const int64_t size = self.string().length;
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!p.has(i) || p[i].is_none()) return otherwise;
    if (!p[i].is_integer()) type_error("slice indices must be integers or None or have an __index__ method");
    int64_t at = as_index(p[i], "index", true);
    if (at < 0) at = std::max<int64_t>(at < -size ? 0 : at + size, 0);
    return at;
  };
  const int64_t start = bound(first, 0);
  const int64_t stop = std::min(bound(first + 1, size), size);
  if (start > size || start > stop) return {{}, start, false};
  const bool ascii = self.string().ascii();
  const std::string_view text = self.text();
  const size_t from = byte_offset(text, start, ascii);
  const size_t bytes = byte_offset(text.substr(from), stop - start, ascii);
  return {text.substr(from, bytes), start, true};
}

template <bool AtStart>
Value starts_or_ends(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p(AtStart ? "startswith" : "endswith", arguments, {"prefix", "start", "end"}, 1, 3);
  const Part part = part_of(self, p, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string())
      type_error("{} first arg must be str or a tuple of str, not {}", AtStart ? "startswith" : "endswith",
                 type_name(affix));
    if (!part.valid) return false;
    return AtStart ? part.text.starts_with(affix.text()) : part.text.ends_with(affix.text());
  };
  if (!p[0].is(Kind::tuple)) return Value(matches(p[0]));
  for (const Value& affix : p[0].items())
    if (matches(affix)) return Value(true);
  return Value(false);
}

template <bool Last, bool Raises>
Value find_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("find", arguments, {"sub", "start", "end"}, 1, 3);
  const std::string& needle = text_argument(p[0], "find");
  const Part part = part_of(self, p, 1);
  size_t at = std::string_view::npos;
  if (part.valid) {
    count_work(part.text.size());
    at = Last ? part.text.rfind(needle) : part.text.find(needle);
  }
  if (at == std::string_view::npos) {
    if (Raises) value_error("substring not found");
    return Value(-1);
  }
  return Value(part.start + count_code_points(part.text.substr(0, at)));
}

Value count_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("count", arguments, {"sub", "start", "end"}, 1, 3);
  const std::string& needle = text_argument(p[0], "count");
  const Part part = part_of(self, p, 1);
  if (!part.valid) return Value(0);
  if (needle.empty()) return Value(count_code_points(part.text) + 1);
  count_work(part.text.size());
  int64_t count = 0;
  for (size_t at = part.text.find(needle); at != std::string_view::npos;
       at = part.text.find(needle, at + needle.size()))
    ++count;
  return Value(count);
}

Value replace_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("replace", arguments, {"old", "new", "count"}, 2, 3);
  const std::string& from = text_argument(p[0], "replace");
  text_argument(p[1], "replace");
  const Value to = self.is_markup() ? escape(p[1]) : p[1];
  return same_kind(self, replace_text(self.text(), from, to.text(), p.has(2) ? integer_argument(p[2]) : -1));
}

Value join_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("join", arguments, {"iterable"}, 1, 1);
  if (!is_iterable(p[0])) type_error("can only join an iterable");
  std::string out;
  Iteration items(p[0]);
  Value item;
  int64_t index = 0;
  while (items.next(item)) {
    if (self.is_markup()) item = escape(item);
    if (!item.is_string())
      type_error("sequence item {}: expected str instance, {} found", index, type_name(item));
    if (index++ != 0) out += self.text();
    out += item.text();
    check_string_size(out.size());
  }
  return same_kind(self, std::move(out));
}

template <bool Prefix>
Value remove_affix(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p(Prefix ? "removeprefix" : "removesuffix", arguments, {"affix"}, 1, 1);
  const std::string& affix = text_argument(p[0], "removeprefix");
  std::string_view text = self.text();
  if (Prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!Prefix && !affix.empty() && text.ends_with(affix)) text.remove_suffix(affix.size());
  return same_kind(self, text);
}

std::string fill_argument(const Value& self, const Parameters& p) {
  if (!p.has(1)) return " ";
  if (!p[1].is_string())
    type_error("The fill character must be a unicode character, not {}", type_name(p[1]));
  const Value fill = self.is_markup() ? escape(p[1]) : p[1];
  if (fill.string().length != 1) type_error("The fill character must be exactly one character long");
  return fill.text();
}

enum class Justify { left, right, center };

}  // namespace

// str.center puts the odd blank on the left if the width is odd (CPython's rule).
std::string justify_text(const Value& self, int64_t width, std::string_view fill, int side) {
  const int64_t size = self.string().length;
  if (width <= size) return self.text();
  const int64_t blank = width - size;
  checked_repeat(fill.size(), blank, true);
  check_string_size(static_cast<size_t>(blank) * fill.size() + self.text().size());
  int64_t left = side < 0 ? 0 : side > 0 ? blank : blank / 2 + (blank & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < blank; ++i) out += fill;
  return out;
}

namespace {

template <int Side>
Value justify_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("justify", arguments, {"width", "fillchar"}, 1, 2);
  const std::string fill = fill_argument(self, p);
  return same_kind(self, justify_text(self, integer_argument(p[0]), fill, Side));
}

Value zero_fill(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("zfill", arguments, {"width"}, 1, 1);
  const int64_t width = integer_argument(p[0]), size = self.string().length;
  if (width <= size) return self;
  check_string_size(checked_repeat(1, width - size, true) + self.text().size());
  std::string out = self.text();
  const bool sign = !out.empty() && (out[0] == '+' || out[0] == '-');
  out.insert(sign ? 1 : 0, std::string(static_cast<size_t>(width - size), '0'));
  return same_kind(self, std::move(out));
}

template <bool FromRight>
Value partition_method(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("partition", arguments, {"sep"}, 1, 1);
  if (!p[0].is_string()) type_error("must be str, not {}", type_name(p[0]));
  const std::string& separator = p[0].text();
  if (separator.empty()) value_error("empty separator");
  const std::string_view text = self.text();
  count_work(text.size());
  const size_t at = FromRight ? text.rfind(separator) : text.find(separator);
  std::string_view left = FromRight ? std::string_view() : text, middle,
                   right = FromRight ? text : std::string_view();
  if (at != std::string_view::npos) {
    left = text.substr(0, at);
    middle = separator;
    right = text.substr(at + separator.size());
  }
  return Value::tuple({same_kind(self, left), same_kind(self, middle), same_kind(self, right)});
}

Value expand_tabs(Interpreter&, const Value& self, Arguments& arguments) {
  const Parameters p("expandtabs", arguments, {"tabsize"}, 0);
  const int64_t size = p.has(0) ? integer_argument(p[0]) : 8;
  std::string out;
  int64_t column = 0;
  const std::string& text = self.text();
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    if (c == '\t') {
      if (size > 0) {
        const int64_t blanks = size - column % size;
        check_string_size(out.size() + checked_repeat(1, blanks, true));
        out.append(static_cast<size_t>(blanks), ' ');
        column += blanks;
      }
      continue;
    }
    append_code_point(out, c);
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  }
  return same_kind(self, std::move(out));
}

Value is_identifier_method(Interpreter&, const Value& self, Arguments& arguments) {
  Parameters("isidentifier", arguments, {}, 0);
  return Value(is_identifier(self.text()));
}

Value encode_refused(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported, "str.encode makes bytes, which are not supported in chat templates");
}

Value translate_refused(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported, "str.translate and str.maketrans are not supported in chat templates");
}

Value format_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  return format_braces(interpreter, self, arguments.positional, arguments.keywords, nullptr);
}

Value format_map_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  if (!arguments.keywords.empty()) type_error("format_map() takes no keyword arguments");
  if (arguments.positional.size() != 1)
    type_error("format_map() takes exactly one argument ({} given)", arguments.positional.size());
  return format_braces(interpreter, self, {}, {}, &arguments.positional[0]);
}

constexpr MethodEntry kStringMethods[] = {
    {"strip", strip_method<true, true>},
    {"split", split_method<false>},
    {"startswith", starts_or_ends<true>},
    {"endswith", starts_or_ends<false>},
    {"replace", replace_method},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"upper", mapped<to_upper>},
    {"lower", mapped<to_lower>},
    {"title", mapped<to_title>},
    {"capitalize", mapped<capitalize>},
    {"swapcase", mapped<swap_case>},
    {"casefold", mapped<case_fold>},
    {"join", join_method},
    {"find", find_method<false, false>},
    {"rfind", find_method<true, false>},
    {"index", find_method<false, true>},
    {"rindex", find_method<true, true>},
    {"count", count_method},
    {"rsplit", split_method<true>},
    {"splitlines", split_lines_method},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"isdigit", all_characters<is_digit>},
    {"isalpha", all_characters<is_alpha>},
    {"isalnum", all_characters<is_alnum>},
    {"isnumeric", all_characters<is_numeric>},
    {"isdecimal", all_characters<is_decimal>},
    {"isspace", all_characters<is_space>},
    {"islower", tested<text_is_lower>},
    {"isupper", tested<text_is_upper>},
    {"istitle", tested<text_is_title>},
    {"isascii", is_ascii_method},
    {"isprintable", is_printable_method},
    {"isidentifier", is_identifier_method},
    {"zfill", zero_fill},
    {"ljust", justify_method<-1>},
    {"rjust", justify_method<1>},
    {"center", justify_method<0>},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"expandtabs", expand_tabs},
    {"format", format_method},
    {"format_map", format_map_method},
    {"encode", encode_refused},
    {"translate", translate_refused},
    {"maketrans", translate_refused},
};

}  // namespace

const MethodEntry* find_string_method(std::string_view name) {
  for (const MethodEntry& entry : kStringMethods)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace kvasir::jinja
