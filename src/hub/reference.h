// Names of models on a Hugging Face hub, as users write them.
//
//   org/name                      what the repository needs to run
//   org/name:Q4_K_M               one quantization of a repository of GGUF files
//   org/name@v1.0                 a revision: branch, tag, commit, refs/pr/3
//   org/name/path/to/file.gguf    one file (parts of a split GGUF come together)
//   hf.co/..., hf://..., https://huggingface.co/org/name/blob/main/file.gguf   the same, as links are copied
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir::hub {

struct ModelReference {
  std::string repo;      // "org/name", or "name" when written as hf.co/name
  std::string revision;  // empty: main
  std::string quant;     // empty: none named
  std::string file;      // path inside the repository; empty: none named
  bool is_link = false;  // written with the hub's name before it

  // org/name[:quant][@revision] or org/name/file[@revision], as a link where that would be read otherwise.
  std::string text() const;
  std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
};

// Nothing when `text` has not the form of a reference (a bare word, an absolute path, ./file, a file name).
// Throws Error{invalid_input} for one that has the form and breaks the hub's rules for names.
std::optional<ModelReference> parse_reference(std::string_view text);

// The hub's rules: one optional "/", parts of [A-Za-z0-9._-], at most 96 characters, no "--" and no "..",
// no part that begins or ends with "-" or ".", not ending in ".git".
bool is_repo_id(std::string_view repo);

// A relative path with "/" between its parts: no empty part, ".", "..", backslash, NUL or drive letter. Paths
// of files in a repository and revisions, both of which become names on this machine's disk.
bool is_safe_path(std::string_view path);

}  // namespace kvasir::hub
