#include "cli/defaults.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "base/ascii.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kPrefix = "KVASIR_";  // of environment variables

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

// --no-x of a flag x, as what the parser knows. What follows "--" is no flag.
std::vector<std::string> without_negations(const CLI::App& command, std::vector<std::string> words) {
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--no-") || command.get_option_no_throw(word) != nullptr) continue;
    const std::string flag = "--" + word.substr(5);
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option != nullptr && option->get_expected_max() == 0) word = flag + "=false";
  }
  return words;
}

// One line for each variable KVASIR_... that nothing here reads.
void note_unknown_variables(const std::vector<CLI::App*>& commands) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (const std::string_view text = *entry; text.starts_with(kPrefix))
      variables.emplace_back(text.substr(0, text.find('=')));
  if (variables.empty()) return;
  std::vector<std::string> known = {"CONFIG", "MODEL", "MODELS"};
  for (CLI::App* command : commands) {
    std::vector<CLI::Option*> options;
    collect_options(*command, &options);
    for (const CLI::Option* option : options)
      for (const std::string& name : option->get_lnames())
        known.push_back(environment_name(name).substr(kPrefix.size()));
  }
  for (const std::string& variable : variables) {
    const std::string name = variable.substr(kPrefix.size());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = nearest_name(name, known);
    std::fprintf(stderr, "kvasir: note: %s is set, and no flag has this name%s\n",
                 printable(variable).c_str(),
                 did_you_mean(near.empty() ? near : std::string(kPrefix) + near).c_str());
  }
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

// A value for a flag that the words do not give.
struct Default {
  CLI::Option* option;
  std::vector<std::string> words;  // of the command line; none for a flag that is off
  int place;                       // 0: environment, 1: the command's section, 2: above all sections
  std::string origin;              // the variable, or file and line
};

// From the environment, else from the file; nothing where neither knows the flag.
std::optional<Default> default_of(CLI::Option& option, const std::vector<ConfigEntry>& entries,
                                  const std::string& section, const std::string& file) {
  for (const std::string& name : option.get_lnames()) {
    // KVASIR_CONFIG names the file itself.
    const std::string value = name == "config" ? std::string() : environment(environment_name(name));
    if (value.empty()) continue;
    if (changes_numerics(name))
      throw_error(ErrorCode::invalid_input,
                  "{} is set, and no environment variable may change numerics: give --{}, or '{}' in {}",
                  environment_name(name), name, name, file);
    return Default{&option, as_words(option, {value}), 0, environment_name(name)};
  }
  const ConfigEntry* entry = find_entry(entries, section, option);
  if (entry == nullptr) return std::nullopt;
  if (entry->is_list && option.get_expected_max() <= 1)
    throw_error(ErrorCode::invalid_input, "{}:{}: --{} takes one value, not a list", printable(file),
                entry->line, long_name(option));
  return Default{&option, as_words(option, entry->values), entry->section.empty() ? 2 : 1,
                 fmt::format("{}:{}", printable(file), entry->line)};
}

// Those that the words, and defaults of a higher place, leave room for.
std::vector<Default> applicable(std::vector<Default> defaults) {
  std::stable_sort(defaults.begin(), defaults.end(),
                   [](const Default& a, const Default& b) { return a.place < b.place; });
  std::map<const CLI::Option*, int> place;  // of what is set so far; the words': -1
  const auto place_of = [&](const CLI::Option* option) {
    if (option->count() > 0) return -1;
    const auto at = place.find(option);
    return at == place.end() ? INT_MAX : at->second;
  };
  std::vector<Default> out;
  for (Default& one : defaults) {
    if (one.words.empty()) continue;
    const std::set<CLI::Option*>& excludes = one.option->get_excludes();
    const bool in_the_way = std::any_of(excludes.begin(), excludes.end(), [&](const CLI::Option* other) {
      return place_of(other) < one.place;
    });
    if (in_the_way) continue;
    place[one.option] = one.place;
    out.push_back(std::move(one));
  }
  // Dropping one may take away what another needs.
  const auto lacks = [&](const Default& one) {
    const std::set<CLI::Option*>& needs = one.option->get_needs();
    return std::any_of(needs.begin(), needs.end(),
                       [&](const CLI::Option* other) { return place_of(other) == INT_MAX; });
  };
  for (auto at = out.begin(); (at = std::find_if(out.begin(), out.end(), lacks)) != out.end();) {
    place.erase(at->option);
    out.erase(at);
  }
  return out;
}

}  // namespace

bool changes_numerics(const std::string& flag) {
  static const std::set<std::string> kNumerics = {"activations", "isa",     "kv",      "kv-layer", "kv-start",
                                                  "kv-plain",    "kv-page", "context", "ctx"};
  return kNumerics.contains(flag);
}

std::string environment_name(const std::string& flag) {
  std::string name = ascii_upper(flag.substr(flag.find_first_not_of('-')));
  std::replace(name.begin(), name.end(), '-', '_');
  return std::string(kPrefix) + name;
}

