#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <iostream>

#include "base/error.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

constexpr int kHistoryLines = 1000;

// Keys that make signals elsewhere.
constexpr char kInterruptKey = '\x03';
constexpr char kQuitKey = '\x1C';
constexpr char kStopKey = '\x1A';
constexpr char kEndKey = '\x04';

extern "C" void on_redraw(int) {}  // its read ends, which is all

// Prompts are UTF-8 whatever the environment says (or names a locale that is not installed), and libedit
// drops the characters that the locale has not.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::string_view(nl_langinfo(CODESET)) != "UTF-8")
    std::setlocale(LC_CTYPE, "C.UTF-8");
}

// While it lives, the signal ends a read and does nothing else.
class Redrawing {
 public:
  explicit Redrawing(int signal) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = on_redraw;
    sigemptyset(&action.sa_mask);
    sigaction(signal_, &action, &before_);
  }
  Redrawing(const Redrawing&) = delete;
  Redrawing& operator=(const Redrawing&) = delete;
  ~Redrawing() { sigaction(signal_, &before_, nullptr); }

 private:
  int signal_;
  struct sigaction before_ {};
};

}  // namespace

// libedit's editor. Ctrl-C is a key like others while a line is edited, so that it comes after what was
// typed before it and interrupts nothing in the middle; a signal from elsewhere ends the line as well.
// libedit's own handling of signals (EL_SIGNAL) sends them on to the whole process group.
struct LineEditor::Terminal {
  struct EditorEnd {
    void operator()(EditLine* end) const { el_end(end); }
  };
  struct HistoryEnd {
    void operator()(History* end) const { history_end(end); }
  };

  Terminal() : history(history_init()), editor(el_init("kvasir", stdin, stdout, stderr)) {
    if (history == nullptr || editor == nullptr)
      throw_error(ErrorCode::resource_exhausted, "the terminal cannot be edited on: no memory");
    history_change(H_SETSIZE, kHistoryLines);
    history_change(H_SETUNIQUE, 1);
    EditLine* el = editor.get();
    el_set(el, EL_CLIENTDATA, this);
    el_set(el, EL_PROMPT, &Terminal::shown_prompt);
    el_set(el, EL_GETCFN, &Terminal::read_character);
    el_set(el, EL_EDITOR, "emacs");
    el_set(el, EL_HIST, ::history, history.get());
    el_set(el, EL_SETTY, "-d", "-isig", nullptr);
    for (const auto& [key, command] :
         {std::pair("^R", "em-inc-search-prev"), std::pair("^I", "ed-insert"),
          std::pair("\\e[H", "ed-move-to-beg"), std::pair("\\e[1~", "ed-move-to-beg"),
          std::pair("\\e[7~", "ed-move-to-beg"), std::pair("\\e[F", "ed-move-to-end"),
          std::pair("\\e[4~", "ed-move-to-end"), std::pair("\\e[8~", "ed-move-to-end"),
          std::pair("\\e[3~", "ed-delete-next-char"), std::pair("\\e[1;5C", "em-next-word"),
          std::pair("\\e[1;5D", "ed-prev-word"), std::pair("\\e[5C", "em-next-word"),
          std::pair("\\e[5D", "ed-prev-word"), std::pair("\\e\\e[C", "em-next-word"),
          std::pair("\\e\\e[D", "ed-prev-word")})
      el_set(el, EL_BIND, key, command, nullptr);
    el_source(el, nullptr);  // the user's own bindings
  }

  template <typename... Arguments>
  void history_change(int operation, Arguments... arguments) {
    HistEvent event;
    ::history(history.get(), &event, operation, arguments...);
  }

  static Terminal& of(EditLine* el) {
    void* self = nullptr;
    el_get(el, EL_CLIENTDATA, &self);
    return *static_cast<Terminal*>(self);
  }

