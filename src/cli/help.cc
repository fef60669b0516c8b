// --help: a screen of 80 columns and 24 lines. --help-all: as long as it takes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/describe.h"
#include "cli/options.h"

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

// "Title: name name", in at most two lines; what does not fit is counted.
std::string names_line(const std::string& title, const std::vector<std::string>& names) {
  constexpr size_t kLines = 2, kRoom = 12;  // " and 23 more"
  std::vector<std::string> lines = {title + ":"};
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t room = lines.size() == kLines && i + 1 < names.size() ? kRoom : 0;
    if (lines.back().size() + 1 + names[i].size() + room <= kWidth) {
      lines.back() += " " + names[i];
    } else if (lines.size() < kLines) {
      lines.push_back("  " + names[i]);
    } else {
      lines.back() += fmt::format(" and {} more", names.size() - i);
      break;
    }
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

// Where all names of a flag leave no room, its first long one and what is shorter.
std::string short_head(const OptionDescription& option) {
  std::string text = head(option);
  if (text.size() + 4 <= kColumn || option.positional) return text;
  OptionDescription shorter = option;
  const std::string name = brief(option);
  std::erase_if(shorter.names,
                [&](const std::string& other) { return other.starts_with("--") && other != name; });
  return head(shorter);
}

std::string entry(const OptionDescription& option, bool all) {
  return entry(all ? head(option) : short_head(option),
               option.help + (option.repeatable ? "; repeatable" : ""));
}

bool asks_for_help(const OptionDescription& option) {
  return std::find(option.names.begin(), option.names.end(), "--help") != option.names.end() ||
         option.names.front() == "--help-all";
}

// What is explained, then the names of the rest.
std::string brief_help(const CommandDescription& command) {
  std::string text, list;
  std::vector<std::string> more;
  for (const CommandDescription& sub : command.commands) {
    if (sub.minor)
      more.push_back(sub.path.back());
    else
      text += entry(sub.path.back(), sub.summary);
  }
  if (!more.empty())
    text += names_line("Also", more);
  else if (!command.commands.empty())
    text += "\n";
  more.clear();
  for (const OptionDescription& option : command.groups.front().options) {
    if (asks_for_help(option)) continue;
    if (option.minor)
      more.push_back(brief(option));
    else
      text += entry(option, false);
  }
  text += entry("-h, --help, --help-all", "This help, or every flag explained");
  if (!more.empty()) text += names_line(kMinorGroup, more);
  for (size_t i = 1; i < command.groups.size(); ++i) {
    std::vector<std::string> names;
    for (const OptionDescription& option : command.groups[i].options) names.push_back(brief(option));
    text += names_line(command.groups[i].title, names);
  }
  if (!command.footer.empty()) text += "\n" + command.footer.substr(0, command.footer.find("\n\n")) + "\n";
  return text;
}

std::string full_help(const CommandDescription& command) {
  std::string text;
  for (const CommandDescription& sub : command.commands) text += entry(sub.path.back(), sub.summary);
  if (!command.commands.empty()) text += "\n";
  for (const OptionGroup& group : command.groups) {
    if (!group.title.empty()) text += "\n" + group.title + "\n";
    for (const OptionDescription& option : group.options) text += entry(option, true);
  }
  if (!command.footer.empty()) text += "\n" + command.footer + "\n";
  return text;
}

}  // namespace

std::string help_text(const CommandDescription& command, bool all) {
  std::string text = command.summary + "\nUsage: " + command.words();
  for (const std::string& alias : command.aliases) text += " (or " + alias + ")";
  if (!command.commands.empty()) text += command.path.size() == 1 ? " COMMAND" : " SUBCOMMAND";
  bool has_options = command.groups.size() > 1;
  for (const OptionDescription& option : command.groups.front().options) {
    if (option.positional)
      text += option.required ? " " + option.names[0] : " [" + option.names[0] + "]";
    else
      has_options = true;
  }
  if (has_options) text += " [OPTIONS]";
  return text + "\n\n" + (all ? full_help(command) : brief_help(command));
}

}  // namespace kvasir::cli
