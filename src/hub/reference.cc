#include "hub/reference.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace kvasir::hub {
namespace {

constexpr size_t kRepoLimit = 96;
constexpr size_t kPathLimit = 4096;

bool is_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

bool is_name_part(std::string_view part) {
  if (part.empty() || !std::all_of(part.begin(), part.end(), is_name_character)) return false;
  const char first = part.front(), last = part.back();
  return first != '-' && first != '.' && last != '-' && last != '.';
}

// Strips what a link to the hub begins with; true when there was something.
bool strip_hub_prefix(std::string_view* text) {
  constexpr std::array<std::string_view, 9> kPrefixes = {
      "https://huggingface.co/",
      "http://huggingface.co/",
      "https://www.huggingface.co/",
      "https://hf.co/",
      "http://hf.co/",
      "huggingface.co/",
      "hf.co/",
      "hf://models/",
      "hf://",
  };
  for (const std::string_view prefix : kPrefixes)
    if (text->starts_with(prefix)) {
      text->remove_prefix(prefix.size());
      return true;
    }
  return false;
}

std::string_view take_part(std::string_view* text) {
  const size_t slash = text->find('/');
  const std::string_view part = text->substr(0, slash);
  text->remove_prefix(slash == std::string_view::npos ? text->size() : slash + 1);
  return part;
}

[[noreturn]] void bad_reference(std::string_view text, std::string_view reason) {
  throw_error(ErrorCode::invalid_input,
              "'{}': {} (expected org/name, org/name:QUANT, org/name@REVISION or org/name/FILE)",
              printable(text), reason);
}

// "blob/main/dir/file" as it stands in a link, after org/name/.
bool take_link_form(std::string_view rest, ModelReference* out) {
  std::string_view tail = rest;
  const std::string_view kind = take_part(&tail);
  if (kind != "blob" && kind != "resolve" && kind != "tree") return false;
  std::string_view revision = take_part(&tail);
  std::string full(revision);
  // refs/pr/N is the one kind of revision with slashes that links carry unescaped.
  if (revision == "refs")
    for (int i = 0; i < 2 && !tail.empty(); ++i) full += "/" + std::string(take_part(&tail));
  if (full.empty()) return false;
  out->revision = full;
  if (const size_t query = tail.find_first_of("?#"); query != std::string_view::npos)
    tail = tail.substr(0, query);
  out->file = std::string(tail);
  return true;
}

}  // namespace

std::string ModelReference::text() const {
  // Only a link can name a file with '@' or ':' in it, which elsewhere begin a revision and a quantization.
  if (file.find_first_of("@:") != std::string::npos)
    return fmt::format("hf.co/{}/blob/{}/{}", repo, revision_or_main(), file);
  std::string out = repo;
  // An owner called as the hub is: without the hub's name in front it would be taken for it.
  if (std::string_view rest = out; strip_hub_prefix(&rest)) out = "hf.co/" + out;
  if (!file.empty()) out += "/" + file;
  if (file.empty() && !quant.empty()) out += ":" + quant;
  if (!revision.empty() && revision != "main") out += "@" + revision;
  return out;
}

bool is_repo_id(std::string_view repo) {
  if (repo.empty() || repo.size() > kRepoLimit || repo.ends_with(".git")) return false;
  if (repo.find("--") != std::string_view::npos || repo.find("..") != std::string_view::npos) return false;
  std::string_view rest = repo;
  const std::string_view first = take_part(&rest);
  if (!is_name_part(first)) return false;
  if (first.size() == repo.size()) return true;
  return is_name_part(rest);
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kPathLimit || path.front() == '/' || path.back() == '/') return false;
  if (path.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos) return false;
  if (path.size() >= 2 && path[1] == ':') return false;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::string_view part = take_part(&rest);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
  }
  return true;
}

std::optional<ModelReference> parse_reference(std::string_view text) {
  std::string_view rest = text;
  ModelReference out;
  out.is_link = strip_hub_prefix(&rest);
  while (out.is_link && rest.ends_with('/')) rest.remove_suffix(1);
  if (!out.is_link) {
    // Paths and bare words are no references.
    if (rest.empty() || rest.front() == '/' || rest.front() == '.' || rest.front() == '~')
      return std::nullopt;
    const size_t slash = rest.find('/');
    if (slash == std::string_view::npos || rest.find("://") != std::string_view::npos) return std::nullopt;
  }
  if (rest.empty()) bad_reference(text, "names no repository");

  // A link to a file says its revision in the path.
  std::string_view tail = rest;
  const std::string_view owner = take_part(&tail);
  const std::string_view name = take_part(&tail);
  if (out.is_link && !name.empty() && take_link_form(tail, &out)) {
    out.repo = fmt::format("{}/{}", owner, name);
  } else {
    if (const size_t at = rest.find('@'); at != std::string_view::npos) {
      out.revision = std::string(rest.substr(at + 1));
      if (out.revision.empty()) bad_reference(text, "nothing follows @");
      rest = rest.substr(0, at);
    }
    if (const size_t colon = rest.find(':'); colon != std::string_view::npos) {
      out.quant = std::string(rest.substr(colon + 1));
      if (out.quant.empty()) bad_reference(text, "nothing follows :");
      rest = rest.substr(0, colon);
    }
    tail = rest;
    out.repo = std::string(take_part(&tail));
    if (!tail.empty()) out.repo += "/" + std::string(take_part(&tail));
    out.file = std::string(tail);
  }
  if (!out.is_link && out.repo.find('/') == std::string::npos)
    bad_reference(text, "no name follows the owner");
  if (!is_repo_id(out.repo))
    bad_reference(text, fmt::format("'{}' cannot be a repository's name", printable(out.repo)));
  if (!out.file.empty() && !is_safe_path(out.file)) bad_reference(text, "the file's path is not safe");
  if (!out.revision.empty() && !is_safe_path(out.revision)) bad_reference(text, "the revision is not valid");
  // A quantization is matched with files' names, folders included: what can be no path can be none of them.
  if (!out.quant.empty() && !is_safe_path(out.quant)) bad_reference(text, "the quantization is not valid");
  if (!out.file.empty() && !out.quant.empty()) bad_reference(text, "a file and a quantization at once");
  return out;
}

}  // namespace kvasir::hub
