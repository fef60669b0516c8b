// What the environment says: variables, and the folders of the user that follow from them.
#pragma once

#include <filesystem>
#include <string>

namespace kvasir {

// The variable's value; empty when it is not set.
std::string environment(const std::string& name);

// $HOME, else what the password database says; "." where neither is known.
std::filesystem::path home_folder();
// "~" and "~/..." expanded.
std::filesystem::path expand_home(const std::string& path);

// A base directory of the XDG specification: what `variable` names, else `below_home` in the home folder.
//   user_folder("XDG_STATE_HOME", ".local/state")
std::filesystem::path user_folder(const char* variable, const char* below_home);

}  // namespace kvasir
