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
  const models::Model& opened = model.engine().model();
  kv::DiskStore::Options options;
  options.dir = folder;
  options.identity.model_id = model.text().name;
  options.identity.config_fingerprint = opened.numerics_parts().config;
  options.identity.weights_digest = opened.numerics_parts().weights;
  options.identity.numerics_id = opened.numerics_key().hex();
  options.identity.scheme_key = model.engine().memory().kv_key;
  // Stored tokens are ids; the text side re-renders and compares them, so the tokenizer needs no hash of its
  // own.
  options.identity.tokenizer_hash = "";
  options.warn = [](const std::string& text) { std::fprintf(stderr, "kvasir: %s\n", text.c_str()); };
  return std::make_unique<kv::DiskStore>(std::move(options));
}

}  // namespace kvasir::cli
