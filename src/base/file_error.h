// What it means that the system refuses an operation on a file, and whether it is going to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/error.h"

namespace kvasir {

// Of an errno: resource_exhausted for a disk that is full (or a quota, or a limit on file sizes), else
// not_found, which stands for everything that is not there or cannot be reached: exit status 1.
ErrorCode file_error(int error);

// Bytes that may be written where `path` is, or will be; nothing where that cannot be told.
std::optional<uint64_t> free_disk_bytes(const std::filesystem::path& path);

}  // namespace kvasir
