// kvasir(1) in the man macros, https://man7.org/linux/man-pages/man7/groff_man.7.html.
#include "cli/describe.h"

namespace kvasir::cli {
namespace {

// Text as roff sees it: backslashes, dashes (which would become hyphens) and leading control characters
// escaped.
std::string roff(const std::string& text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    line_start = c == '\n';
  }
  return out;
}

std::string bold(const std::string& text) {
  return "\\fB" + roff(text) + "\\fR";
}

std::string option_entry(const OptionDescription& option) {
  std::string line = ".TP\n";
  for (size_t i = 0; i < option.names.size(); ++i) line += (i > 0 ? ", " : "") + bold(option.names[i]);
  if (!option.positional && !option.value.empty()) line += " \\fI" + roff(option.value) + "\\fR";
  return line + "\n" + roff(option.help) + (option.repeatable ? "; repeatable" : "") + ".\n";
}

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string footer(const std::string& text) {
  return text.empty() ? std::string() : ".PP\n.nf\n" + roff(text) + "\n.fi\n";
}

bool same_options(const OptionGroup& a, const OptionGroup& b) {
  if (a.title != b.title || a.options.size() != b.options.size()) return false;
  for (size_t i = 0; i < a.options.size(); ++i)
    if (a.options[i].names != b.options[i].names) return false;
  return true;
}

// Verbs share groups of flags (some without one or two of them): the longest of each title is told once.
void collect_groups(const CommandDescription& command, std::vector<OptionGroup>& shared) {
  for (size_t i = 1; i < command.groups.size(); ++i) {
    bool known = false;
    for (OptionGroup& group : shared) {
      if (group.title != command.groups[i].title) continue;
      known = true;
      if (!same_options(group, command.groups[i]) && group.options.size() < command.groups[i].options.size())
        group = command.groups[i];
    }
    if (!known) shared.push_back(command.groups[i]);
  }
  for (const CommandDescription& sub : command.commands) collect_groups(sub, shared);
}

void write_command(const CommandDescription& command, std::string& page) {
  if (command.commands.empty()) {
    page += ".SS \"" + roff(command.words());
    for (const OptionDescription& option : command.groups.front().options)
      if (option.positional)
        page += " " + roff(option.required ? option.names[0] : "[" + option.names[0] + "]");
    page += " [OPTIONS]\"\n" + roff(command.summary) + ".\n";
    for (const std::string& alias : command.aliases) page += "Also called " + bold(alias) + ".\n";
    for (const OptionDescription& option : command.groups.front().options)
      if (option.names.front() != "-h") page += option_entry(option);
    if (command.groups.size() > 1) {
      page += ".PP\nAlso the flags of";
      for (size_t i = 1; i < command.groups.size(); ++i)
        page += (i > 1 ? " and " : " ") + bold(upper(command.groups[i].title));
      page += ".\n";
    }
    page += footer(command.footer);
  }
  for (const CommandDescription& sub : command.commands) write_command(sub, page);
}

}  // namespace

std::string man_page(const CommandDescription& root, const std::string& version) {
  std::string page = ".TH KVASIR 1 \"\" \"kvasir " + roff(version) + "\" \"User Commands\"\n.SH NAME\n" +
                     "kvasir \\- run large language models on this machine\n.SH SYNOPSIS\n" + bold("kvasir") +
                     " \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n" + roff(root.summary) +
                     "\n.SH OPTIONS\n";
  for (const OptionDescription& option : root.groups.front().options) page += option_entry(option);
  page += ".SH COMMANDS\n";
  for (const CommandDescription& command : root.commands) write_command(command, page);
  std::vector<OptionGroup> shared;
  collect_groups(root, shared);
  for (const OptionGroup& group : shared) {
    page += ".SH \"" + upper(roff(group.title)) + "\"\n";
    for (const OptionDescription& option : group.options) page += option_entry(option);
  }
  page += ".SH NOTES\n" + footer(root.footer);
  return page;
}

}  // namespace kvasir::cli
