// `kvasir kv import` and `export` of mlx-lm's prompt cache files (kv/mlx_exchange.h).
#pragma once

#include <filesystem>
#include <string>

#include "cli/flags.h"
#include "kv/mlx_cache_file.h"

namespace kvasir::cli {

struct MlxImportFlags {
  LoadFlags load;  // of the model that goes on with it; model empty: not given
  std::string name;
  std::string tokens;
  std::string text;
  std::string messages;

  void add_to(CLI::App& command);
  bool any() const { return !name.empty() || !tokens.empty() || !text.empty() || !messages.empty(); }
};

// Whether the file begins as a .kvk file does. What cannot be opened is Error{not_found}.
bool is_kvk(const std::filesystem::path& file);

// Adds the cache to the store as a conversation. Nothing is written when anything does not fit.
void import_mlx(const std::filesystem::path& file, const std::filesystem::path& store,
                const MlxImportFlags& flags);

// Writes the entry for mlx-lm. Throws Error{unsupported} for a family whose caches are not known to be
// mlx-lm's.
void export_mlx(const std::filesystem::path& entry, const std::filesystem::path& file, kv::MlxForm form);

}  // namespace kvasir::cli
