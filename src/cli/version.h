#pragma once

namespace kvasir::cli {
inline constexpr char kVersion[] = "0.1.0";
}
