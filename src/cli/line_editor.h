// Reads lines from a person: editing and history on a terminal (libedit), plain lines otherwise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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
  // beginning begin a block that ends with the line that ends in them. Nothing at end of input. Ctrl-C gives
  // an empty one, in the middle of a block, too. Throws Error{invalid_input} where the input ends in a block.
  std::optional<std::string> read(const std::string& prompt);

 private:
  enum class Ending : uint8_t { line, interrupt, input };  // what ended it
  struct Line {
    std::string text;
    Ending ending = Ending::line;
  };
  Line read_line(const std::string& prompt);
  struct Terminal;
  std::filesystem::path history_file_;
  std::unique_ptr<Terminal> terminal_;  // none where input or output is no terminal
};

}  // namespace kvasir::cli
