#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file_error.h"
#include "hub/headers.h"
#include "hub/reference.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr std::string_view kIncomplete = ".incomplete";

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// "<digest>.incomplete-123": 123.
std::optional<uint64_t> piece_begin(std::string_view name) {
  const size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || !name.substr(0, dash).ends_with(kIncomplete)) return std::nullopt;
  const std::string_view digits = name.substr(dash + 1);
  uint64_t begin = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), begin);
  const bool number = error == std::errc() && end == digits.data() + digits.size();
  return number ? std::optional(begin) : std::nullopt;
}

std::string folder_name(std::string_view repo) {
  std::string name(kPrefix);
  for (const char c : repo) name += c == '/' ? std::string("--") : std::string(1, c);
  return name;
}

}  // namespace

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    release();
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

bool FileLock::try_acquire(const fs::path& path) {
  release();
  for (;;) {
    // Group-writable as huggingface_hub makes it, so that users who share a cache wait for each other.
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (fd < 0)
      throw_error(file_error(errno), "{}: cannot be opened: {}", printable(path.string()),
                  std::strerror(errno));
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      if (error == EWOULDBLOCK || error == EINTR) return false;
      throw_error(ErrorCode::unsupported,
                  "{}: cannot be locked: {} (set HF_HUB_CACHE to a folder on another disk)",
                  printable(path.string()), std::strerror(error));
    }
    (void)::fchmod(fd, 0664);  // whatever the umask says; another user's file stays as it is
    // Whoever held it may have removed the file: then this lock guards nothing.
    struct stat ours {};
    struct stat named {};
    if (::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev) {
      fd_ = fd;
      return true;
    }
    ::close(fd);
  }
}

void FileLock::release() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

fs::path HubCache::repo_folder(std::string_view repo) const {
  return root_ / folder_name(repo);
}

fs::path HubCache::blob(std::string_view repo, std::string_view digest) const {
  return repo_folder(repo) / "blobs" / digest;
}

fs::path HubCache::incomplete(std::string_view repo, std::string_view digest) const {
  return repo_folder(repo) / "blobs" / (std::string(digest) + std::string(kIncomplete));
}

uint64_t HubCache::incomplete_bytes(std::string_view repo, std::string_view digest) const {
  const fs::path prefix = incomplete(repo, digest);
  const uint64_t end = size_of(prefix);
  return end + bytes_beyond(end, pieces_beside(prefix), size_of);
}

void HubCache::remove_incomplete(std::string_view repo, std::string_view digest) const {
  const fs::path prefix = incomplete(repo, digest);
  std::error_code ignored;
  for (const auto& [begin, path] : pieces_beside(prefix)) fs::remove(path, ignored);
  fs::remove(prefix, ignored);
}

std::vector<fs::path> HubCache::incomplete_files(std::string_view repo) const {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(repo_folder(repo) / "blobs", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(kIncomplete) || piece_begin(name)) out.push_back(at->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

fs::path HubCache::lock_file(std::string_view repo, std::string_view digest) const {
  return root_ / ".locks" / folder_name(repo) / (std::string(digest) + ".lock");
}

fs::path HubCache::snapshot(std::string_view repo, std::string_view commit) const {
  return repo_folder(repo) / "snapshots" / commit;
}

std::optional<std::string> HubCache::repo_of_folder(std::string_view folder) {
  if (!folder.starts_with(kPrefix)) return std::nullopt;
  std::string repo(folder.substr(kPrefix.size()));
  if (const size_t dashes = repo.find("--"); dashes != std::string::npos) repo.replace(dashes, 2, "/");
  if (!is_repo_id(repo)) return std::nullopt;
  return repo;
}

std::optional<std::string> HubCache::read_ref(std::string_view repo, std::string_view revision) const {
  if (!is_safe_path(revision)) return std::nullopt;
  std::ifstream file(repo_folder(repo) / "refs" / revision, std::ios::binary);
  char text[64] = {};
  file.read(text, sizeof text);
  std::string_view commit(text, static_cast<size_t>(file.gcount()));
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.remove_suffix(1);
  if (commit.size() != 40 || !is_digest(commit)) return std::nullopt;
  return std::string(commit);
}

void HubCache::write_ref(std::string_view repo, std::string_view revision, std::string_view commit) const {
  if (revision == commit || read_ref(repo, revision) == commit) return;
  KVASIR_CHECK(is_safe_path(revision));
  const fs::path path = repo_folder(repo) / "refs" / revision;
  make_folder(path.parent_path());
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(commit.data(), commit.size())));
  file.commit();
}

void HubCache::link(std::string_view repo, std::string_view commit, std::string_view path,
                    std::string_view digest) const {
  KVASIR_CHECK(is_safe_path(path) && is_digest(commit) && is_digest(digest));
  const fs::path at = snapshot(repo, commit) / path;
  std::string target = "../../";
  for (const char c : path)
    if (c == '/') target += "../";
  target += "blobs/" + std::string(digest);
  std::error_code error;
  if (fs::read_symlink(at, error) == fs::path(target) && !error) return;
  make_folder(at.parent_path());
  const fs::path made = at.string() + fmt::format(".{}.tmp", ::getpid());
  fs::remove(made, error);
  fs::create_symlink(target, made, error);
  if (!error) fs::rename(made, at, error);
  if (error)
    throw_error(file_error(error.value()), "{}: the link cannot be made: {}", printable(at.string()),
                error.message());
}

std::optional<fs::path> HubCache::find_snapshot(std::string_view repo, std::string_view revision) const {
  std::error_code ignored;
  auto existing = [&](std::string_view commit) -> std::optional<fs::path> {
    const fs::path folder = snapshot(repo, commit);
    return fs::is_directory(folder, ignored) ? std::optional(folder) : std::nullopt;
  };
  if (const auto commit = read_ref(repo, revision.empty() ? "main" : revision)) return existing(*commit);
  if (revision.size() == 40 && is_digest(revision)) return existing(revision);
  if (!revision.empty()) return std::nullopt;
  const std::vector<std::string> all = snapshots(repo);
  return all.empty() ? std::nullopt : existing(all.front());
}

void HubCache::tag() const {
  const fs::path path = root_ / "CACHEDIR.TAG";
  std::error_code ignored;
  if (fs::exists(path, ignored)) return;
  constexpr std::string_view kText =
      "Signature: 8a477f597d28d172789f06886806bc55\n"
      "# This file marks a cache of downloads that backup tools may leave out "
      "(https://bford.info/cachedir/).\n";
  make_folder(root_);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(kText.data(), kText.size())));
  file.commit();
}

std::vector<std::string> HubCache::snapshots(std::string_view repo) const {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator at(repo_folder(repo) / "snapshots", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (name.size() == 40 && is_digest(name) && at->is_directory(ignored))
      found.emplace_back(at->last_write_time(ignored), name);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::string> out;
  for (auto& [time, name] : found) out.push_back(std::move(name));
  return out;
}

std::vector<std::string> HubCache::repos() const {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(root_, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored))
      if (auto repo = repo_of_folder(at->path().filename().string())) out.push_back(std::move(*repo));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::map<uint64_t, fs::path> pieces_beside(const fs::path& partial) {
  std::map<uint64_t, fs::path> out;
  const std::string own = partial.filename().string() + "-";
  std::error_code error;
  for (fs::directory_iterator at(partial.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (const auto begin = piece_begin(name); begin && name.starts_with(own)) out[*begin] = at->path();
  }
  return out;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error && !fs::is_directory(folder))
    throw_error(file_error(error.value()), "{}: the folder cannot be made: {}", printable(folder.string()),
                error.message());
}

}  // namespace kvasir::hub
