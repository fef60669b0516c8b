// Completion scripts of the three shells. Each walks the words before the cursor to the command that is
// meant, then offers that command's subcommands and flags, or the values of the flag before the cursor.
#include <fmt/format.h>

#include <functional>

#include "base/error.h"
#include "cli/describe.h"
#include "cli/options.h"

namespace kvasir::cli {
namespace {

using Visit = std::function<void(const CommandDescription&)>;

void for_each_command(const CommandDescription& command, const Visit& visit) {
  visit(command);
  for (const CommandDescription& sub : command.commands) for_each_command(sub, visit);
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

// Words of a command below the program, joined: "eval logits"; empty for the program.
std::string key(const CommandDescription& command) {
  return joined({command.path.begin() + 1, command.path.end()}, " ");
}

std::vector<std::string> names_of(const CommandDescription& command) {
  std::vector<std::string> names = {command.path.back()};
  names.insert(names.end(), command.aliases.begin(), command.aliases.end());
  return names;
}

void for_each_option(const CommandDescription& command,
                     const std::function<void(const OptionDescription&)>& visit) {
  for (const OptionGroup& group : command.groups)
    for (const OptionDescription& option : group.options) visit(option);
}

// What the n-th positional of a command takes; the last one counts for the rest.
std::string positional_value(const CommandDescription& command) {
  std::string value;
  for_each_option(command, [&](const OptionDescription& option) {
    if (option.positional && value.empty()) value = option.value;
  });
  return value;
}

std::string single_quoted(const std::string& text) {  // for a POSIX shell or fish, in single quotes
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

// ---- bash

std::string bash_values(const std::string& value, const std::vector<std::string>& choices,
                        const std::string& models) {
  if (!choices.empty())
    return fmt::format("mapfile -t COMPREPLY < <(compgen -W {} -- \"$cur\")",
                       single_quoted(joined(choices, " ")));
  if (value == kFileValue) return "_kvasir_files -f";
  if (value == kFolderValue) return "_kvasir_files -d";
  if (value == kModelValue)
    return fmt::format(
        "_kvasir_files -f; mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -W {} -- "
        "\"$cur\")",
        single_quoted(models));
  return ":";
}

std::string bash_script(const CommandDescription& root, const std::vector<std::string>& model_names) {
  const std::string models = joined(model_names, " ");
  std::string walk, values, words;
  for_each_command(root, [&](const CommandDescription& command) {
    const std::string path = key(command);
    for (const CommandDescription& sub : command.commands)
      for (const std::string& name : names_of(sub))
        walk += fmt::format("      {}) command={} ;;\n", single_quoted(path + "/" + name),
                            single_quoted(key(sub)));
    std::string flags, of_flags;
    for_each_option(command, [&](const OptionDescription& option) {
      if (option.positional) return;
      for (const std::string& name : option.names) flags += (flags.empty() ? "" : " ") + name;
      if (option.value.empty()) return;
      std::string patterns;
      for (const std::string& name : option.names)
        patterns += (patterns.empty() ? "" : "|") + single_quoted(path + "/" + name);
      of_flags +=
          fmt::format("    {}) {}; return ;;\n", patterns, bash_values(option.value, option.choices, models));
    });
    values += of_flags;
    std::string subs;
    for (const CommandDescription& sub : command.commands)
      subs += (subs.empty() ? "" : " ") + sub.path.back();
    const std::string positional = positional_value(command);
    std::vector<std::string> choices;
    for_each_option(command, [&](const OptionDescription& option) {
      if (option.positional && choices.empty()) choices = option.choices;
    });
    words += fmt::format(
        "    {})\n"
        "      if [[ $cur == -* ]]; then mapfile -t COMPREPLY < <(compgen -W {} -- \"$cur\")\n"
        "      else {}\n"
        "      fi ;;\n",
        single_quoted(path), single_quoted(flags),
        subs.empty()
            ? bash_values(positional, choices, models)
            : fmt::format("mapfile -t COMPREPLY < <(compgen -W {} -- \"$cur\")", single_quoted(subs)));
  });
  return "# Completion of kvasir for bash; written by `kvasir completions bash`.\n"
         "_kvasir_files() {\n"
         "  compopt -o filenames 2>/dev/null\n"
         "  mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\")\n"
         "}\n\n"
         "_kvasir() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command='' i\n"
         "  COMPREPLY=()\n"
         "  # --flag=value arrives as three words.\n"
         "  if [[ $cur == = ]]; then cur=''\n"
         "  elif [[ $prev == = && $COMP_CWORD -ge 2 ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}\n"
         "  fi\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    case \"$command/${COMP_WORDS[i]}\" in\n" +
         walk +
         "    esac\n"
         "  done\n"
         "  case \"$command/$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         words +
         "  esac\n"
         "}\n"
         "complete -F _kvasir kvasir\n";
}

// ---- zsh

// A description inside an _arguments specification: brackets and colons end its parts.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const OptionDescription& option, const std::string& models) {
  const std::string label = zsh_text(option.value);
  if (!option.choices.empty()) return label + ":(" + joined(option.choices, " ") + ")";
  if (option.value == kFileValue) return label + ":_files";
  if (option.value == kFolderValue) return label + ":_files -/";
  if (option.value == kModelValue)
    return label + ":{_alternative \"names:model:(" + models + ")\" \"files:file:_files\"}";
  return label + ": ";
}

void zsh_function(const CommandDescription& command, const std::string& models, std::string& out) {
  std::string name = "_" + joined(command.path, "_");
  std::string text = name + "() {\n";
  if (!command.commands.empty()) {
    text += "  local -a commands\n  commands=(\n";
    for (const CommandDescription& sub : command.commands)
      text += "    " + single_quoted(sub.path.back() + ":" + sub.summary) + "\n";
    text += "  )\n";
  }
  text += "  local context state line\n  typeset -A opt_args\n  _arguments -C";
  for_each_option(command, [&](const OptionDescription& option) {
    if (option.positional) {
      text +=
          " \\\n    " + single_quoted(std::string(option.required ? ":" : "::") + zsh_action(option, models));
      return;
    }
    const std::string tail =
        "[" + zsh_text(option.help) + "]" + (option.value.empty() ? "" : ":" + zsh_action(option, models));
    for (const std::string& flag : option.names) {
      // With a value, a long flag takes it after '=' as well as from the next word.
      const bool equals = !option.value.empty() && flag.starts_with("--");
      text += " \\\n    " + single_quoted((option.repeatable ? "*" : "") + flag + (equals ? "=" : "") + tail);
    }
  });
  if (command.commands.empty()) {
    text += "\n}\n\n";
  } else {
    text += " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n  case $state in\n";
    text += "    command) _describe command commands ;;\n    argument)\n      case $line[1] in\n";
    for (const CommandDescription& sub : command.commands)
      text += fmt::format("        {}) {} ;;\n", joined(names_of(sub), "|"), name + "_" + sub.path.back());
    text += "      esac ;;\n  esac\n}\n\n";
  }
  out += text;
  for (const CommandDescription& sub : command.commands) zsh_function(sub, models, out);
}

std::string zsh_script(const CommandDescription& root, const std::vector<std::string>& model_names) {
  std::string out =
      "#compdef kvasir\n# Completion of kvasir for zsh; written by `kvasir completions zsh`.\n\n";
  zsh_function(root, joined(model_names, " "), out);
  // Loaded from $fpath, the file is the function's body; sourced, it registers itself.
  return out + "if [ \"$funcstack[1]\" = _kvasir ]; then _kvasir \"$@\"; else compdef _kvasir kvasir; fi\n";
}

// ---- fish

std::string fish_script(const CommandDescription& root, const std::vector<std::string>& model_names) {
  std::string out =
      "# Completion of kvasir for fish; written by `kvasir completions fish`.\ncomplete -c kvasir -f\n";
  const std::function<void(const CommandDescription&, const CommandDescription*)> walk =
      [&](const CommandDescription& command, const CommandDescription* parent) {
        std::string condition;
        if (command.path.size() > 1) {
          condition = "__fish_seen_subcommand_from " + joined(names_of(command), " ");
          if (parent != nullptr && parent->path.size() > 1)
            condition =
                "__fish_seen_subcommand_from " + joined(names_of(*parent), " ") + "; and " + condition;
        }
        const std::string when = condition.empty() ? "" : " -n " + single_quoted(condition);
        std::vector<std::string> subs;
        for (const CommandDescription& sub : command.commands)
          for (const std::string& name : names_of(sub)) subs.push_back(name);
        for (const CommandDescription& sub : command.commands) {
          const std::string open =
              condition.empty() ? "__fish_use_subcommand"
                                : condition + "; and not __fish_seen_subcommand_from " + joined(subs, " ");
          out += fmt::format("complete -c kvasir -n {} -a {} -d {}\n", single_quoted(open), sub.path.back(),
                             single_quoted(sub.summary));
        }
        for_each_option(command, [&](const OptionDescription& option) {
          std::string line = "complete -c kvasir" + when;
          if (!option.positional) {
            for (const std::string& name : option.names)
              line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
            line += " -d " + single_quoted(option.help);
            if (!option.value.empty()) line += " -r";
          }
          if (!option.choices.empty())
            line += " -f -a " + single_quoted(joined(option.choices, " "));
          else if (option.value == kModelValue)
            line += " -F -a " + single_quoted(joined(model_names, " "));
          else if (option.value == kFileValue)
            line += " -F";
          else if (option.value == kFolderValue)
            line += " -f -a '(__fish_complete_directories)'";
          else if (option.positional)
            return;
          out += line + "\n";
        });
        for (const CommandDescription& sub : command.commands) walk(sub, &command);
      };
  walk(root, nullptr);
  return out;
}

}  // namespace

std::string completion_script(const CommandDescription& root, const std::string& shell,
                              const std::vector<std::string>& model_names) {
  if (shell == "bash") return bash_script(root, model_names);
  if (shell == "zsh") return zsh_script(root, model_names);
  if (shell == "fish") return fish_script(root, model_names);
  throw_error(ErrorCode::invalid_input, "'{}' is not one of bash, zsh, fish", printable(shell));
}

}  // namespace kvasir::cli
