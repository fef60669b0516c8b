// Ways to declare a flag such that parsing, --help, completion and the man page tell the same about it: the
// name of its value, its choices, its range. Every numeric flag goes through these: the parser's own
// conversions let overflows and octal numbers pass.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::cli {

// Names of values that mean something to completion; anything else is free text. A name with '|' in it lists
// the choices.
inline constexpr char kFileValue[] = "FILE";
inline constexpr char kFolderValue[] = "DIR";
inline constexpr char kModelValue[] = "MODEL";
inline constexpr char kModelHelp[] = "GGUF file, model folder, or short name";

// Flags and commands that the brief help names without a word of explanation.
inline constexpr char kMinorGroup[] = "More";
inline void minor(std::initializer_list<CLI::Option*> options) {
  for (CLI::Option* option : options) option->group(kMinorGroup);
}

// In CLI::Option::each, which names the flag. Throws CLI::ValidationError.
[[noreturn]] void refuse_value(const std::string& text, const std::string& expected);

// In CLI::Option::each of a folder: a variable that is not set gives "", which is not the default's.
void refuse_no_folder(const std::string& text);

// Throw CLI::ValidationError naming the flag, the text and what was expected.
int64_t parse_whole(const std::string& flag, const std::string& text, int64_t least, int64_t most);
uint64_t parse_unsigned(const std::string& flag, const std::string& text);
double parse_number(const std::string& flag, const std::string& text, double least, double most);

// A whole number from `least` to `most`.
template <typename T>
CLI::Option* add_whole(CLI::App& app, const std::string& names, T& target, const std::string& help,
                       int64_t least, int64_t most = std::numeric_limits<T>::max()) {
  const std::string flag = names.substr(0, names.find(','));
  return app
      .add_option(names, CLI::callback_t([&target, flag, least, most](const CLI::results_t& results) {
                    target = static_cast<T>(parse_whole(flag, results.back(), least, most));
                    return true;
                  }),
                  help)
      ->type_name("N");
}

// A finite number from `least` to `most`.
CLI::Option* add_number(CLI::App& app, const std::string& names, double& target, const std::string& help,
                        double least, double most = std::numeric_limits<float>::max());
// A whole number of 64 bits without a sign: seeds. Nothing: not given.
CLI::Option* add_unsigned(CLI::App& app, const std::string& names, std::optional<uint64_t>& target,
                          const std::string& value, const std::string& help);
// Text, as a flag or (a name without dashes) an argument.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target, const std::string& value,
                      const std::string& help);
// A file that is written, which standard output ('-') cannot be.
CLI::Option* add_output(CLI::App& app, const std::string& names, std::string& target,
                        const std::string& help);
// One of `choices`; another is refused with all of them listed.
CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& target,
                        const std::vector<std::string>& choices, const std::string& help);
// May be given several times, one value each.
CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                      const std::string& value, const std::string& help);
// The same, none of them empty.
CLI::Option* add_stop(CLI::App& app, std::vector<std::string>& target, const std::string& help);
CLI::Option* add_model(CLI::App& app, std::string& target);
CLI::Option* add_threads(CLI::App& app, int& target);
CLI::Option* add_memory(CLI::App& app, std::string& target);
CLI::Option* add_json(CLI::App& app, bool& target, const std::string& help = "Machine-readable output");

}  // namespace kvasir::cli
