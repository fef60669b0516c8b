// kvasir: the command line's entry. Parses, runs one verb, turns errors into one line on stderr and an exit
// status.
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/file_error.h"
#include "base/mapping_faults.h"
#include "base/nearest_name.h"
#include "base/partial_files.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/defaults.h"
#include "cli/describe.h"
#include "cli/output.h"
#include "cli/version.h"

namespace kvasir::cli {
namespace {

constexpr char kOutOfMemory[] = "kvasir: out of memory outside the memory plan\n";

// Before anything else, libraries' own beginnings and static objects included: where these find no memory,
// nothing can be caught, and what is said is theirs.
void find_room_to_begin() {
  constexpr size_t kRoom = size_t{4} << 20;
  void* const room = ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room != MAP_FAILED) {
    ::munmap(room, kRoom);
    return;
  }
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kOutOfMemory, sizeof kOutOfMemory - 1);
  ::_exit(kExitDoesNotFit);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)() = find_room_to_begin;

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_input:
      return kExitUsage;
    case ErrorCode::unsupported:
      return kExitUnsupported;
    case ErrorCode::resource_exhausted:
      return kExitDoesNotFit;
    case ErrorCode::cancelled:
      return kExitInterrupted;
    case ErrorCode::corrupt_file:
    case ErrorCode::not_found:
    case ErrorCode::internal:
      return kExitFailure;
  }
  return kExitFailure;
}

int usage_error(const CLI::App& app, const std::string& message) {
  const std::string words = words_of(chosen_command(app));
  std::fprintf(stderr, "kvasir: %s\nTry: kvasir %s%s--help\n", printable_lines(message).c_str(),
               words.c_str(), words.empty() ? "" : " ");
  return kExitUsage;
}

// The word that stands where a command of the chosen one is expected, and names none; empty: there is none.
std::string unknown_command(const CLI::App& app) {
  const auto named = [](const CLI::App* sub) { return !sub->get_name().empty(); };
  if (chosen_command(app).get_subcommands(named).empty()) return {};
  const std::vector<std::string> extras = app.remaining(true);
  return extras.empty() || extras.front().starts_with('-') ? std::string() : extras.front();
}

std::string names_of_commands(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); }))
    names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

int command_error(const CLI::App& app, const std::string& unknown) {
  const std::string near = did_you_mean(nearest_command(chosen_command(app), unknown));
  return usage_error(
      app, fmt::format("unknown command '{}'{}", printable(unknown),
                       near.empty() ? " (there are: " + names_of_commands(chosen_command(app)) + ")" : near));
}

// A link called kvasir.frob.
int name_error(const CLI::App& app, const std::string& unknown) {
  std::string near = did_you_mean(nearest_command(app, unknown));
  if (near.empty()) near = " (there are: " + names_of_commands(app) + ")";
  return usage_error(app, fmt::format("called as kvasir.{}: unknown command '{}'{}", printable(unknown),
                                      printable(unknown), near));
}

int print_help(const CLI::App& app, bool all) {
  if (const std::string unknown = unknown_command(app); !unknown.empty()) return command_error(app, unknown);
  std::fputs(help_text(describe(chosen_command(app)), all).c_str(), stdout);
  return kExitDone;
}

