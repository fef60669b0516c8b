#include "base/file_error.h"

#include <cerrno>

namespace kvasir {

ErrorCode file_error(int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? ErrorCode::resource_exhausted : ErrorCode::not_found;
}

std::optional<uint64_t> free_disk_bytes(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  fs::path at = path;
  std::error_code error;
  while (!fs::exists(at, error) && at.has_parent_path() && at != at.parent_path()) at = at.parent_path();
  if (!fs::exists(at, error)) at = ".";
  const fs::space_info space = fs::space(at, error);
  return error ? std::nullopt : std::optional<uint64_t>(space.available);
}

}  // namespace kvasir
