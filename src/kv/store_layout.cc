#include "kv/store_layout.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <random>

#include "base/error.h"
#include "base/file_error.h"
#include "base/printable.h"

namespace kvasir::kv {

namespace fs = std::filesystem;

namespace {

std::string hash_name(std::string_view text) {
  return hex64(XXH64(text.data(), text.size(), 0));
}

std::string folder_name(const StoreIdentity& identity) {
  return identity.fingerprint() + "-" + hash_name(identity.scheme_key);
}

std::string ns_name(std::string_view ns) {
  return ns.empty() ? "base" : hash_name(ns);
}

fs::path fresh_path(const fs::path& folder, bool saved) {
  std::random_device random;
  uint64_t high = 0, low = 0;
  for (int i = 0; i < 2; ++i) {
    high = high << 32 | random();
    low = low << 32 | random();
  }
  return folder / fmt::format("{}{}{}.kvk", saved ? kSavedPrefix : "", hex64(high), hex64(low));
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The folders that a store makes: of a model and settings, and in it of a namespace.
bool is_entry_folder(std::string_view name) {
  return name.size() == 33 && is_hex(name.substr(0, 16), 16) && name[16] == '-' &&
         is_hex(name.substr(17), 16);
}

}  // namespace

bool is_saved(const fs::path& path) {
  return path.filename().native().starts_with(kSavedPrefix);
}

bool is_prefix_file(const fs::path& path) {
  return path.extension() == ".kvk" && is_hex(path.stem().native(), 32);
}

bool is_draft(const fs::path& path) {
  const fs::path file = path.filename();
  std::string_view name = file.native();
  if (name.starts_with(kSavedPrefix)) name.remove_prefix(kSavedPrefix.size());
  constexpr std::string_view kMiddle = ".kvk.", kEnd = ".tmp";
  if (name.size() <= 32 + kMiddle.size() + kEnd.size() || !is_hex(name.substr(0, 32), 32)) return false;
  name.remove_prefix(32);
  if (!name.starts_with(kMiddle) || !name.ends_with(kEnd)) return false;
  name = name.substr(kMiddle.size(), name.size() - kMiddle.size() - kEnd.size());
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_there(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 || errno != ENOENT;
}

void visit_files(const fs::path& dir, int depth, const std::function<void(const fs::path&)>& visit,
                 const std::function<void(const fs::path&, const std::error_code&)>& failed) {
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    const std::string name = path.filename().native();
    std::error_code ignored;
    const auto status = at->symlink_status(ignored);
    const bool moved = fs::is_symlink(status) &&
                       (is_entry_folder(name) ||
                        (is_entry_folder(dir.filename().native()) && (name == "base" || is_hex(name, 16)))) &&
                       fs::is_directory(path, ignored);
    if (fs::is_regular_file(status) || path.extension() == ".kvk")
      visit(path);
    else if ((fs::is_directory(status) || moved) && depth > 0)
      visit_files(path, depth - 1, visit, failed);
  }
  if (error && error != std::errc::no_such_file_or_directory) failed(dir, error);
}

std::string misplaced(const fs::path& path, const KvkHeader& header) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).parent_path();
  if (!is_entry_folder(folder.filename().native())) folder = folder.parent_path();
  if (!is_entry_folder(folder.filename().native())) return {};
  if (folder.filename() != folder_name(header.identity))
    return "it lies in the folder of another model or other settings: add it with `kvasir kv import`";
  if (is_saved(path) == !header.name.empty()) return {};
  return header.name.empty()
             ? fmt::format("name and header disagree: the file is called {}* and holds no conversation",
                           kSavedPrefix)
             : fmt::format(
                   "name and header disagree: it holds the conversation '{}' and is not called {}*; "
                   "add it with `kvasir kv import`",
                   printable(header.name), kSavedPrefix);
}

std::string differing_field(const StoreIdentity& file, const StoreIdentity& expected) {
  const auto field = [](std::string_view name, const std::string& a, const std::string& b) {
    return a == b ? std::string()
                  : fmt::format("{} mismatch (file {}, expected {})", name, printable(a), printable(b));
  };
  for (const std::string& text :
       {field("config_fingerprint", file.config_fingerprint, expected.config_fingerprint),
        field("weights_digest", file.weights_digest, expected.weights_digest),
        field("numerics_id", file.numerics_id, expected.numerics_id),
        field("scheme_key", file.scheme_key, expected.scheme_key),
        field("tokenizer_hash", file.tokenizer_hash, expected.tokenizer_hash)})
    if (!text.empty()) return text;
  return {};
}

fs::path model_folder(const fs::path& dir, const StoreIdentity& identity) {
  return dir / folder_name(identity);
}

fs::path entry_folder(const fs::path& dir, const StoreIdentity& identity) {
  return model_folder(dir, identity) / ns_name(identity.ns);
}

fs::path new_entry_path(const fs::path& dir, const StoreIdentity& identity, bool saved) {
  const fs::path folder = entry_folder(dir, identity);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error(file_error(error.value()), "{}: {}", folder.string(), error.message());
  return fresh_path(folder, saved);
}

}  // namespace kvasir::kv
