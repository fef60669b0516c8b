// Where `kvasir chat` keeps conversations by name: kv/store.h with the identity of an opened model.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"
#include "kv/store.h"

namespace kvasir::cli {

std::filesystem::path state_folder();          // $XDG_STATE_HOME/kvasir, else ~/.local/state/kvasir
std::filesystem::path default_store_folder();  // kv in it

// `create`: to store something there. Otherwise a folder that is not there stays so.
std::unique_ptr<kv::DiskStore> open_store(const std::filesystem::path& folder, engine::Engine& engine,
                                          const std::filesystem::path& checkpoint, bool create);

// Messages as /save writes them, each with a role and a content of text: anything else would be refused by
// the template, one message after another.
bool are_messages(const nlohmann::ordered_json& messages);
// What an entry keeps beside its tokens, and chat reads: {"messages", "system"}.
std::string conversation_metadata(const nlohmann::ordered_json& messages, const std::string& system);

}  // namespace kvasir::cli
