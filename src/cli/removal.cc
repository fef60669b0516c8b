#include "cli/removal.h"

#include <cstdio>

#include "base/error.h"
#include "base/file_error.h"

namespace kvasir::cli {

namespace fs = std::filesystem;

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (error || !fs::is_regular_file(status)) return 0;
  // A file with another name elsewhere frees nothing.
  if (fs::hard_link_count(path, error) > 1) return 0;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

std::map<fs::path, fs::path> links_below(const fs::path& folder) {
  std::map<fs::path, fs::path> out;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_symlink(ignored))
      out[at->path()] = (at->path().parent_path() / fs::read_symlink(at->path(), ignored)).lexically_normal();
    else if (at->is_regular_file(ignored))
      out[at->path()] = at->path();
  }
  return out;
}

uint64_t bytes_of(const std::set<fs::path>& files) {
  uint64_t bytes = 0;
  for (const fs::path& file : files) bytes += size_of(file);
  return bytes;
}

uint64_t freed_bytes(const Removal& removal) {
  std::set<fs::path> files(removal.files.begin(), removal.files.end());
  for (const fs::path& tree : removal.trees) {
    std::error_code error;
    for (fs::recursive_directory_iterator at(tree, error), end; !error && at != end; at.increment(error))
      files.insert(at->path());
  }
  return bytes_of(files);
}

std::string why_unclear(const hub::HubCache& cache, const std::string& repo) {
  const fs::path folder = cache.repo_folder(repo).lexically_normal(), blobs = folder / "blobs";
  const auto unread = [](const fs::path& path, const std::error_code& error) {
    return fmt::format("{} cannot be read: {}", printable(path.string()), error.message());
  };
  for (const char* name : {"blobs", "snapshots", "refs"}) {
    std::error_code error;
    const fs::path path = folder / name;
    const fs::file_status status = fs::symlink_status(path, error);
    if (status.type() == fs::file_type::not_found) continue;
    if (error) return unread(path, error);
    if (!fs::is_directory(status)) return fmt::format("{} is no folder of its own", printable(path.string()));
    fs::recursive_directory_iterator at(path, error);
    for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
      const fs::file_status found = at->symlink_status(error);
      if (error) break;
      if (fs::is_directory(found) && path != blobs) continue;
      if (fs::is_regular_file(found)) continue;
      // Newer Python tools keep one copy for all repositories, to which blobs are links.
      if (fs::is_symlink(found) && path == blobs) continue;
      if (fs::is_symlink(found) && path.filename() == "snapshots") {
        const fs::path target = fs::read_symlink(at->path(), error);
        if (error) break;
        const fs::path to = (at->path().parent_path() / target).lexically_normal();
        const fs::file_status there = fs::symlink_status(to, error);
        error.clear();  // what leads nowhere uses nothing
        if (to.parent_path() == blobs && !fs::is_directory(there)) continue;
      }
      return fmt::format("{} is not of the cache's making", printable(at->path().string()));
    }
    if (error) return unread(path, error);
  }
  return "";
}

std::map<std::string, fs::path> used_from_outside(const hub::HubCache& cache) {
  std::map<fs::path, std::string> owners;  // by their real blobs folder
  const std::vector<std::string> repos = cache.repos();
  std::error_code error;
  for (const std::string& repo : repos) {
    const fs::path blobs = cache.repo_folder(repo) / "blobs";
    if (!fs::is_symlink(fs::symlink_status(blobs, error)))
      owners.emplace(fs::weakly_canonical(blobs, error), repo);
  }
  std::map<std::string, fs::path> used;
  const auto look = [&](const std::string& repo, const fs::path& link, const fs::path& folder) {
    const auto owner = owners.find(folder);
    if (owner != owners.end() && owner->second != repo) used.emplace(owner->second, link);
  };
  for (const std::string& repo : repos) {
    const fs::path folder = cache.repo_folder(repo), blobs = folder / "blobs";
    look(repo, blobs, fs::weakly_canonical(blobs, error));
    std::error_code end_of_walk;
    fs::recursive_directory_iterator at(folder / "snapshots", end_of_walk);
    for (const fs::recursive_directory_iterator end; !end_of_walk && at != end; at.increment(end_of_walk))
      if (fs::is_symlink(at->symlink_status(error)))
        look(repo, at->path(), fs::weakly_canonical(at->path(), error).parent_path());
  }
  return used;
}

bool lock_blobs(const hub::HubCache& cache, const std::string& repo, std::vector<hub::FileLock>& locks) {
  std::error_code error;
  const fs::path folder = cache.lock_file(repo, "x").parent_path();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    hub::FileLock lock;
    if (!lock.try_acquire(at->path())) return false;
    locks.push_back(std::move(lock));
  }
  return true;
}

void carry_out(const Removal& removal) {
  std::error_code error;
  for (const fs::path& file : removal.files) {
    fs::remove(file, error);
    if (error)
      throw_error(file_error(error.value()), "{}: cannot be removed: {}", printable(file.string()),
                  error.message());
  }
  if (!removal.refs.empty())
    for (fs::recursive_directory_iterator at(removal.refs, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code ignored;
      if (!at->is_regular_file(ignored) || at->file_size(ignored) > 64) continue;
      std::string text(64, '\0');
      if (std::FILE* file = std::fopen(at->path().c_str(), "rb")) {
        text.resize(std::fread(text.data(), 1, text.size(), file));
        std::fclose(file);
      }
      if (removal.commits.contains(text.substr(0, 40))) fs::remove(at->path(), ignored);
    }
  for (const fs::path& folder : removal.folders)
    if (fs::is_empty(folder, error) && !error) fs::remove(folder, error);
  for (const fs::path& tree : removal.trees) {
    fs::remove_all(tree, error);
    if (error)
      throw_error(file_error(error.value()), "{}: cannot be removed: {}", printable(tree.string()),
                  error.message());
  }
}

}  // namespace kvasir::cli
