#include "cli/defaults.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

// Flags that say what to do, not how: they make no sense as defaults.
bool is_action(const std::string& flag) {
  static const std::set<std::string> kActions = {"help",    "help-all", "version", "list",
                                                 "dry-run", "yes",      "force"};
  return kActions.contains(flag);
}

// The verbs whose output must not depend on a broken file.
bool is_exempt(const std::string& verb) {
  return verb == "doctor" || verb == "version" || verb == "help" || verb == "completions" || verb == "man";
}

CLI::App* command_of(CLI::App& app, const std::string& section) {
  CLI::App* at = &app;
  for (size_t begin = 0; begin <= section.size();) {
    const size_t dot = std::min(section.find('.', begin), section.size());
    const std::string word = section.substr(begin, dot - begin);
    CLI::App* next = nullptr;
    for (CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; }))
      if (!word.empty() && command->check_name(word)) next = command;
    if (next == nullptr) return nullptr;
    at = next;
    begin = dot + 1;
  }
  return at;
}

// All commands, with the commands of commands.
void collect(CLI::App& app, std::vector<CLI::App*>* out) {
  for (CLI::App* command : app.get_subcommands([](const CLI::App* a) { return !a->get_name().empty(); })) {
    out->push_back(command);
    collect(*command, out);
  }
}

void collect_options(CLI::App& app, std::vector<CLI::Option*>* out) {
  for (CLI::Option* option : app.get_options()) out->push_back(option);
  for (CLI::App* group : app.get_subcommands([](const CLI::App* a) { return a->get_name().empty(); }))
    collect_options(*group, out);
}

// "temperature" -> --temperature of the command, or MODEL for "model". Null when it has none.
CLI::Option* option_of(CLI::App& command, const std::string& key) {
  if (is_action(key)) return nullptr;
  if (CLI::Option* option = command.get_option_no_throw("--" + key)) return option;
  return key == "model" ? command.get_option_no_throw("MODEL") : nullptr;
}

std::string long_name(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  return names.empty() ? std::string() : names.front();
}

std::string upper(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : (c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  return text;
}

std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::string() : std::string(value);
}

CLI::App* chosen(CLI::App& app) {
  CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return command;
}

// As words of a command line.
std::vector<std::string> as_words(const CLI::Option& option, const std::vector<std::string>& values) {
  std::vector<std::string> out;
  const std::string name = long_name(option);
  for (const std::string& value : values) {
    if (name.empty())
      out.push_back(value);  // a positional
    else if (option.get_expected_min() == 0 && value == "false")
      continue;  // a flag that is off is one that is not given
    else if (option.get_expected_min() == 0 && value == "true")
      out.push_back("--" + name);
    else
      out.push_back("--" + name + "=" + value);
  }
  return out;
}

std::string section_of(const CLI::App& app, const CLI::App* command) {
  std::string out;
  for (; command != &app; command = command->get_parent())
    out = command->get_name() + (out.empty() ? "" : "." + out);
  return out;
}

void parse_words(CLI::App& app, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // the parser takes its words from the back
  app.parse(std::move(words));
}

// What the file says for a command: its own section before the lines above all sections.
const ConfigEntry* find_entry(const std::vector<ConfigEntry>& entries, const std::string& section,
                              const CLI::Option& option) {
  const ConfigEntry* found = nullptr;
  for (const ConfigEntry& entry : entries) {
    const bool names =
        option.check_lname(entry.key) || (entry.key == "model" && option.get_name() == "MODEL");
    if (!names || (entry.section != section && !entry.section.empty())) continue;
    if (found == nullptr || found->section.empty()) found = &entry;
  }
  return found;
}

}  // namespace

bool changes_numerics(const std::string& flag) {
  static const std::set<std::string> kNumerics = {"activations", "isa",     "kv",      "kv-layer", "kv-start",
                                                  "kv-plain",    "kv-page", "context", "ctx"};
  return kNumerics.contains(flag);
}

std::string environment_name(const std::string& flag) {
  return "KVASIR_" + upper(flag.substr(flag.find_first_not_of('-')));
}

