#include "cli/config_file.h"

#include <algorithm>
#include <set>

#include "base/environment.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kConfigLimit = size_t{1} << 20;

class Parser {
 public:
  Parser(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  std::vector<ConfigEntry> run() {
    std::vector<ConfigEntry> out;
    std::set<std::string> seen;
    std::string section;
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    for (;;) {
      skip_lines();
      if (at_ >= text_.size()) return out;
      if (peek() == '[') {
        ++at_;
        skip_spaces();
        section = name(true);
        skip_spaces();
        if (peek() != ']') fail("expected ] after the section's name");
        ++at_;
      } else {
        ConfigEntry entry;
        entry.section = section;
        entry.line = line_;
        entry.key = name(false);
        skip_spaces();
        if (peek() != '=') fail(fmt::format("expected = after '{}'", printable(entry.key)));
        ++at_;
        skip_spaces();
        value(&entry);
        if (!seen.insert(entry.section + "." + entry.key).second)
          fail(fmt::format("'{}' is set twice", printable(entry.key)));
        out.push_back(std::move(entry));
      }
      skip_spaces();
      skip_comment();
      if (at_ < text_.size() && peek() != '\n') fail("expected the end of the line");
    }
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::invalid_input, "{}:{}: {}", printable(file_), line_, what);
  }

  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
  }
  void skip_comment() {
    if (peek() == '#')
      while (at_ < text_.size() && peek() != '\n') ++at_;
  }
  void skip_lines() {
    for (;;) {
      skip_spaces();
      skip_comment();
      if (peek() != '\n') return;
      ++at_;
      ++line_;
    }
  }

  static bool is_bare(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }

  std::string name(bool dotted) {
    const size_t begin = at_;
    while (is_bare(peek()) || (dotted && peek() == '.')) ++at_;
    if (at_ == begin) fail("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void value(ConfigEntry* entry) {
    if (peek() != '[') {
      entry->values.push_back(scalar());
      return;
    }
    entry->is_list = true;
    ++at_;
    for (;;) {
      skip_lines();
      if (peek() == ']') break;
      entry->values.push_back(scalar());
      skip_lines();
      if (peek() == ',')
        ++at_;
      else if (peek() != ']')
        fail("expected , or ] in the list");
    }
    ++at_;
  }

  std::string scalar() {
    if (peek() == '"' || peek() == '\'') return quoted(peek());
    const size_t begin = at_;
    while (is_bare(peek()) || peek() == '.' || peek() == '+') ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    const bool number = !word.empty() && word.find_first_of("0123456789") != std::string::npos &&
                        word.find_first_not_of("0123456789.+-eE_") == std::string::npos;
    if (word == "true" || word == "false" || number) {
      std::string plain = word;
      plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
      return plain;
    }
    fail(word.empty() ? std::string("expected a value")
                      : fmt::format("'{}' is no value: text stands in quotes", printable(word)));
  }

  std::string quoted(char quote) {
    ++at_;
    std::string out;
    while (peek() != quote) {
      char c = peek();
      if (at_ >= text_.size() || c == '\n') fail("the text's closing quote is missing");
      ++at_;
      if (c == '\\' && quote == '"') {
        const char next = peek();
        ++at_;
        switch (next) {
          case '"':
          case '\\':
            c = next;
            break;
          case 'n':
            c = '\n';
            break;
          case 't':
            c = '\t';
            break;
          default:
            fail("unknown escape: expected \\\" \\\\ \\n or \\t");
        }
      }
      out.push_back(c);
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& file) {
  return Parser(text, file).run();
}

bool config_path_is_given() {
  return !environment("KVASIR_CONFIG").empty();
}

fs::path config_path() {
  if (config_path_is_given()) return environment("KVASIR_CONFIG");
  return user_folder("XDG_CONFIG_HOME", ".config") / "kvasir" / "config.toml";
}

std::vector<ConfigEntry> read_config() {
  const fs::path path = config_path();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    if (config_path_is_given())
      throw_error(ErrorCode::not_found, "{}: no such file (KVASIR_CONFIG names it)",
                  printable(path.string()));
    return {};
  }
  return parse_config(read_file(path, kConfigLimit), path.string());
}

}  // namespace kvasir::cli
