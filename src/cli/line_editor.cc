#include "cli/line_editor.h"

#include <editline/readline.h>
#include <langinfo.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csetjmp>
#include <csignal>
#include <iostream>

#include "base/error.h"

namespace kvasir::cli {
namespace {

// libedit restarts its read after a signal, so Ctrl-C at the prompt has to leave it by a jump. Only plain
// data is alive there.
sigjmp_buf prompt_jump;
volatile std::sig_atomic_t at_prompt = 0;

extern "C" void on_prompt_interrupt(int) {
  if (at_prompt != 0) {
    at_prompt = 0;
    siglongjmp(prompt_jump, 1);
  }
}

// Prompts are UTF-8 whatever the environment says (or names a locale that is not installed), and libedit
// drops the characters that the locale has not.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::string_view(nl_langinfo(CODESET)) != "UTF-8")
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

LineEditor::LineEditor(std::filesystem::path history_file)
    : history_file_(std::move(history_file)),
      terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (!terminal_) return;
  use_utf8();
  rl_initialize();
  using_history();
  stifle_history(1000);
  if (!history_file_.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(history_file_.parent_path(), ignored);
    read_history(history_file_.c_str());
  }
}

LineEditor::~LineEditor() {
  if (terminal_ && !history_file_.empty()) write_history(history_file_.c_str());
}

LineEditor::Line LineEditor::read_line(const std::string& prompt) {
  if (!terminal_) {
    Line line;
    if (!std::getline(std::cin, line.text)) line.ending = Ending::input;
    return line;
  }
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = on_prompt_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before);
  char* raw = nullptr;
  if (sigsetjmp(prompt_jump, 1) == 0) {
    at_prompt = 1;
    raw = readline(prompt.c_str());
    at_prompt = 0;
    sigaction(SIGINT, &before, nullptr);
  } else {
    // Left the editor by Ctrl-C: put the terminal back and start a new line.
    sigaction(SIGINT, &before, nullptr);
    rl_deprep_terminal();
    std::cout << "^C\n" << std::flush;
    return {{}, Ending::interrupt};
  }
  if (raw == nullptr) return {{}, Ending::input};
  Line line{raw};
  std::free(raw);
  return line;
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  Line line = read_line(prompt);
  if (line.ending == Ending::input) return std::nullopt;
  // The next line of a message; false: Ctrl-C, nothing is left of the message.
  const auto more = [&] {
    line = read_line("... ");
    if (line.ending == Ending::input)
      throw_error(
          ErrorCode::invalid_input,
          "the message is not finished and was dropped: "
          "a block ends with a line that ends in \"\"\", and a line that ends in \\ goes on in the next");
    return line.ending == Ending::line;
  };
  std::string text = line.text;
  constexpr std::string_view kBlock = "\"\"\"";
  if (text.starts_with(kBlock)) {
    // Text may stand beside either mark; both may be in one line.
    line.text.erase(0, kBlock.size());
    text.clear();
    while (!line.text.ends_with(kBlock)) {
      if (!line.text.empty() || !text.empty()) text += line.text + "\n";
      if (!more()) return std::string();
    }
    text += line.text.substr(0, line.text.size() - kBlock.size());
    if (text.ends_with('\n')) text.pop_back();
  } else {
    while (!text.empty() && text.back() == '\\') {
      text.back() = '\n';
      if (!more()) return std::string();
      text += line.text;
    }
  }
  if (terminal_ && !text.empty() && text.find('\n') == std::string::npos) add_history(text.c_str());
  return text;
}

}  // namespace kvasir::cli
