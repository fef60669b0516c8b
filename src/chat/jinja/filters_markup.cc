// Filters that know HTML: escaping, tags, attributes, URLs.
#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/interpreter.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

struct HtmlEntity {
  std::string_view name, text;
};

#include "chat/jinja/html_entities.inc"

const HtmlEntity* find_entity(std::string_view name) {
  const auto* it = std::lower_bound(std::begin(kHtmlEntities), std::end(kHtmlEntities), name,
                                    [](const HtmlEntity& e, std::string_view n) { return e.name < n; });
  return it != std::end(kHtmlEntities) && it->name == name ? it : nullptr;
}

// The text of a numeric reference (HTML standard, "numeric character reference end state").
std::string numeric_reference(uint64_t code) {
  static constexpr uint32_t kWindows1252[32] = {
      0x20AC, 0x81,   0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
      0x2039, 0x0152, 0x8D,   0x017D, 0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
      0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x9D,   0x017E, 0x0178};
  std::string out;
  if (code == 0 || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) {
    append_code_point(out, 0xFFFD);
    return out;
  }
  if (code == 0x0D) return "\r";
  if (code >= 0x80 && code <= 0x9F) {
    append_code_point(out, kWindows1252[code - 0x80]);
    return out;
  }
  const bool invalid = (code >= 1 && code <= 8) || code == 0xB || (code >= 0xE && code <= 0x1F) ||
                       (code >= 0x7F && code <= 0x9F) || (code >= 0xFDD0 && code <= 0xFDEF) ||
                       (code & 0xFFFE) == 0xFFFE;
  if (!invalid) append_code_point(out, static_cast<char32_t>(code));
  return out;
}

}  // namespace

std::string unescape_markup(std::string_view text) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] != '&') {
      out += text[i++];
      continue;
    }
    size_t at = i + 1;
    if (at < text.size() && text[at] == '#') {
      ++at;
      const bool hex = at < text.size() && (text[at] == 'x' || text[at] == 'X');
      if (hex) ++at;
      uint64_t code = 0;
      const size_t first = at;
      while (at < text.size()) {
        const char c = text[at];
        int digit = -1;
        if (c >= '0' && c <= '9') digit = c - '0';
        if (hex && (c | 0x20) >= 'a' && (c | 0x20) <= 'f') digit = (c | 0x20) - 'a' + 10;
        if (digit < 0) break;
        if (code <= 0x10FFFF) code = code * (hex ? 16 : 10) + static_cast<uint64_t>(digit);
        ++at;
      }
      if (at > first) {
        if (at < text.size() && text[at] == ';') ++at;
        out += numeric_reference(code);
        i = at;
        continue;
      }
      out += text[i++];
      continue;
    }
    // Up to 32 characters of a name, then perhaps a semicolon; the longest known prefix counts.
    size_t end = at;
    int length = 0;
    while (end < text.size() && length < 32) {
      size_t after = end;
      const char32_t c = next_code_point(text, after);
      if (c == '\t' || c == '\n' || c == '\f' || c == ' ' || c == '<' || c == '&' || c == '#' || c == ';')
        break;
      end = after;
      ++length;
    }
    if (length == 0) {
      out += text[i++];
      continue;
    }
    if (end < text.size() && text[end] == ';') ++end;
    std::string_view name = text.substr(at, end - at);
    const HtmlEntity* entity = find_entity(name);
    size_t used = name.size();
    while (entity == nullptr && used > 2) entity = find_entity(name.substr(0, --used));
    if (entity != nullptr && used >= 2) {
      out += entity->text;
      out += name.substr(used);
    } else {
      out += '&';
      out += name;
    }
    i = end;
  }
  return out;
}

