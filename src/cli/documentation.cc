// `kvasir completions` and `kvasir man`: the command line about itself.
#include "cli/command.h"
#include "cli/describe.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/starter_models.h"
#include "cli/version.h"

namespace kvasir::cli {

void add_completions(CLI::App& app, Invocation& invocation) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completions", "Print a completion script for a shell")
                          ->alias("completion")
                          ->group(kMinorGroup);
  add_choice(*command, "SHELL", *shell, {"bash", "zsh", "fish"}, "bash, zsh or fish")->required();
  command->footer(
      "Examples:\n"
      "  source <(kvasir completions bash)\n"
      "  kvasir completions zsh > ~/.zfunc/_kvasir\n"
      "  kvasir completions fish > ~/.config/fish/completions/kvasir.fish\n"
      "An installed kvasir brings all three.");
  command->callback([&app, shell, &invocation] {
    invocation.work = [&app, shell] {
      std::fputs(completion_script(describe(app), *shell, starter_names()).c_str(), stdout);
      return kExitDone;
    };
  });
}

void add_man(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("man", "Print the man page")->group(kMinorGroup);
  command->footer("Example: kvasir man | man -l -");
  command->callback([&app, &invocation] {
    invocation.work = [&app] {
      std::fputs(man_page(describe(app), kVersion).c_str(), stdout);
      return kExitDone;
    };
  });
}

}  // namespace kvasir::cli
