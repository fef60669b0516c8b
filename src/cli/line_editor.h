// Reads lines from a person: editing and history on a terminal (libedit), plain lines otherwise.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kvasir::cli {

class LineEditor {
 public:
  // History is loaded from and saved to `history_file` (its folder is made); empty: not kept.
  explicit LineEditor(std::filesystem::path history_file);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  // One input: a line; a line ending in a backslash goes on in the next; three double quotes at its
  // beginning begin a block that ends with the line that ends in them. Nothing at end of input. An interrupt
  // (Ctrl-C) at the prompt gives an empty line and sets interrupted().
  std::optional<std::string> read(const std::string& prompt);

 private:
  std::optional<std::string> read_line(const std::string& prompt);
  std::filesystem::path history_file_;
  bool terminal_;
};

}  // namespace kvasir::cli
