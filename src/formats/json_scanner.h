// A strict pull parser for JSON from untrusted files (RFC 8259 and UTF-8, spec: formats.md 0.1).
//
// The caller asks for the structure it expects, so that a header of 100 MB needs no tree: strings without
// escapes are views into the text, nesting is bounded, and every error names file, line and byte. json.h
// builds trees with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::formats {

struct JsonRules {
  int depth = 64;               // open objects and arrays at most
  bool non_finite = false;      // the literals NaN, Infinity, -Infinity are numbers
  bool byte_order_mark = true;  // one UTF-8 BOM at the beginning is skipped
  std::string_view error_prefix = "invalid JSON";
};

class JsonScanner {
 public:
  enum class Kind { object, array, string, number, boolean, null };

  struct Number {
    enum class Form { i64, u64, real } form = Form::i64;  // u64 only above i64's range
    int64_t i64 = 0;
    uint64_t u64 = 0;
    double real = 0;
  };

  // `text` must outlive the scanner; `file` is what errors call it. Throws Error{corrupt_file} when the text
  // is not UTF-8.
  JsonScanner(std::string_view text, std::string file, JsonRules rules = {});

  Kind peek();  // the kind of the next value
  size_t position() const { return position_; }

  // Enters a container. Then next_key / next_element answer whether there is one more (and leave the
  // container if not); after a key or a true next_element exactly one value must be read.
  void begin_object();
  bool next_key(std::string_view* key, bool* stable = nullptr);
  void begin_array();
  bool next_element();

  // Views returned by string() and next_key() are valid until the next call of either, or as long as the text
  // when *stable.
  std::string_view string(bool* stable = nullptr);
  Number number();
  bool boolean();
  void null();
  void skip();    // any value, checked as strictly as when it is read
  void finish();  // nothing but white space may follow

  [[noreturn]] void fail(std::string_view reason, size_t at) const;
  [[noreturn]] void fail(std::string_view reason) const { fail(reason, position_); }

 private:
  void space();
  char current() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  void literal(std::string_view word);
  void expect_kind(Kind kind, std::string_view expected);
  bool next_item(char close, std::string_view close_error);
  void enter();
  std::string_view quoted(bool* stable);
  void escape(std::string* out);
  uint32_t hex4();

  std::string_view text_;
  std::string file_;
  JsonRules rules_;
  size_t position_ = 0;
  std::string unescaped_;
  std::vector<bool> started_;  // one per open container: has it had an item?
};

}  // namespace kvasir::formats
