#include "cli/command.h"

#include <unistd.h>

#include <csignal>
#include <vector>

#include "base/nearest_name.h"
#include "base/partial_files.h"

namespace kvasir::cli {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;  // the signal

extern "C" void on_interrupt(int signal) {
  // A second signal while the first is still unhandled ends the process: the user means it.
  if (interrupt_flag != 0) {
    remove_partial_files();
    ::_exit(kExitInterrupted);
  }
  interrupt_flag = signal;
}

// Option groups are nameless subcommands, and hold options of their own.
void collect_option_names(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  for (const CLI::App* group : app.get_subcommands([](const CLI::App* a) { return a->get_name().empty(); }))
    collect_option_names(*group, names);
}

}  // namespace

const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string words_of(const CLI::App& command, char joint) {
  std::string words;
  for (const CLI::App* at = &command; at->get_parent() != nullptr; at = at->get_parent())
    words = at->get_name() + (words.empty() ? "" : joint + words);
  return words;
}

std::optional<std::string> verb_of_name(std::string_view called) {
  constexpr std::string_view kProgram = "kvasir.";
  const std::string_view last = called.substr(called.rfind('/') + 1);  // npos + 1 is 0
  return last.starts_with(kProgram) ? std::optional<std::string>(last.substr(kProgram.size())) : std::nullopt;
}

bool is_command(const CLI::App& app, const std::string& name) {
  const auto called = [&](const CLI::App* command) {
    return !command->get_name().empty() && command->check_name(name);
  };
  return !app.get_subcommands(called).empty();
}

std::string nearest_option(const CLI::App& app, const std::string& unknown) {
  std::string bare = unknown.substr(0, unknown.find('='));
  std::vector<std::string> names;
  collect_option_names(app, names);
  return nearest_name(bare, names);
}

std::string nearest_command(const CLI::App& app, const std::string& unknown) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return nearest_name(unknown, names);
}

bool interrupted() {
  return interrupt_flag != 0;
}
bool terminated() {
  return interrupt_flag == SIGTERM;
}
void clear_interrupt() {
  if (!terminated()) interrupt_flag = 0;
}

void install_interrupt_handler() {
  handle_signals({SIGINT, SIGTERM}, on_interrupt);
}

}  // namespace kvasir::cli