void check_config(CLI::App& app, const std::vector<ConfigEntry>& entries, const std::string& file) {
  std::vector<CLI::App*> commands;
  collect(app, &commands);
  for (const ConfigEntry& entry : entries) {
    const auto fail = [&](const std::string& what, const std::string& near) {
      throw_error(ErrorCode::invalid_input, "{}:{}: {}{}", printable(file), entry.line, what,
                  did_you_mean(near));
    };
    const auto bare = [](std::string name) {
      return name.erase(0, std::min(name.size(), name.find_first_not_of('-')));
    };
    if (entry.section.empty()) {
      if (std::any_of(commands.begin(), commands.end(),
                      [&](CLI::App* command) { return option_of(*command, entry.key) != nullptr; }))
        continue;
      if (is_action(entry.key))
        fail(fmt::format("'{}' says what to do, so it has no default", printable(entry.key)), "");
      std::string near;
      for (size_t i = 0; i < commands.size() && near.empty(); ++i)
        near = bare(nearest_option(*commands[i], "--" + entry.key));
      fail(fmt::format("no command has a flag '{}'", printable(entry.key)), near);
    }
    CLI::App* command = command_of(app, entry.section);
    if (command == nullptr)
      fail(fmt::format("[{}] is no command", printable(entry.section)), nearest_command(app, entry.section));
    if (is_action(entry.key) && command->get_option_no_throw("--" + entry.key) != nullptr)
      fail(fmt::format("'{}' says what to do, so it has no default", printable(entry.key)), "");
    if (option_of(*command, entry.key) == nullptr)
      fail(fmt::format("`kvasir {}` has no flag '{}'", printable(entry.section), printable(entry.key)),
           bare(nearest_option(*command, "--" + entry.key)));
  }
}

std::set<const CLI::Option*> parse_with_defaults(CLI::App& app, const std::vector<std::string>& given) {
  // Which command is meant: the first words that are commands.
  CLI::App* command = &app;
  size_t depth = 0;
  for (; depth < given.size(); ++depth) {
    CLI::App* next = nullptr;
    for (CLI::App* sub : command->get_subcommands([](const CLI::App* a) { return !a->get_name().empty(); }))
      if (sub->check_name(given[depth])) next = sub;
    if (next == nullptr) break;
    command = next;
  }
  const std::vector<std::string> words = without_negations(*command, given);
  const bool help = std::any_of(words.begin(), words.end(), [](const std::string& w) {
    return w == "--help" || w == "-h" || w == "--help-all";
  });
  if (command == &app || help || is_exempt(words.front())) {
    parse_words(app, words);
    return {};
  }

  std::vector<CLI::App*> commands;
  collect(app, &commands);
  note_unknown_variables(commands);
  const std::vector<ConfigEntry> entries = read_config();
  const std::string file = config_path().string();
  check_config(app, entries, file);
  const std::string section = words_of(*command, '.');
  std::vector<CLI::Option*> options;
  collect_options(*command, &options);
  // A MODEL that has a default need not be given.
  std::vector<std::string> model;
  CLI::Option* positional = command->get_option_no_throw("MODEL");
  if (positional != nullptr && positional->get_required()) {
    const std::string value = environment("KVASIR_MODEL");
    const ConfigEntry* entry = find_entry(entries, section, *positional);
    if (!value.empty())
      model = {value};
    else if (entry != nullptr)
      model = entry->values;
    if (!model.empty()) positional->required(false);
  }
  parse_words(app, words);

  std::vector<Default> defaults;
  for (CLI::Option* option : options) {
    const std::string name = long_name(*option);
    if (name.empty() || is_action(name) || option->count() > 0) continue;
    if (std::optional<Default> one = default_of(*option, entries, section, file))
      defaults.push_back(std::move(*one));
  }
  std::vector<std::string> extra;
  std::set<const CLI::Option*> set;
  defaults = applicable(std::move(defaults));
  for (const Default& one : defaults) {
    set.insert(one.option);
    extra.insert(extra.end(), one.words.begin(), one.words.end());
  }
  const bool add_model = positional != nullptr && positional->count() == 0 && !model.empty();
  if (add_model) set.insert(positional);
  if (set.empty()) return set;
  // The model right behind the command's own words, the flags last: a flag that takes several values would
  // swallow words that follow it. What follows "--" is no flag.
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all(words);
    all.insert(std::find(all.begin(), all.end(), "--"), more.begin(), more.end());
    if (add_model) all.insert(all.begin() + static_cast<std::ptrdiff_t>(depth), model.begin(), model.end());
    return all;
  };
  try {
    parse_words(app, with(extra));
    return set;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw;
    // Whose fault it is: the first that cannot stand alone.
    for (const Default& one : defaults) try {
        parse_words(app, with(one.words));
      } catch (const CLI::ParseError& alone) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("a default, {}: {}", one.origin, printable(alone.what())));
      }
    throw Error(ErrorCode::invalid_input, fmt::format("a default from the environment or {}: {}",
                                                      printable(file), printable(error.what())));
  }
}

}  // namespace kvasir::cli
