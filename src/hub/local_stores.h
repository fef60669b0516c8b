// Models that are on this machine already: in kvasir's own folder, the Hugging Face cache, LM Studio's
// folders and Ollama's store. Only names, links and sizes are read here, no model file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hub/cache.h"
#include "hub/reference.h"

namespace kvasir::hub {

enum class Store : uint8_t { kvasir, huggingface, lm_studio, ollama };
std::string_view name(Store store);

struct LocalModel {
  Store store = Store::kvasir;
  std::string name;            // as MODEL takes it: "org/name:Q4_K_M", "llama3.2:1b", "file"
  std::string repo;            // "org/name" (Hugging Face, LM Studio), else empty
  std::string quant;           // of a GGUF file, where its name (or Ollama's tag) says it
  std::string commit;          // Hugging Face: of the snapshot
  std::filesystem::path path;  // what is opened: a GGUF file (part 1 of a split one) or a folder
  std::vector<std::filesystem::path> files;  // that make it up; in a Hugging Face snapshot: the links
  uint64_t bytes = 0;                        // of those files
  std::string problem;                       // why it cannot run, as far as names tell; empty: nothing seen
  bool problem_by_name = false;  // a name promises parts that are not here: the file's keys decide
  // Hugging Face: of the one snapshot of the repository that stands for it: that of main, or where it holds
  // no model the newest that does.
  bool canonical = true;
  std::filesystem::path projector;  // Ollama: the blob that turns images into tokens
  bool incomplete = false;          // no model, or not yet: what a download left (scan_huggingface)
  ErrorCode problem_code = ErrorCode::unsupported;
};

// The models of a cache, and with each repository what is there of downloads that have not ended: as
// "org/name" where it holds no model, else as "org/name:incomplete".
std::vector<LocalModel> scan_huggingface(const HubCache& cache);
// One repository of the cache, one snapshot of it (empty: all of them).
std::vector<LocalModel> scan_repository(const HubCache& cache, const std::string& repo,
                                        const std::string& commit);
// Publisher/model folders.
std::vector<LocalModel> scan_lm_studio(const std::filesystem::path& folder);
// manifests/ and blobs/.
std::vector<LocalModel> scan_ollama(const std::filesystem::path& folder);
// GGUF files and model folders directly in `folder`.
std::vector<LocalModel> scan_folder(const std::filesystem::path& folder);

// $OLLAMA_MODELS, else ~/.ollama/models and the service's /usr/share/ollama/.ollama/models; those that exist.
std::vector<std::filesystem::path> ollama_folders();
// ~/.lmstudio/models and ~/.cache/lm-studio/models; those that exist.
std::vector<std::filesystem::path> lm_studio_folders();

// The one of `models` (of one repository) that a reference names: its quantization or file where it has one,
// else the only one there is. Null when there is none. Throws Error{invalid_input} with the list when several
// remain.
const LocalModel* choose(std::span<const LocalModel> models, const ModelReference& reference);

// Limits of what is read of a store.
inline constexpr size_t kManifestLimit = size_t{1} << 20;
inline constexpr int kStoreDepth = 8;

// The blobs that an Ollama manifest names.
// Throws Error{corrupt_file, unsupported} naming `where`.
struct OllamaBlobs {
  std::string model;      // of the model: "sha256-<hex>", the file's name in blobs/
  std::string projector;  // of what turns images into tokens; empty: none, or in the model itself
};
OllamaBlobs parse_ollama_manifest(std::string_view json, const std::string& where);

}  // namespace kvasir::hub
