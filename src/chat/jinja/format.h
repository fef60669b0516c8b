// Shared by the two kinds of formatting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::jinja {

// Filled up to `width` code points; align is one of < > ^.
std::string pad(const std::string& text, int64_t width, std::string_view fill, char align);
// Digits after the point as printf takes them; 6 if negative. What cannot be printed within the limits is
// refused.
int float_precision(int64_t given);
// ascii(): everything beyond ASCII escaped.
std::string ascii_repr(std::string_view repr);

}  // namespace kvasir::jinja
