// The command line: one file a verb, each adding its subcommand to the application.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace kvasir::cli {

// What a verb's callback leaves for main(): the work to do after parsing, whose result is the exit status.
struct Invocation {
  std::function<int()> work;
  std::set<const CLI::Option*>
      defaulted;  // set by environment or configuration file, not by the user's words

  bool given(const CLI::Option& option) const { return option.count() > 0 && !defaulted.contains(&option); }
};

// Exit statuses that scripts rely on.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnsupported = 3;
inline constexpr int kExitDoesNotFit = 4;
inline constexpr int kExitInterrupted = 130;

void add_bench(CLI::App& app, Invocation& invocation);
void add_chat(CLI::App& app, Invocation& invocation);
void add_completions(CLI::App& app, Invocation& invocation);
void add_detokenize(CLI::App& app, Invocation& invocation);
void add_doctor(CLI::App& app, Invocation& invocation);
void add_eval(CLI::App& app, Invocation& invocation);
void add_fit(CLI::App& app, Invocation& invocation);
void add_gc(CLI::App& app, Invocation& invocation);
void add_generate(CLI::App& app, Invocation& invocation);
void add_get(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_kv(CLI::App& app, Invocation& invocation);
void add_ls(CLI::App& app, Invocation& invocation);
void add_man(CLI::App& app, Invocation& invocation);
void add_pack(CLI::App& app, Invocation& invocation);
void add_perplexity(CLI::App& app, Invocation& invocation);
void add_render(CLI::App& app, Invocation& invocation);
void add_rm(CLI::App& app, Invocation& invocation);
void add_synth(CLI::App& app, Invocation& invocation);
void add_tokenize(CLI::App& app, Invocation& invocation);
void add_version(CLI::App& app, Invocation& invocation);

// The command that the parser found, however deep (`eval logits`); `app` itself when none was given.
const CLI::App& chosen_command(const CLI::App& app);
// The words by which a command is called, those of its parents first, joined: "eval logits".
std::string words_of(const CLI::App& command, char joint = ' ');

// The verb in the name that the program was called by: "chat" of "/usr/bin/kvasir.chat", which is `kvasir
// chat`. Nothing: the name has no such form.
std::optional<std::string> verb_of_name(std::string_view called);
bool is_command(const CLI::App& app, const std::string& name);  // or an alias of one

// Closest of an application's (or subcommand's) option names to one that it does not know, for "did you
// mean".
std::string nearest_option(const CLI::App& app, const std::string& unknown);
std::string nearest_command(const CLI::App& app, const std::string& unknown);

// Set by SIGINT (and SIGTERM) once the handler is installed, which commands do whose long work polls it
// between steps; the others end at once. Whoever handles it clears it; SIGTERM stays, as it is meant for the
// whole process.
bool interrupted();
bool terminated();
void clear_interrupt();
void install_interrupt_handler();

}  // namespace kvasir::cli
