#include "cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <vector>

#include "base/partial_files.h"

namespace kvasir::cli {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

extern "C" void on_interrupt(int) {
  // A second signal while the first is still unhandled ends the process: the user means it.
  if (interrupt_flag != 0) {
    remove_partial_files();
    ::_exit(kExitInterrupted);
  }
  interrupt_flag = 1;
}

// Levenshtein distance.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string nearest(const std::string& unknown, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(3, unknown.size() / 2);
  for (const std::string& candidate : names) {
    const size_t d = distance(unknown, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
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

std::string nearest_option(const CLI::App& app, const std::string& unknown) {
  std::string bare = unknown.substr(0, unknown.find('='));
  std::vector<std::string> names;
  collect_option_names(app, names);
  return nearest(bare, names);
}

std::string nearest_command(const CLI::App& app, const std::string& unknown) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return nearest(unknown, names);
}

bool interrupted() {
  return interrupt_flag != 0;
}
void clear_interrupt() {
  interrupt_flag = 0;
}

void install_interrupt_handler() {
  handle_signals({SIGINT, SIGTERM}, on_interrupt);
}

}  // namespace kvasir::cli
