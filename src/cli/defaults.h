// Where a flag's value comes from when the command line does not give it: the environment (KVASIR_<FLAG>),
// then the configuration file, then what is built in.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/config_file.h"

namespace kvasir::cli {

// Parses `given` (without the program's name), then gives the chosen command's flags that are not among them
// their values from environment and configuration file, and parses again: conversions, checks and messages
// are the same for all three. A default gives way to what it excludes: a flag among the words, or a default
// of a higher place. One whose flag needs another that is not set is left out. Returns the options that a
// default has set. Throws CLI::ParseError as CLI::App::parse does, and Error for the file.
std::set<const CLI::Option*> parse_with_defaults(CLI::App& app, const std::vector<std::string>& given);

// Refuses sections that are no command and keys that are no flag, naming the nearest. Throws
// Error{invalid_input}.
void check_config(CLI::App& app, const std::vector<ConfigEntry>& entries, const std::string& file);

// Flags that change numerics are not taken from the environment (design law 3): setting KVASIR_KV is refused,
// so that it is not believed to have had an effect.
bool changes_numerics(const std::string& flag);

// "--kv-page" -> "KVASIR_KV_PAGE".
std::string environment_name(const std::string& flag);

}  // namespace kvasir::cli
