#include "cli/options.h"

#include <algorithm>

#include "base/error.h"

namespace kvasir::cli {
namespace {

template <typename T>
bool parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

[[noreturn]] void refuse(const std::string& flag, const std::string& text, const std::string& expected) {
  throw CLI::ValidationError(flag, fmt::format("'{}' is not {}", printable(text), expected));
}

}  // namespace

void refuse_value(const std::string& text, const std::string& expected) {
  throw CLI::ValidationError(fmt::format("'{}' is not {}", printable(text), expected));
}

void refuse_no_folder(const std::string& text) {
  if (text.empty()) refuse_value(text, "a folder");
}

int64_t parse_whole(const std::string& flag, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  if (parse(text, value) && value >= least && value <= most) return value;
  refuse(flag, text,
         most == std::numeric_limits<int64_t>::max()
             ? fmt::format("a whole number >= {}", least)
             : fmt::format("a whole number from {} to {}", least, most));
}

uint64_t parse_unsigned(const std::string& flag, const std::string& text) {
  uint64_t value = 0;
  if (parse(text, value)) return value;
  refuse(flag, text, "a whole number from 0 to 18446744073709551615");
}

double parse_number(const std::string& flag, const std::string& text, double least, double most) {
  double value = 0;
  if (parse(text, value) && std::isfinite(value) && value >= least && value <= most) return value;
  const bool below = most == std::numeric_limits<float>::max();
  if (least == -most) refuse(flag, text, "a finite number");
  refuse(flag, text,
         below ? fmt::format("a finite number >= {}", least)
               : fmt::format("a number from {} to {}", least, most));
}

CLI::Option* add_number(CLI::App& app, const std::string& names, double& target, const std::string& help,
                        double least, double most) {
  const std::string flag = names.substr(0, names.find(','));
  return app
      .add_option(names, CLI::callback_t([&target, flag, least, most](const CLI::results_t& results) {
                    target = parse_number(flag, results.back(), least, most);
                    return true;
                  }),
                  help)
      ->type_name("X");
}

CLI::Option* add_unsigned(CLI::App& app, const std::string& names, std::optional<uint64_t>& target,
                          const std::string& value, const std::string& help) {
  const std::string flag = names.substr(0, names.find(','));
  return app
      .add_option(names, CLI::callback_t([&target, flag](const CLI::results_t& results) {
                    target = parse_unsigned(flag, results.back());
                    return true;
                  }),
                  help)
      ->type_name(value);
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target, const std::string& value,
                      const std::string& help) {
  return app.add_option(names, target, help)->type_name(value);
}

CLI::Option* add_output(CLI::App& app, const std::string& names, std::string& target,
                        const std::string& help) {
  return add_text(app, names, target, kFileValue, help)->each([](const std::string& path) {
    if (path == "-") refuse_value(path, "a file: /dev/stdout is standard output, ./- a file of that name");
  });
}

CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& target,
                        const std::vector<std::string>& choices, const std::string& help) {
  const std::string flag = names.substr(0, names.find(','));
  std::string all;
  for (const std::string& choice : choices) all += (all.empty() ? "" : "|") + choice;
  return app
      .add_option(names, CLI::callback_t([&target, flag, choices, all](const CLI::results_t& results) {
                    if (std::find(choices.begin(), choices.end(), results.back()) == choices.end())
                      refuse(flag, results.back(), "one of " + all);
                    target = results.back();
                    return true;
                  }),
                  help)
      ->type_name(all);
}

CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                      const std::string& value, const std::string& help) {
  return app.add_option(names, target, help)->type_name(value)->allow_extra_args(false);
}

CLI::Option* add_stop(CLI::App& app, std::vector<std::string>& target, const std::string& help) {
  return add_list(app, "--stop", target, "TEXT", help)->each([](const std::string& text) {
    if (text.empty()) refuse_value(text, "a text: nothing ends an answer when it is left out");
  });
}

CLI::Option* add_model(CLI::App& app, std::string& target) {
  return app.add_option("MODEL", target, kModelHelp)->required()->type_name(kModelValue);
}

CLI::Option* add_threads(CLI::App& app, int& target) {
  return add_whole(app, "--threads,-t", target, "Threads (default: one per core)", 1, 4096);
}

CLI::Option* add_memory(CLI::App& app, std::string& target) {
  return add_text(app, "--memory", target, "SIZE",
                  "Memory that may be used, for example 8G (default: what is available)");
}

CLI::Option* add_json(CLI::App& app, bool& target, const std::string& help) {
  return app.add_flag("--json", target, help);
}

}  // namespace kvasir::cli
