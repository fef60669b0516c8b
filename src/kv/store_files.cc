// The verbs of `kvasir kv`, on a store's files.
#include <algorithm>

#include "base/error.h"
#include "base/file_error.h"
#include "base/printable.h"
#include "kv/store.h"
#include "kv/store_layout.h"

namespace kvasir::kv {

namespace fs = std::filesystem;

namespace {

std::vector<StoredFile> scan(const fs::path& dir, bool verify) {
  std::error_code error;
  if (!fs::is_directory(dir, error))
    throw_error(ErrorCode::not_found, "{}: {}", dir.string(),
                !error || error == std::errc::no_such_file_or_directory ? "no such folder" : error.message());
  std::vector<StoredFile> files;
  const auto visit = [&](const fs::path& path) {
    if (path.extension() != ".kvk") return;
    StoredFile file;
    file.path = path;
    std::error_code ignored;
    if (const auto size = fs::file_size(path, ignored); !ignored) file.bytes = size;
    try {
      if (fs::is_symlink(path, ignored))
        throw_error(ErrorCode::invalid_input, "{}: is a symbolic link, and entries are files", path.string());
      file.header = read_kvk_header(path);  // known even if something behind it is damaged
      if (verify) KvkFile::open(path, true);
      if (const std::string place = misplaced(path, file.header); !place.empty())
        throw_error(ErrorCode::invalid_input, "{}: {}", path.string(), place);
    } catch (const Error& unsound) {
      if (unsound.code() == ErrorCode::not_found && !is_there(path)) return;  // removed meanwhile
      file.error = unsound.what();
    }
    files.push_back(std::move(file));
  };
  visit_files(dir, 3, visit, [&](const fs::path& path, const std::error_code& unreadable) {
    files.push_back({.path = path,
                     .bytes = 0,
                     .error = fmt::format("{}: cannot be read: {}", path.string(), unreadable.message()),
                     .header = {}});
  });
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::vector<StoredFile> list_store(const fs::path& dir) {
  return scan(dir, false);
}
std::vector<StoredFile> verify_store(const fs::path& dir) {
  return scan(dir, true);
}

fs::path find_entry(const fs::path& dir, std::string_view which) {
  constexpr size_t kLeastDigits = 4;
  std::string_view digits = which;
  if (digits.starts_with(kSavedPrefix)) digits.remove_prefix(kSavedPrefix.size());
  std::vector<fs::path> exact, begun;
  for (const StoredFile& file : list_store(dir)) {
    const std::string name = file.path.filename().string();
    if (name == which || (!which.empty() && file.header.name == which))
      exact.push_back(file.path);
    else if (digits.size() >= kLeastDigits &&
             std::string_view(name).substr(is_saved(file.path) ? kSavedPrefix.size() : 0).starts_with(digits))
      begun.push_back(file.path);
  }
  const std::vector<fs::path>& found = exact.empty() ? begun : exact;
  if (found.empty())
    throw_error(ErrorCode::not_found, "{}: no entry '{}'; `kvasir kv ls` lists them", dir.string(),
                printable(which));
  if (found.size() > 1)
    throw_error(ErrorCode::invalid_input, "{}: '{}' fits {} entries; give more of the file's name",
                dir.string(), printable(which), found.size());
  return found.front();
}

void export_entry(const fs::path& entry, const fs::path& file) {
  convert_kvk(KvkFile::open(entry, true), file, KvkHeader::Layout::dense, 0);
}

fs::path import_entry(const fs::path& file, const fs::path& dir, int page_tokens) {
  const KvkFile source = KvkFile::open(file, true);
  const KvkHeader& header = source.header();
  // Those in whose place it comes. Refuses another conversation of its name.
  const auto duplicates_in = [&](const StoreIdentity& identity, std::vector<fs::path>& found) {
    const auto visit = [&](const fs::path& path) {
      if (path.extension() != ".kvk" || is_saved(path) == header.name.empty()) return;
      KvkHeader there;
      try {
        there = read_kvk_header(path);
      } catch (const Error&) {
        return;  // `kvasir kv verify` tells of it
      }
      if (there.name != header.name || there.identity.ns != header.identity.ns ||
          !differing_field(there.identity, identity).empty())
        return;
      if (there.tokens == header.tokens && there.origin.engine == header.origin.engine)
        found.push_back(path);
      else if (!header.name.empty())
        throw_error(ErrorCode::invalid_input,
                    "{}: another conversation '{}' is in {} already: remove it first, with `kvasir kv rm`",
                    file.string(), printable(header.name), dir.string());
    };
    const fs::path folder = entry_folder(dir, identity);
    visit_files(folder, 0, visit, [&](const fs::path&, const std::error_code& error) {
      throw_error(file_error(error.value()), "{}: cannot be read: {}", folder.string(), error.message());
    });
  };
  const auto duplicates = [&] {
    std::vector<fs::path> found;
    // A name is one of all that a model and its settings have, whoever computed it.
    StoreIdentity own = header.identity;
    own.numerics_id = own.numerics_id.substr(0, own.numerics_id.find('+'));
    for (const Origin& origin : origins())
      if (!origin || !header.name.empty()) duplicates_in(identity_of(own, origin), found);
    return found;
  };
  duplicates();  // nothing is written for one that is refused
  const fs::path path = new_entry_path(dir, header.identity, !header.name.empty());
  const StoreLock lock(dir, kDraftLock, LOCK_SH);
  // Decided when the draft is whole, under the lock of all who replace: two that import at once would each
  // miss the other.
  std::optional<StoreLock> replacing;
  std::vector<fs::path> replaced;
  convert_kvk(source, path, KvkHeader::Layout::pages, page_tokens, [&] {
    replacing.emplace(dir, kReplaceLock, LOCK_EX);
    replaced = duplicates();
  });
  for (const fs::path& duplicate : replaced) ::unlink(duplicate.c_str());
  return path;
}

}  // namespace kvasir::kv
