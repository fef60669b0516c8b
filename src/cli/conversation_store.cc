#include "cli/conversation_store.h"

#include <cstdio>
#include <cstdlib>

#include "engine/store_options.h"

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
  kv::DiskStore::Options options = engine::store_options(engine.model(), engine.memory().kv_key, model_name);
  options.dir = folder;
  options.warn = [](const std::string& text) { std::fprintf(stderr, "kvasir: %s\n", text.c_str()); };
  return std::make_unique<kv::DiskStore>(std::move(options));
}

}  // namespace kvasir::cli
