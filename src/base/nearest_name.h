// The known name that an unknown one was perhaps meant to be, for "did you mean".
#pragma once

#include <string>
#include <vector>

namespace kvasir {

// Empty: none is near.
std::string nearest_name(const std::string& unknown, const std::vector<std::string>& names);
// ": did you mean NAME?", or nothing.
std::string did_you_mean(const std::string& name);

}  // namespace kvasir
