#include "cli/conversation_store.h"

#include <algorithm>
#include <cstdio>

#include "base/environment.h"
#include "base/printable.h"
#include "cli/output.h"
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

bool are_messages(const nlohmann::ordered_json& messages) {
  return messages.is_array() && std::all_of(messages.begin(), messages.end(), [](const auto& message) {
           return message.is_object() && message.contains("role") && message["role"].is_string() &&
                  message.contains("content") && message["content"].is_string();
         });
}

std::string conversation_metadata(const nlohmann::ordered_json& messages, const std::string& system) {
  return json_text({{"messages", messages}, {"system", system}});
}

}  // namespace kvasir::cli
