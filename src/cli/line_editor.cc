#include "cli/line_editor.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <iostream>

#include "cli/command.h"

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

}  // namespace

LineEditor::LineEditor(std::filesystem::path history_file)
    : history_file_(std::move(history_file)),
      terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (!terminal_) return;
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

std::optional<std::string> LineEditor::read_line(const std::string& prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
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
    return std::string();
  }
  if (raw == nullptr) return std::nullopt;
  std::string line(raw);
  std::free(raw);
  return line;
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  std::optional<std::string> line = read_line(prompt);
  if (!line) return std::nullopt;
  std::string text = *line;
  constexpr std::string_view kBlock = "\"\"\"";
  if (text.starts_with(kBlock)) {
    // Text may stand beside either mark; both may be in one line.
    text.erase(0, kBlock.size());
    std::string last = text;
    text.clear();
    while (!last.ends_with(kBlock)) {
      if (!last.empty() || !text.empty()) text += last + "\n";
      line = read_line("... ");
      if (!line) return text;
      last = *line;
    }
    text += last.substr(0, last.size() - kBlock.size());
    if (text.ends_with('\n')) text.pop_back();
  } else {
    while (!text.empty() && text.back() == '\\') {
      text.back() = '\n';
      line = read_line("... ");
      if (!line) break;
      text += *line;
    }
  }
  if (terminal_ && !text.empty() && text.find('\n') == std::string::npos) add_history(text.c_str());
  return text;
}

}  // namespace kvasir::cli