int run(int argc, char** argv) {
  CLI::App app{"kvasir runs large language models on this machine", "kvasir"};
  app.require_subcommand(0, 1);
  app.set_help_flag("--help,-h", "Print this help");
  app.set_help_all_flag("--help-all", "Print help with every flag explained");
  bool show_version = false;
  app.add_flag("--version", show_version, "Print the version and exit");
  Invocation invocation;
  add_chat(app, invocation);
  add_generate(app, invocation);
  add_get(app, invocation);
  add_ls(app, invocation);
  add_rm(app, invocation);
  add_gc(app, invocation);
  add_fit(app, invocation);
  add_inspect(app, invocation);
  add_pack(app, invocation);
  add_bench(app, invocation);
  add_eval(app, invocation);
  add_perplexity(app, invocation);
  add_tokenize(app, invocation);
  add_detokenize(app, invocation);
  add_render(app, invocation);
  add_kv(app, invocation);
  add_synth(app, invocation);
  add_doctor(app, invocation);
  add_completions(app, invocation);
  add_man(app, invocation);
  add_version(app, invocation);
  // Last: commands would inherit it.
  app.footer(
      "Examples:\n"
      "  kvasir get smollm2                               fetch a small model\n"
      "  kvasir chat smollm2                              talk to it\n"
      "  kvasir generate model.gguf --prompt 'Once upon'  one answer\n"
      "\n"
      "MODEL is a GGUF file, a model folder, or a short name (kvasir get --list).\n"
      "Exit status: 0 done, 1 failure, 2 wrong usage, 3 unsupported, 4 does not fit,\n"
      "130 interrupted.");

  std::vector<std::string> words(argv + 1, argv + argc);
  if (const std::optional<std::string> verb = verb_of_name(argc > 0 ? argv[0] : "")) {
    if (*verb != "help" && !is_command(app, *verb)) return name_error(app, *verb);
    words.insert(words.begin(), *verb);
  }
  // `kvasir help VERB` is `kvasir VERB --help`.
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  try {
    invocation.defaulted = parse_with_defaults(app, words);
  } catch (const CLI::CallForHelp&) {
    return print_help(app, false);
  } catch (const CLI::CallForAllHelp&) {
    return print_help(app, true);
  } catch (const CLI::ExtrasError&) {
    const CLI::App& where = chosen_command(app);
    const std::vector<std::string> extras = app.remaining(true);
    const std::string unknown = extras.empty() ? std::string("?") : extras.front();
    if (unknown.rfind('-', 0) == 0) {
      return usage_error(app, fmt::format("unknown flag {}{}", printable(unknown),
                                          did_you_mean(nearest_option(where, unknown))));
    }
    if (!unknown_command(app).empty()) return command_error(app, unknown);
    return usage_error(app, fmt::format("unexpected argument '{}'", printable(unknown)));
  } catch (const CLI::ParseError& error) {
    if (const std::string unknown = unknown_command(app); !unknown.empty())
      return command_error(app, unknown);
    const CLI::App& where = chosen_command(app);
    if (const std::string known = names_of_commands(where);
        !known.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
      return usage_error(app, fmt::format("{} needs one of its commands: {}", words_of(where), known));
    std::string text = error.what();
    if (const size_t at = text.find(": At Most 1 required"); at != std::string::npos)
      text = text.substr(0, at) + ": given more than once";
    return usage_error(app, printable(text));
  }
  if (show_version) {
    std::printf("kvasir %s\n", kVersion);
    return kExitDone;
  }
  if (!invocation.work) {
    std::fputs("kvasir: no command given\n", stderr);
    std::fputs(help_text(describe(app), false).c_str(), stderr);
    return kExitUsage;
  }
  return invocation.work();
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
  using namespace kvasir;
  cli::guard_standard_streams();
  install_mapping_fault_handler();
  install_ending_signals();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of the write, told like a full disk
  try {
    const int status = cli::run(argc, argv);
    cli::finish_output();
    return status;
  } catch (const Error& error) {
    std::fflush(stdout);
    // Names of files are in there that nobody has looked at.
    std::fprintf(stderr, "kvasir: %s\n", printable_lines(error.what()).c_str());
    if (!error.details().empty()) std::fprintf(stderr, "%s\n", printable_lines(error.details()).c_str());
    return cli::exit_status(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "kvasir: %s: %s\n", printable(error.path1().string()).c_str(),
                 error.code().message().c_str());
    return cli::exit_status(file_error(error.code().value()));
  } catch (const std::bad_alloc&) {
    std::fputs(kvasir::cli::kOutOfMemory, stderr);
    return cli::kExitDoesNotFit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvasir: internal error: %s\n", printable_lines(error.what()).c_str());
    return cli::kExitFailure;
  }
}