std::string strip_tags(std::string_view text) {
  std::string kept;
  size_t position = 0;
  bool any = false;
  while (true) {
    const size_t start = text.find('<', position);
    if (start == std::string_view::npos) break;
    size_t end = 0;
    if (text.substr(start).starts_with("<!--")) {
      end = text.find("-->", start + 4);
      if (end == std::string_view::npos) break;
      end += 3;
    } else {
      end = text.find('>', start);
      if (end == std::string_view::npos) break;
      ++end;
    }
    kept += text.substr(position, start - position);
    position = end;
    any = true;
  }
  if (any)
    kept += text.substr(position);
  else
    kept = text;
  std::string joined;
  for (const std::string_view word : split_space(kept, -1)) {
    if (!joined.empty()) joined += ' ';
    joined += word;
  }
  return unescape_markup(joined);
}

namespace {

Value escape_filter(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("escape", arguments, {}, 0);
  return escape(operand);
}

Value force_escape(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("forceescape", arguments, {}, 0);
  return Value(escape_text(to_text(operand)), true);
}

Value mark_safe(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("safe", arguments, {}, 0);
  if (operand.is_string()) return operand.with_markup(true);
  return Value(to_text(operand), true);
}

Value strip_tags_filter(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("striptags", arguments, {}, 0);
  return Value(strip_tags(to_text(operand)));
}

Value xml_attributes(Interpreter& interpreter, const Value& operand, Arguments& arguments) {
  const Parameters p("xmlattr", arguments, {"autospace"}, 0);
  if (operand.is_undefined()) raise_undefined(operand);
  if (!operand.is(Kind::dict))
    fail(FailureKind::attribute_error, "{} has no attribute 'items'", type_name(operand));
  std::string out;
  for (const auto& [key, value] : operand.dictionary().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string()) type_error("expected string or bytes-like object, got '{}'", type_name(key));
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      value_error("Invalid character in attribute name: {}", repr(key));
    if (!out.empty()) out += ' ';
    out += escape(key).text() + "=\"" + escape(value).text() + "\"";
    check_string_size(out.size());
  }
  if (p.flag(0, true) && !out.empty()) out.insert(0, " ");
  return Value(std::move(out), interpreter.autoescape());
}

std::string quote_url(const Value& value, bool query) {
  const std::string text = to_text(value);
  std::string out;
  constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (query && c == ' ') {
      out += '+';
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  check_string_size(out.size());
  return out;
}

Value url_encode(Interpreter&, const Value& operand, Arguments& arguments) {
  Parameters("urlencode", arguments, {}, 0);
  if (operand.is_string() || !is_iterable(operand)) return Value(quote_url(operand, false));
  std::string out;
  bool first = true;
  const auto add = [&](const Value& key, const Value& value) {
    if (!first) out += '&';
    first = false;
    out += quote_url(key, true) + "=" + quote_url(value, true);
    check_string_size(out.size());
  };
  if (operand.is(Kind::dict)) {
    for (const auto& [key, value] : operand.dictionary().entries) add(key, value);
    return Value(std::move(out));
  }
  Iteration pairs(operand);
  Value pair;
  while (pairs.next(pair)) {
    if (!is_iterable(pair)) type_error("cannot unpack non-iterable {} object", type_name(pair));
    const std::vector<Value> parts = to_vector(pair);
    if (parts.size() != 2) value_error("expected pairs of key and value, got {} items", parts.size());
    add(parts[0], parts[1]);
  }
  return Value(std::move(out));
}

Value urlize_refused(Interpreter&, const Value&, Arguments&) {
  fail(FailureKind::unsupported, "the filter 'urlize' is not supported in chat templates");
}

}  // namespace

void add_markup_filters(std::vector<FilterEntry>& table) {
  table.insert(table.end(), {
                                {"escape", false, escape_filter},
                                {"e", false, escape_filter},
                                {"forceescape", false, force_escape},
                                {"safe", false, mark_safe},
                                {"striptags", false, strip_tags_filter},
                                {"xmlattr", false, xml_attributes},
                                {"urlencode", false, url_encode},
                                {"urlize", true, urlize_refused},
                            });
}

}  // namespace kvasir::jinja