  // After a stop, who runs the terminal meanwhile may have changed it.
  static void redraw(EditLine* el) {
    el_set(el, EL_PREP_TERM, 0);
    el_set(el, EL_PREP_TERM, 1);
    el_resize(el);
    el_set(el, EL_REFRESH);
  }

  static const char* shown_prompt(EditLine* el) { return of(el).prompt.c_str(); }

  // libedit's own reader restarts after a signal. 1: a character; 0: none, the line ends here.
  static int read_character(EditLine* el, wchar_t* out) {
    Terminal& self = of(el);
    std::mbstate_t state{};
    while (!interrupted()) {
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && errno == EINTR) {
        if (!interrupted()) redraw(el);  // another size, or back from a stop
        continue;
      }
      if (count <= 0) return 0;
      // A Ctrl-D of the time before the prompt, when the terminal still read whole lines, comes as a zero.
      // Any other zero (Ctrl-@) is no key.
      const bool typed_before = self.typed_before > 0;
      if (typed_before) --self.typed_before;
      if (byte == '\0') {
        if (!typed_before) continue;
        byte = kEndKey;
      }
      if (byte == kInterruptKey) break;
      if (byte == kStopKey || byte == kQuitKey) {
        el_set(el, EL_PREP_TERM, 0);
        ::raise(byte == kStopKey ? SIGTSTP : SIGQUIT);
        redraw(el);
        continue;
      }
      const size_t length = std::mbrtowc(out, &byte, 1, &state);
      if (length == static_cast<size_t>(-2)) continue;  // more bytes belong to it
      if (length != static_cast<size_t>(-1)) return 1;
      state = {};  // no character: dropped
    }
    self.interrupt = true;
    return 0;
  }

  std::unique_ptr<History, HistoryEnd> history;
  std::unique_ptr<EditLine, EditorEnd> editor;
  std::string prompt;
  bool interrupt = false;  // what ended the line
  int typed_before = 0;    // bytes that waited when the prompt came, and have not been read
};

LineEditor::LineEditor(std::filesystem::path history_file) : history_file_(std::move(history_file)) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
  use_utf8();
  terminal_ = std::make_unique<Terminal>();
  if (!history_file_.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(history_file_.parent_path(), ignored);
    terminal_->history_change(H_LOAD, history_file_.c_str());
  }
}

LineEditor::~LineEditor() {
  if (terminal_ && !history_file_.empty()) terminal_->history_change(H_SAVE, history_file_.c_str());
}

LineEditor::Line LineEditor::read_line(const std::string& prompt) {
  Line line;
  if (!terminal_) {
    if (!std::getline(std::cin, line.text)) line.ending = Ending::input;
    return line;
  }
  EditLine* el = terminal_->editor.get();
  terminal_->prompt = prompt;
  terminal_->interrupt = false;
  std::fflush(stdout);
  // Before the prompt is seen: a key pressed at its sight is the editor's.
  el_set(el, EL_PREP_TERM, 1);
  if (::ioctl(STDIN_FILENO, FIONREAD, &terminal_->typed_before) != 0) terminal_->typed_before = 0;
  int length = 0;
  const char* text = nullptr;
  {
    const Redrawing resized(SIGWINCH), resumed(SIGCONT);
    text = el_gets(el, &length);
  }
  if (terminal_->interrupt) {
    clear_interrupt();
    el_reset(el);
    std::fputs("^C\n", stdout);
    line.ending = Ending::interrupt;
  } else if (text == nullptr || length <= 0) {
    line.ending = Ending::input;
  } else {
    line.text.assign(text, static_cast<size_t>(length));
    if (line.text.ends_with('\n')) line.text.pop_back();
  }
  el_set(el, EL_PREP_TERM, 0);
  std::fflush(stdout);
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
  if (terminal_ && !text.empty() && text.find('\n') == std::string::npos)
    terminal_->history_change(H_ENTER, text.c_str());
  return text;
}

}  // namespace kvasir::cli
