// --help: a screen of 80 columns.
#include <fmt/format.h>

#include "cli/describe.h"

namespace kvasir::cli {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kColumn = 26;  // where explanations begin

std::string head(const OptionDescription& option) {
  std::string text;
  for (const std::string& name : option.names) text += (text.empty() ? "" : ", ") + name;
  if (!option.positional && !option.value.empty()) text += " " + option.value;
  return text;
}

// An entry of two columns; a first one that is too long gets a line of its own.
std::string entry(const std::string& left, const std::string& right) {
  std::string line = "  " + left;
  if (line.size() + 2 > kColumn)
    line += "\n" + std::string(kColumn, ' ');
  else
    line.resize(kColumn, ' ');
  return line + wrap(right, kColumn, kWidth) + "\n";
}

// --max-tokens N, without the other names.
std::string brief(const OptionDescription& option) {
  std::string name = option.names.front();
  for (const std::string& other : option.names)
    if (other.starts_with("--")) {
      name = other;
      break;
    }
  return name;
}

}  // namespace

std::string help_text(const CommandDescription& command, bool all) {
  std::string positionals, list;
  bool has_options = false;
  for (const OptionDescription& option : command.groups.front().options) {
    if (option.positional)
      positionals += option.required ? " " + option.names[0] : " [" + option.names[0] + "]";
    has_options = has_options || !option.positional;
    list += entry(head(option), option.help + (option.repeatable ? "; repeatable" : ""));
  }
  std::string text = command.summary + "\nUsage: " + command.words();
  for (const std::string& alias : command.aliases) text += " (or " + alias + ")";
  if (!command.commands.empty()) text += command.path.size() == 1 ? " COMMAND" : " SUBCOMMAND";
  text += positionals;
  if (has_options || command.groups.size() > 1) text += " [OPTIONS]";
  text += "\n\n";
  for (const CommandDescription& sub : command.commands) text += entry(sub.path.back(), sub.summary);
  if (!command.commands.empty()) text += "\n";
  text += list;
  for (size_t i = 1; i < command.groups.size(); ++i) {
    const OptionGroup& group = command.groups[i];
    if (all) {
      text += "\n" + group.title + "\n";
      for (const OptionDescription& option : group.options)
        text += entry(head(option), option.help + (option.repeatable ? "; repeatable" : ""));
    } else {
      std::string names = group.title + ":";
      for (const OptionDescription& option : group.options) names += " " + brief(option);
      text += wrap(names, 2, kWidth) + "\n";
    }
  }
  if (command.groups.size() > 1 && !all)
    text += fmt::format("({} --help-all explains these.)\n", command.words());
  if (!command.footer.empty()) text += "\n" + command.footer + "\n";
  return text;
}

}  // namespace kvasir::cli
