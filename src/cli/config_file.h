// The configuration file: defaults for flags, in a small part of TOML.
//
//   threads = 4                  # for every command that has --threads
//   [chat]
//   model = "smollm2"            # the MODEL of `kvasir chat` when none is given
//   temperature = 0.6
//   stop = ["###", "User:"]      # a flag that may be repeated
//   [eval.logits]                # a command of a command
//   isa = "avx2"
//
// A key is a flag's name without its dashes. Strings are "..." (\" \\ \n \t) or '...' (as written), other
// values numbers, true and false; a list may go over several lines.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

struct ConfigEntry {
  std::string section;  // "", "chat", "eval.logits"
  std::string key;
  std::vector<std::string> values;  // one, or a list's
  bool is_list = false;
  int line = 0;
};

// Throws Error{invalid_input} with file and line.
std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& file);

// $KVASIR_CONFIG, else $XDG_CONFIG_HOME/kvasir/config.toml, else ~/.config/kvasir/config.toml.
std::filesystem::path config_path();
// Whether the path was named by the environment: then it has to exist.
bool config_path_is_given();

// What the file says; nothing when there is none. Throws Error{not_found} for a file that was named and is
// not there, Error{invalid_input} for one that cannot be read as above.
std::vector<ConfigEntry> read_config();

}  // namespace kvasir::cli
