#include "cli/describe.h"

#include "cli/options.h"

namespace kvasir::cli {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

OptionDescription describe_option(const CLI::Option& option) {
  OptionDescription out;
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  out.positional = out.names.empty();
  if (out.positional) out.names.push_back(option.get_name(true));
  if (option.get_items_expected_max() > 0) out.value = option.get_type_name();
  if (out.value.find('|') != std::string::npos) out.choices = split(out.value, '|');
  out.help = option.get_description();
  out.required = option.get_required();
  out.repeatable = option.get_expected_max() > 1;
  out.minor = option.get_group() == kMinorGroup;
  return out;
}

// What comes first is what is read: positionals, then flags, then the two that every command has.
OptionGroup describe_group(const CLI::App& app, const std::string& title) {
  OptionGroup group{title, {}};
  std::vector<OptionDescription> last;
  for (const bool positional : {true, false})
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group().empty() || option->get_positional() != positional) continue;
      const bool help = option == app.get_help_ptr() || option == app.get_help_all_ptr();
      (help ? last : group.options).push_back(describe_option(*option));
    }
  // A group of flags inherits both, but they are its command's.
  if (!app.get_name().empty()) group.options.insert(group.options.end(), last.begin(), last.end());
  return group;
}

CommandDescription describe_under(const CLI::App& app, std::vector<std::string> path) {
  CommandDescription out;
  path.push_back(app.get_name());
  out.path = std::move(path);
  out.aliases = app.get_aliases();
  out.summary = app.get_description();
  out.footer = app.get_footer();
  out.minor = app.get_group() == kMinorGroup;
  out.groups.push_back(describe_group(app, ""));
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name().empty())
      out.groups.push_back(describe_group(*sub, sub->get_group()));
    else
      out.commands.push_back(describe_under(*sub, out.path));
  }
  return out;
}

}  // namespace

std::string CommandDescription::words() const {
  std::string text;
  for (const std::string& word : path) text += (text.empty() ? "" : " ") + word;
  return text;
}

CommandDescription describe(const CLI::App& app) {
  std::vector<std::string> parents;
  for (const CLI::App* at = app.get_parent(); at != nullptr; at = at->get_parent())
    parents.insert(parents.begin(), at->get_name());
  return describe_under(app, std::move(parents));
}

std::string wrap(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (const std::string& word : split(text, ' ')) {
    if (!out.empty()) {
      if (column + 1 + word.size() > width) {
        out += "\n" + std::string(indent, ' ');
        column = indent;
      } else {
        out += ' ';
        ++column;
      }
    }
    out += word;
    column += word.size();
  }
  return out;
}

}  // namespace kvasir::cli
