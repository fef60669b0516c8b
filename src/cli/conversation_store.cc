#include "cli/conversation_store.h"

#include <cstdio>

#include "base/environment.h"
#include "base/printable.h"
#include "engine/store_options.h"

namespace kvasir::cli {

std::filesystem::path state_folder() {
  return user_folder("XDG_STATE_HOME", ".local/state") / "kvasir";
}

std::filesystem::path default_store_folder() {
  return state_folder() / "kv";
}

std::unique_ptr<kv::DiskStore> open_store(const std::filesystem::path& folder, engine::Engine& engine,
                                          const std::filesystem::path& checkpoint, bool create) {
  kv::DiskStore::Options options = engine::store_options(engine.model(), engine.memory().kv_key, checkpoint);
  options.dir = folder;
  options.create = create;
  options.cap_bytes = UINT64_MAX;  // conversations have none, and whose prompts these are is not known here
  options.warn = [](const std::string& text) {
    std::fprintf(stderr, "kvasir: %s\n", printable_lines(text).c_str());
  };
  return std::make_unique<kv::DiskStore>(std::move(options));
}

}  // namespace kvasir::cli
