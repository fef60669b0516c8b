// The command line as data: what --help, the man page and the completions are all made from. It is read off
// the parser's own definitions, so none of them can tell of a flag that does not exist.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvasir::cli {

struct OptionDescription {
  std::vector<std::string> names;    // with their dashes; a positional has one name without
  std::string value;                 // empty: a flag
  std::vector<std::string> choices;  // of the value, when it is one of a list
  std::string help;
  bool positional = false;
  bool required = false;
  bool repeatable = false;
  bool minor = false;  // declared with `minor()`
};

struct OptionGroup {
  std::string title;  // empty: the command's own
  std::vector<OptionDescription> options;
};

struct CommandDescription {
  std::vector<std::string> path;  // kvasir, eval, logits
  std::vector<std::string> aliases;
  std::string summary;
  std::string footer;  // examples and notes, in lines; what follows an empty line is not in the brief help
  bool minor = false;  // declared with `minor()`
  std::vector<OptionGroup> groups;
  std::vector<CommandDescription> commands;

  std::string words() const;  // "kvasir eval logits"
};

// Of the program or one of its commands.
CommandDescription describe(const CLI::App& app);

// Help of at most a screen of 80 columns and 24 lines: minor flags and commands, and groups of flags that
// several verbs share, are named in a line or two, unless `all`.
std::string help_text(const CommandDescription& command, bool all);
// kvasir(1), in roff's man macros.
std::string man_page(const CommandDescription& root, const std::string& version);
// A completion script for "bash", "zsh" or "fish". Throws Error{invalid_input} for another shell.
std::string completion_script(const CommandDescription& root, const std::string& shell,
                              const std::vector<std::string>& model_names);

// `text` broken at spaces into lines of at most `width` characters, the following ones indented.
std::string wrap(const std::string& text, size_t indent, size_t width);

}  // namespace kvasir::cli