void check_config(CLI::App& app, const std::vector<ConfigEntry>& entries, const std::string& file) {
  std::vector<CLI::App*> commands;
  collect(app, &commands);
  for (const ConfigEntry& entry : entries) {
    const auto fail = [&](const std::string& what, const std::string& near) {
      throw_error(ErrorCode::invalid_input, "{}:{}: {}{}", printable(file), entry.line, what,
                  near.empty() ? std::string() : fmt::format(": did you mean {}?", near));
    };
    const auto bare = [](std::string name) {
      return name.erase(0, std::min(name.size(), name.find_first_not_of('-')));
    };
    if (entry.section.empty()) {
      std::string near;
      bool known = false;
      for (CLI::App* command : commands) {
        known |= option_of(*command, entry.key) != nullptr;
        if (near.empty()) near = bare(nearest_option(*command, "--" + entry.key));
      }
      if (!known) fail(fmt::format("no command has a flag '{}'", printable(entry.key)), near);
      continue;
    }
    CLI::App* command = command_of(app, entry.section);
    if (command == nullptr)
      fail(fmt::format("[{}] is no command", printable(entry.section)), nearest_command(app, entry.section));
    if (option_of(*command, entry.key) == nullptr)
      fail(fmt::format("`kvasir {}` has no flag '{}'", printable(entry.section), printable(entry.key)),
           bare(nearest_option(*command, "--" + entry.key)));
  }
}

void parse_with_defaults(CLI::App& app, const std::vector<std::string>& words) {
  // Which command is meant: the first words that are commands.
  CLI::App* command = &app;
  size_t depth = 0;
  for (; depth < words.size(); ++depth) {
    CLI::App* next = nullptr;
    for (CLI::App* sub : command->get_subcommands([](const CLI::App* a) { return !a->get_name().empty(); }))
      if (sub->check_name(words[depth])) next = sub;
    if (next == nullptr) break;
    command = next;
  }
  const bool help = std::any_of(words.begin(), words.end(), [](const std::string& w) {
    return w == "--help" || w == "-h" || w == "--help-all";
  });
  if (command == &app || help || is_exempt(words.front())) return parse_words(app, words);

  const std::vector<ConfigEntry> entries = read_config();
  const std::string file = config_path().string();
  check_config(app, entries, file);
  const std::string section = section_of(app, command);
  std::vector<CLI::Option*> options;
  collect_options(*command, &options);
  // A MODEL that has a default need not be given.
  std::vector<std::string> model;
  CLI::Option* positional = command->get_option_no_throw("MODEL");
  if (positional != nullptr && positional->get_required()) {
    const std::string value = variable("KVASIR_MODEL");
    const ConfigEntry* entry = find_entry(entries, section, *positional);
    if (!value.empty())
      model = {value};
    else if (entry != nullptr)
      model = entry->values;
    if (!model.empty()) positional->required(false);
  }
  parse_words(app, words);
  command = chosen(app);

  std::vector<std::string> extra;
  for (CLI::Option* option : options) {
    const std::string name = long_name(*option);
    if (name.empty() || is_action(name) || option->count() > 0) continue;
    std::vector<std::string> values;
    for (const std::string& alias : option->get_lnames()) {
      // KVASIR_CONFIG names the file itself.
      const std::string value = alias == "config" ? std::string() : variable(environment_name(alias));
      if (value.empty()) continue;
      if (changes_numerics(alias))
        throw_error(ErrorCode::invalid_input,
                    "{} is set, and no environment variable may change numerics: give --{}, or '{}' in {}",
                    environment_name(alias), alias, alias, file);
      values = {value};
    }
    if (values.empty()) {
      const ConfigEntry* entry = find_entry(entries, section, *option);
      if (entry == nullptr) continue;
      if (entry->is_list && option->get_expected_max() <= 1)
        throw_error(ErrorCode::invalid_input, "{}:{}: --{} takes one value, not a list", printable(file),
                    entry->line, name);
      values = entry->values;
    }
    for (std::string& word : as_words(*option, values)) extra.push_back(std::move(word));
  }
  const bool add_model = positional != nullptr && positional->count() == 0 && !model.empty();
  if (extra.empty() && !add_model) return;
  // The model right behind the command's own words, the flags last: a flag that takes several values would
  // swallow words that follow it. What follows "--" is no flag.
  std::vector<std::string> all(words);
  all.insert(std::find(all.begin(), all.end(), "--"), extra.begin(), extra.end());
  if (add_model) all.insert(all.begin() + static_cast<std::ptrdiff_t>(depth), model.begin(), model.end());
  try {
    parse_words(app, all);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw;
    throw Error(ErrorCode::invalid_input, fmt::format("a default from the environment or {}: {}",
                                                      printable(file), printable(error.what())));
  }
}

}  // namespace kvasir::cli
