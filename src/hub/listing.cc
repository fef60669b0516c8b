#include "hub/listing.h"

#include <algorithm>

#include "base/error.h"
#include "formats/json.h"
#include "hub/headers.h"
#include "hub/reference.h"

namespace kvasir::hub {
namespace {

using Json = nlohmann::json;

[[noreturn]] void bad(const std::string& where, const std::string& what) {
  throw_error(ErrorCode::corrupt_file, "{}: this is no answer of a hub: {}", printable(where), what);
}

const Json& member(const Json& object, const char* key, const std::string& where) {
  const auto at = object.find(key);
  if (at == object.end()) bad(where, fmt::format("\"{}\" is missing", key));
  return *at;
}

std::string digest_of(const Json& value, size_t length, const std::string& where, const char* what) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() != length ||
      !is_digest(value.get_ref<const std::string&>()))
    bad(where, fmt::format("{}: expected {} hexadecimal digits, got {}", what, length,
                           printable(value.dump(-1, ' ', false, Json::error_handler_t::replace))));
  return value.get<std::string>();
}

uint64_t size_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value.get<uint64_t>() > kMaxFileBytes)
    bad(where, fmt::format("size: expected a number of bytes, got {}",
                           printable(value.dump(-1, ' ', false, Json::error_handler_t::replace))));
  return value.get<uint64_t>();
}

}  // namespace

std::string_view RemoteFile::name() const {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string_view(path) : std::string_view(path).substr(slash + 1);
}

const RemoteFile* Listing::find(std::string_view path) const {
  const auto at = std::lower_bound(files.begin(), files.end(), path,
                                   [](const RemoteFile& file, std::string_view p) { return file.path < p; });
  return at != files.end() && at->path == path ? &*at : nullptr;
}

std::string parse_commit(std::string_view json, const std::string& where) {
  const Json value = formats::parse_json(json, where);
  if (!value.is_object()) bad(where, "expected a JSON object");
  return digest_of(member(value, "sha", where), 40, where, "sha");
}

void parse_tree_page(std::string_view json, const std::string& where, std::vector<RemoteFile>* files) {
  const Json page = formats::parse_json(json, where);
  if (!page.is_array()) bad(where, "expected a JSON list of files");
  for (const Json& entry : page) {
    if (!entry.is_object()) bad(where, "expected a list of objects");
    const Json& type = member(entry, "type", where);
    if (type != "file") continue;
    const Json& path = member(entry, "path", where);
    if (!path.is_string()) bad(where, "path: expected a string");
    RemoteFile file;
    file.path = path.get<std::string>();
    if (!is_safe_path(file.path))
      throw_error(ErrorCode::corrupt_file, "{}: unsafe file name in the listing: '{}'", printable(where),
                  printable(file.path));
    file.size = size_of(member(entry, "size", where), where);
    const auto large = entry.find("lfs");
    if (large != entry.end() && large->is_object()) {
      file.digest = digest_of(member(*large, "oid", where), 64, where, "lfs.oid");
      if (large->contains("size")) file.size = size_of(large->at("size"), where);
    } else {
      file.digest = digest_of(member(entry, "oid", where), 40, where, "oid");
    }
    if (files->size() >= kMaxFiles)
      throw_error(ErrorCode::unsupported, "{}: more than {} files", printable(where), kMaxFiles);
    files->push_back(std::move(file));
  }
}

}  // namespace kvasir::hub
