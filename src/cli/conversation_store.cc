#include "cli/conversation_store.h"

#include <cstdio>
#include <cstdlib>

namespace kvasir::cli {

std::filesystem::path default_store_folder() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::filesystem::path(state) / "kvasir" / "kv";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".local" / "state" / "kvasir" / "kv";
}

std::unique_ptr<kv::DiskStore> open_store(const std::filesystem::path& folder, engine::TextModel& model) {
  return open_store(folder, model.engine(), model.text().name);
}

std::unique_ptr<kv::DiskStore> open_store(const std::filesystem::path& folder, engine::Engine& engine,
                                          const std::string& model_name) {
  const models::Model& opened = engine.model();
  kv::DiskStore::Options options;
  options.dir = folder;
  options.numerics = models::canonical_text(opened.numerics_parts());
  options.identity.model_id = model_name;
  models::NumericsParts configuration;  // its text has no bound, its digest has
  configuration.config = opened.numerics_parts().config;
  options.identity.config_fingerprint = models::NumericsKey(configuration).hex();
  options.identity.weights_digest = opened.numerics_parts().weights;
  options.identity.numerics_id = opened.numerics_key().hex();
  options.identity.scheme_key = engine.memory().kv_key;
  // Stored tokens are ids; the text side re-renders and compares them, so the tokenizer needs no hash of its
  // own.
  options.identity.tokenizer_hash = "";
  options.warn = [](const std::string& text) { std::fprintf(stderr, "kvasir: %s\n", text.c_str()); };
  return std::make_unique<kv::DiskStore>(std::move(options));
}

}  // namespace kvasir::cli
