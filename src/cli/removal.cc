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

namespace {

// Everything below a folder, by no link but the folder itself. Why it is not everything; empty if it is.
template <typename Visit>
std::string walk(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  fs::path last = folder;  // which the error is about
  fs::recursive_directory_iterator at(folder, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    last = at->path();
    visit(last, at->symlink_status(error));
    if (error) break;
  }
  return error ? fmt::format("{} cannot be read: {}", printable(last.string()), error.message()) : "";
}

bool is_within(const fs::path& path, const fs::path& folder) {
  return path == folder || path.string().starts_with(folder.string() + "/");
}

// Linux follows no more of them in one path (path_resolution(7)).
constexpr int kMostSteps = 40;

// Every place that `link` leads by, one link after the other; those that are not within `own` are added.
void add_steps(const fs::path& link, const fs::path& own, CacheLinks::Folder& out) {
  fs::path from = link;
  for (int step = 0; step < kMostSteps; ++step) {
    std::error_code error;
    const fs::path target = fs::read_symlink(from, error);
    const fs::path at = from.parent_path() / target;
    const bool named = !at.filename().empty() && at.filename() != "." && at.filename() != "..";
    fs::path to;
    if (!error) to = fs::weakly_canonical(named ? at.parent_path() : at, error);
    if (error) {
      out.unread = fmt::format("{} cannot be followed: {}", printable(link.string()), error.message());
      return;
    }
    if (named) to /= at.filename();
    if (!is_within(to, own)) out.leaving.emplace_back(link, to);
    if (!fs::is_symlink(fs::symlink_status(to, error))) return;
    from = to;
  }
}

}  // namespace

std::string why_unread(const fs::path& folder) {
  return walk(folder, [](const fs::path&, const fs::file_status&) {});
}

CacheLinks cache_links(const hub::HubCache& cache) {
  CacheLinks out;
  std::error_code error;
  fs::directory_iterator top(cache.root(), error);
  if (error == std::errc::no_such_file_or_directory) return out;
  const fs::path root = error ? fs::path() : fs::canonical(cache.root(), error);
  for (const fs::directory_iterator end; !error && top != end; top.increment(error)) {
    const fs::path name = top->path().filename();
    if (name == ".locks") continue;
    CacheLinks::Folder& folder = out.folders[name];
    std::error_code unread;
    if (fs::is_symlink(top->symlink_status(unread))) add_steps(top->path(), root / name, folder);
    const fs::file_status there = top->status(unread);
    if (there.type() == fs::file_type::not_found || (fs::exists(there) && !fs::is_directory(there))) continue;
    const std::string why = walk(top->path(), [&](const fs::path& path, const fs::file_status& status) {
      if (fs::is_symlink(status)) add_steps(path, root / name, folder);
    });
    if (!why.empty()) folder.unread = why;
  }
  if (error)
    throw_error(file_error(error.value()), "{}: cannot be read: {}", printable(cache.root().string()),
                error.message());
  return out;
}

std::string why_used_elsewhere(const hub::HubCache& cache, const std::string& repo, const CacheLinks& links) {
  const fs::path folder = cache.repo_folder(repo), name = folder.filename();
  std::error_code error;
  const fs::path home = fs::canonical(folder, error);
  if (error) return fmt::format("{} cannot be read: {}", printable(folder.string()), error.message());
  const fs::path place = fs::canonical(folder.parent_path(), error) / name;
  for (const auto& [other, found] : links.folders) {
    if (other == name) continue;
    for (const auto& [link, to] : found.leaving)
      if (is_within(to, home) || is_within(to, place))
        return fmt::format("{} leads into it", printable(link.string()));
    if (!found.unread.empty()) return fmt::format("{}, and may lead into it", found.unread);
    // This one is a link itself, to where the other is.
    if (home != place && fs::equivalent(home, folder.parent_path() / other, error))
      return fmt::format("it is the same folder as {}", printable(other.string()));
  }
  return "";
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
