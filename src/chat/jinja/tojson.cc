// transformers' `tojson`: Python's json.dumps with ensure_ascii off by default and nothing escaped for HTML.
#include <algorithm>
#include <cmath>

#include "chat/jinja/budget.h"
#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(bool ascii, bool sort_keys, bool indented, std::string indent, std::string item_separator,
             std::string key_separator)
      : ascii_(ascii),
        sort_keys_(sort_keys),
        indented_(indented),
        indent_(std::move(indent)),
        item_separator_(std::move(item_separator)),
        key_separator_(std::move(key_separator)) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::none:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += value.boolean() ? "true" : "false";
        return;
      case Kind::integer:
      case Kind::big_integer:
        out_ += integer_text(value);
        return;
      case Kind::floating:
        out_ += number(value.floating());
        return;
      case Kind::string:
        write_text(value.text());
        return;
      case Kind::list:
      case Kind::tuple:
        write_list(value, level);
        return;
      case Kind::dict:
        write_dict(value, level);
        return;
      default:
        type_error("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void new_line(int level) {
    if (!indented_) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += indent_;
    check_string_size(out_.size());
  }

  void write_list(const Value& value, int level) {
    const DepthGuard guard;
    if (value.items().empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) out_ += item_separator_;
      first = false;
      new_line(level + 1);
      write(item, level + 1);
      check_string_size(out_.size());
    }
    new_line(level);
    out_ += ']';
  }

  void write_dict(const Value& value, int level) {
    const DepthGuard guard;
    auto entries = value.dictionary().entries;
    if (entries.empty()) {
      out_ += "{}";
      return;
    }
    if (sort_keys_) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        count_work(256);
        return compare(a.first, b.first, Order::less);
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto& [key, item] : entries) {
      if (!first) out_ += item_separator_;
      first = false;
      new_line(level + 1);
      write_key(key);
      out_ += key_separator_;
      write(item, level + 1);
      check_string_size(out_.size());
    }
    new_line(level);
    out_ += '}';
  }

  void write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::string:
        write_text(key.text());
        return;
      case Kind::none:
        out_ += "\"null\"";
        return;
      case Kind::boolean:
        out_ += key.boolean() ? "\"true\"" : "\"false\"";
        return;
      case Kind::integer:
      case Kind::big_integer:
        out_ += '"' + integer_text(key) + '"';
        return;
      case Kind::floating:
        out_ += '"' + number(key.floating()) + '"';
        return;
      default:
        type_error("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  void write_text(const std::string& text) {
    count_work(text.size());
    out_ += '"';
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      switch (byte) {
        case '"':
          out_ += "\\\"";
          continue;
        case '\\':
          out_ += "\\\\";
          continue;
        case '\n':
          out_ += "\\n";
          continue;
        case '\r':
          out_ += "\\r";
          continue;
        case '\t':
          out_ += "\\t";
          continue;
        case '\f':
          out_ += "\\f";
          continue;
        case '\b':
          out_ += "\\b";
          continue;
        default:
          break;
      }
      if (byte < 0x20) {
        out_ += fmt::format("\\u{:04x}", byte);
      } else if (byte == 0x7F && ascii_) {
        out_ += text[i];
      } else if (byte < 0x80 || !ascii_) {
        out_ += text[i];
      } else {
        const auto code = static_cast<uint32_t>(next_code_point(text, i));
        --i;
        if (code >= 0x10000)
          out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                              0xDC00 + ((code - 0x10000) & 0x3FF));
        else
          out_ += fmt::format("\\u{:04x}", code);
      }
    }
    out_ += '"';
    check_string_size(out_.size());
  }

  bool ascii_, sort_keys_, indented_;
  std::string indent_, item_separator_, key_separator_;
  std::string out_;
};

}  // namespace

Value apply_tojson(Interpreter&, const Value& operand, Arguments& arguments) {
  const Parameters p("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  const Value indent = p.get(1, Value());
  const bool indented = !indent.is_none();
  std::string margin;
  if (indent.is_string())
    margin = indent.text();
  else if (indented)
    margin.assign(checked_repeat(1, as_index(indent, "tojson()", true), true), ' ');
  std::string item_separator = indented ? "," : ", ", key_separator = ": ";
  if (p.has(2) && !p[2].is_none()) {
    const std::vector<Value> pair = to_vector(p[2]);
    if (pair.size() != 2) value_error("tojson: separators are a pair, got {} items", pair.size());
    if (!pair[0].is_string() || !pair[1].is_string()) type_error("tojson: separators are two strings");
    item_separator = pair[0].text();
    key_separator = pair[1].text();
  }
  JsonWriter writer(p.flag(0, false), p.flag(3, false), indented, margin, item_separator, key_separator);
  return Value(writer.run(operand));
}

}  // namespace kvasir::jinja
