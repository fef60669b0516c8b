#include "formats/file_names.h"

#include <algorithm>
#include <system_error>

namespace kvasir::formats {
namespace {

bool is_within(const std::filesystem::path& folder, const std::filesystem::path& path) {
  const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) return false;
  return !(name.size() >= 2 && name[1] == ':');
}

bool stays_inside(const std::filesystem::path& folder, const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path real_folder = std::filesystem::canonical(folder, error);
  if (error) return false;
  const std::filesystem::path real_path = std::filesystem::weakly_canonical(path, error);
  if (error) return false;
  if (is_within(real_folder, real_path)) return true;
  // Snapshots may hold folders of their own: look for the snapshots level above.
  for (std::filesystem::path at = real_folder; at.has_relative_path(); at = at.parent_path())
    if (at.parent_path().filename() == "snapshots") {
      const std::filesystem::path repository = at.parent_path().parent_path();
      // Newer caches share content between repositories: blobs/<digest> is then a link to
      // <hub>/blobs/<xx>/<hash>.
      return is_within(repository / "blobs", real_path) ||
             (repository.filename().string().starts_with("models--") &&
              is_within(repository.parent_path() / "blobs", real_path));
    }
  return false;
}

}  // namespace kvasir::formats
